"""A comparison divided over processes, or stopped and begun again, is that of one process in one go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lsp
from lsp import cli
from lsp.evaluation import comparison, grid, results
from lsp.evaluation.problems import Problems, load_problems
from lsp.evaluation.workers import Workers
from tests.support import ROOT

SETTINGS = [comparison.Setting.of("Full", lsp.Full()), comparison.Setting.of("LSP", lsp.LongestStablePrefix())]
LENGTH = {"max_new_tokens": 16}
COUNTED = ("right", "passes", "positions", "tokens", "flips")


class Colleague:
    """One of several ranks that run one after the other: what all of them gather is there when the last one asks."""

    def __init__(self, rank: int, size: int, gathered: list[Any]) -> None:
        self.rank, self.size, self.gathered = rank, size, gathered

    def check_same(self, **things: Any) -> None:
        pass

    def share(self, thing: Any) -> Any:
        return thing

    def gather(self, thing: Any) -> list[Any]:
        self.gathered.append(thing)
        return self.gathered


@pytest.fixture(scope="module")
def problems() -> Problems:
    return load_problems("countdown", 7)


def run(problems: Problems, workers: Workers | None = None, flips: int = 2) -> list[comparison.Result]:
    return comparison.compare(lsp.load("tiny"), problems, SETTINGS, batch=2, flips=flips, workers=workers, **LENGTH)


def counts(results: list[comparison.Result]) -> list[list[Any]]:
    return [[getattr(result, name) for name in COUNTED] for result in results]


@pytest.mark.parametrize("size", [2, 3, 6])
def test_many_workers_give_the_results_of_one(problems: Problems, size: int) -> None:
    gathered: list[Any] = []
    for rank in reversed(range(size)):  # the first one is last here: it has the results
        results = run(problems, Workers(Colleague(rank, size, gathered)))
        assert len(results) == (0 if rank else len(SETTINGS))
    assert counts(results) == counts(run(problems))
    assert all(len(result.seconds) == 4 for result in results)


def tuned(problems: Problems, path: Path, workers: Workers | None = None) -> None:
    candidates = [grid.Candidate(setting.name, setting) for setting in SETTINGS]
    grid.run(lsp.load("tiny"), problems, candidates[:1], path, about={}, workers=workers, **LENGTH)


def test_many_workers_share_a_grid_and_the_first_writes_it(problems: Problems, tmp_path: Path) -> None:
    """A chunk of the problems for each, even if they are fewer than a chunk usually has."""
    gathered: list[Any] = []
    for rank in reversed(range(3)):
        tuned(problems, tmp_path / "three.jsonl", Workers(Colleague(rank, 3, gathered)))
        assert (tmp_path / "three.jsonl").exists() == (rank == 0)
    tuned(problems, tmp_path / "one.jsonl")
    assert results.read(tmp_path / "three.jsonl") == results.read(tmp_path / "one.jsonl")
    assert [len(chunks) for chunks, _ in gathered] == [1, 1, 1]


class Stopped(Exception):
    """Somebody has stopped the run."""


def test_a_run_that_was_stopped_goes_on(problems: Problems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, decoded = counts(run(problems)), []
    original = comparison.generate

    def counting(model: Any, prompts: list[Any], **arguments: Any) -> list[lsp.Generation]:
        decoded.append(len(prompts))
        if len(decoded) == 7:  # a warm-up, two chunks under both settings, and a half of the third
            raise Stopped
        return original(model, prompts, **arguments)

    monkeypatch.setattr(comparison, "generate", counting)
    with pytest.raises(Stopped):
        run(problems, Workers(journal=tmp_path))
    (file,) = tmp_path.iterdir()
    with file.open("a") as journal:
        journal.write('\n[2, [{"seconds": [0.1], "pass')  # and the disk was full
    decoded.extend([0] * 10)
    again = run(problems, Workers(journal=tmp_path))
    assert counts(again) == expected
    assert decoded[17:] == [1, 2, 2, 1, 1]  # a warm-up and what was left: two chunks under both settings
    decoded.clear()
    decoded.extend([0] * 10)
    assert counts(run(problems, Workers(journal=tmp_path))) == expected
    assert decoded[10:] == [1]


def test_the_journal_of_another_run_is_left_alone(problems: Problems, tmp_path: Path) -> None:
    run(problems, Workers(journal=tmp_path, about=("these weights",)), flips=0)
    kept = {path: path.read_text() for path in tmp_path.iterdir()}
    run(problems, Workers(journal=tmp_path, about=("others",)), flips=0)
    assert {path: path.read_text() for path in kept} == kept
    assert len(list(tmp_path.iterdir())) == 2


def in_two_processes(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "lsp"]
    how = {"env": environment, "timeout": 600, "capture_output": True, "text": True}
    return subprocess.run([*launch, *command], check=False, **how)


def test_two_processes_of_torchrun_fill_one_file_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {"task": "countdown", "n": 2, "right": "11", "passes": 1, "positions": 1}
    dev, two, one = (tmp_path / f"{name}.jsonl" for name in ("dev", "two", "one"))
    rows = [seen | {"family": "LSP", "name": "-"}, seen | {"family": "Full", "name": "Full"}]
    dev.write_text(results.HEADER + "".join(json.dumps(row) + "\n" for row in rows))
    command = ["tune", "--from", str(dev), "--task", "countdown", "--problems", "3", "--max-new-tokens", "8"]
    ran = in_two_processes(*command, str(two))
    assert ran.returncode == 0, ran.stderr
    assert cli.run([*command, str(one)]) == 0
    assert ran.stdout == capsys.readouterr().out
    assert "## countdown" in ran.stdout
    assert results.read(two) == results.read(one)
    assert len(results.read(two)) == 10  # the default, Full, and what Fast-dLLM runs


def test_two_processes_of_torchrun_write_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--task", "countdown", "--problems", "2", "--batch", "1", "--flips", "0", "--tail", "dropped"]
    command += ["--max-new-tokens", "8", "--journal", str(tmp_path / "journal"), "--out"]
    two, one = tmp_path / "two.json", tmp_path / "one.json"
    ran = in_two_processes(*command, str(two))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Prophet, blocks of 16") == 1
    assert len(list((tmp_path / "journal").iterdir())) == 2
    assert cli.run([*command, str(one)]) == 0
    assert "Prophet, blocks of 16" in capsys.readouterr().out
    tables = [json.loads(path.read_text())["rows"] for path in (two, one)]
    assert tables[0] == tables[1]  # also the seconds: the second run has found everything in the journal

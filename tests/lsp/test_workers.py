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
from lsp.evaluation import comparison
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


def test_two_processes_of_torchrun_write_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = ["compare", "--task", "countdown", "--problems", "2", "--batch", "1", "--flips", "0", "--tail", "dropped"]
    command += ["--max-new-tokens", "8", "--journal", str(tmp_path / "journal"), "--out"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "lsp"]
    two, one = tmp_path / "two.json", tmp_path / "one.json"
    how = {"env": environment, "timeout": 600, "capture_output": True, "text": True}
    ran = subprocess.run([*launch, *command, str(two)], check=False, **how)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Prophet, blocks of 16") == 1
    assert len(list((tmp_path / "journal").iterdir())) == 2
    assert cli.run([*command, str(one)]) == 0
    assert "Prophet, blocks of 16" in capsys.readouterr().out
    tables = [json.loads(path.read_text())["rows"] for path in (two, one)]
    assert tables[0] == tables[1]  # also the seconds: the second run has found everything in the journal

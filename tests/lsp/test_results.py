"""A file of results is only changed by whoever began it, one process at a time, and read only if it says what it is."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file

import lsp
from lsp.cli import options
from lsp.evaluation import grid, results
from lsp.evaluation.problems import load_problems
from lsp.models.checkpoint import fingerprint
from lsp.tiny import CHECKPOINT
from tests.lsp.commands import Ran, process
from tests.support import ROOT

abuse = pytest.mark.abuse("result files and traces")
PROMPT, NEW = "Use 3, 5 and 7 to make 15.\n", ("--max-new-tokens", "8")
ROW = {"task": "t", "n": 2, "family": "LSP", "name": "a", "passes": 3, "positions": 9.5, "right": "10"}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of two settings."""
    preset = grid.describe(lsp.LongestStablePrefix(), lsp.LongestStablePrefix().options)
    kept = [candidate for candidate in grid.grid() if candidate.name in ("Full", preset)]
    monkeypatch.setattr(grid, "grid", lambda: kept)


def tune(run: Callable[..., Ran], out: Path, *more: object, task: object = "countdown") -> Ran:
    return run("tune", out, "--task", task, "--problems", 1, *NEW, *more)


# Not ours


@abuse
@pytest.mark.parametrize(
    "content",
    [
        b'{"mine": 1}',
        b'{"mine": 1}\n{"mine": 2}',
        b'{"format": "lsp tune 1"}',
        b'{"format": "lsp tune 2"}\n',
        b'{"format": "lsp trace 2"}\n{"index": 0}\n',
        b"[1]\n",
        b"text without a line end",
        b"\n",
        b"\xff\xfe\x00binary",
        b"[" * 100_000,
        json.dumps(ROW).encode() + b"\n",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_file_that_was_not_begun_here_is_not_changed(
    fails: Callable[..., None], tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "load_model", lambda *_: pytest.fail("the work has begun"))
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content)
    fails(2, "got another one, which is not changed", "tune", path, "--task", "countdown", *NEW)
    with pytest.raises(ValueError, match="is not changed"), results.writing(path):
        pass
    assert path.read_bytes() == content


def test_an_empty_file_can_be_begun(few: None, run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").touch()
    assert tune(run, tmp_path / "r.jsonl").code == 0
    assert (tmp_path / "r.jsonl").read_text().startswith(results.HEADER)


def test_a_line_that_was_cut_off_makes_room(few: None, run: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = tune(run, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert tune(run, path).out == first.out
    assert path.read_bytes() == whole


def test_some_families_alone_are_run_with_the_default(
    few: None, run: Callable[..., Ran], fails: Callable[..., None], tmp_path: Path
) -> None:
    def families(name: str, *wanted: str) -> list[str]:
        assert tune(run, tmp_path / name, *wanted).code == 0
        return sorted(row["family"] for row in results.read(tmp_path / name))

    assert families("all.jsonl") == families("full.jsonl", "--family", "Full") == ["Full", "LSP"]
    assert families("ours.jsonl", "--family", "LSP") == ["LSP"]
    message = "Invalid family: expected Full, LSP, got 'Fool'"
    fails(2, message, "tune", tmp_path / "no.jsonl", "--family", "Fool")


# Rows


@abuse
@pytest.mark.parametrize(
    "change",
    [
        {"n": 0},
        {"n": -1},
        {"n": "2"},
        {"n": 2.0},
        {"n": True},
        {"n": None},
        {"passes": "3"},
        {"passes": float("nan")},
        {"passes": float("inf")},
        {"positions": -1},
        {"positions": [1]},
        {"right": "12"},
        {"right": "1"},
        {"right": 10},
        {"task": 3},
        {"name": None},
        {"family": {}},
    ],
    ids=str,
)
def test_a_row_with_a_wrong_field_is_refused_by_name(tmp_path: Path, change: dict) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(results.HEADER + json.dumps(ROW) + "\n" + json.dumps(ROW | change) + "\n")
    word = f"(expected numbers|Invalid {next(iter(change))})"
    with pytest.raises(ValueError, match=rf"Invalid .*r.jsonl, line 3: expected a result of lsp tune, got .*{word}"):
        results.read(path)


@abuse
@pytest.mark.parametrize("missing", ROW)
def test_a_row_without_a_field_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({key: value for key, value in ROW.items() if key != missing}) + "\n")
    with pytest.raises(ValueError, match=rf"r.jsonl, line 1: expected a result of lsp tune, got KeyError: '{missing}'"):
        results.read(path)


@abuse
@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00\n", b"[1]\n", b"3\n", b'"text"\n', b"{\n", b"\n", b"[" * 10**5 + b"\n"]
)
def test_a_file_of_something_else_is_refused_by_name(
    fails: Callable[..., None], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"Invalid .*r.jsonl, line 1: expected a result of lsp tune"):
        results.read(path)
    fails(2, "line 1: expected a result of lsp tune", "tune", tmp_path / "out.jsonl", "--from", path)


def test_a_file_that_is_read_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for header in ("", results.HEADER, json.dumps({"format": results.FORMAT, "weights": "x"}) + "\n"):
        text = header + json.dumps(ROW) + "\n" + '{"task": "t", "na'
        path.write_text(text)
        (row,) = results.read(path)
        assert (row["accuracy"], row.get("weights")) == (0.5, "x" if "weights" in header else None)
        assert path.read_text() == text


@pytest.mark.parametrize("name", ["dev", "test"])
def test_the_published_results_belong_to_the_embedded_weights_or_say_of_which_they_are(name: str) -> None:
    path = ROOT / "docs" / "results" / f"{name}.jsonl"
    (weights,) = {row["weights"] for row in results.read(path)}
    old = "measured with the weights of version 0.1" in (ROOT / "docs" / "results.md").read_text()
    assert (weights != fingerprint(CHECKPOINT)) == old
    results.check_ours(path)


# The same name, something else


def test_one_other_weight_is_another_fingerprint(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(CHECKPOINT, folder)
    assert fingerprint(folder) == fingerprint(CHECKPOINT)
    tensors = load_file(folder / "model.safetensors")
    max(tensors.values(), key=lambda tensor: tensor.numel()).view(-1)[-1] += 0.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert fingerprint(folder) != fingerprint(CHECKPOINT)


@abuse
def test_results_of_other_weights_are_not_reused(few: None, run: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    assert tune(run, out).code == 0
    text = out.read_text()
    out.write_text(text.replace(fingerprint(CHECKPOINT), "0" * 16))
    ran = tune(run, out)
    assert ran.code == 2
    assert "expected results with {'weights': '" + fingerprint(CHECKPOINT) in ran.err


@abuse
@pytest.mark.parametrize("change", [{"prompt": "Use 1, 5 and 7 to make 13.\n"}, {"answer": "4"}], ids=str)
def test_results_of_a_task_file_that_changed_are_not_reused(
    few: None, run: Callable[..., Ran], tmp_path: Path, change: dict
) -> None:
    out, task, row = tmp_path / "r.jsonl", tmp_path / "sums.jsonl", {"prompt": PROMPT, "answer": "3"}
    task.write_text(json.dumps(row) + "\n")
    first = tune(run, out, task=task)
    assert first.code == 0, first.err
    assert tune(run, out, task=task).out == first.out
    task.write_text(json.dumps(row | change) + "\n")
    ran = tune(run, out, task=task)
    assert ran.code == 2
    assert "expected results with {'problems': '" in ran.err


def test_a_fingerprint_of_problems_says_what_is_asked_and_how_it_is_judged(tmp_path: Path) -> None:
    task = tmp_path / "sums.jsonl"
    lines = [json.dumps({"prompt": str(i), "answer": "3"}) + "\n" for i in range(3)]
    task.write_text("".join(lines))
    ways = [(2, {}), (3, {}), (2, {"chat": True}), (2, {"judge": "number"})]
    marks = [load_problems(task, n, **way).fingerprint for n, way in ways]
    assert len(set(marks)) == 4
    task.write_text("".join([*lines[:2], lines[0]]))  # a problem that is not asked
    assert load_problems(task, 2).fingerprint == marks[0]
    embedded = [load_problems("countdown", 2, seed=seed).fingerprint for seed in (1, 1, 2)]
    assert embedded[0] == embedded[1] != embedded[2]


@abuse
def test_two_tasks_of_one_name_are_refused(fails: Callable[..., None], tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sums.jsonl").write_text(json.dumps({"prompt": folder, "answer": "3"}) + "\n")
    files = [tmp_path / folder / "sums.jsonl" for folder in ("a", "b")]
    fails(2, "expected different names", "tune", tmp_path / "r.jsonl", "--task", files[0], "--task", files[1])


# Two at once

HOLD = """
import sys
from pathlib import Path
from lsp.evaluation import results
with results.writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@abuse
def test_a_second_process_does_not_write_to_the_same_file(few: None, run: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    assert tune(run, out).code == 0
    before = out.read_bytes()
    with process(str(out), code=HOLD, stdin=subprocess.PIPE) as other:
        assert other.stdout.readline() == "held\n"
        ran = tune(run, out)
        other.stdin.close()
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"lsp: error: Cannot write {out}: another process is writing it\n"
    assert out.read_bytes() == before
    assert tune(run, out).code == 0


def test_a_killed_process_leaves_no_lock(few: None, run: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    with process(str(out), code=HOLD, stdin=subprocess.PIPE) as other:
        assert other.stdout.readline() == "held\n"
        other.kill()
    assert tune(run, out).code == 0

"""Text from a checkpoint, a file or an argument is shown by a terminal and never obeyed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unicodedata import category

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("transformers")

from rich.console import Console

import lsp
from lsp.cli import compare, demo
from lsp.evaluation import grid
from lsp.tiny import CHECKPOINT
from lsp.tracing import terminal
from lsp.tracing.printable import printable
from tests.lsp.commands import Ran

pytestmark = pytest.mark.abuse("command line")

PROMPT, NEW = "Use 3, 5 and 7 to make 15.\n", ("--max-new-tokens", "24")
TITLE = "\x1b]0;owned\x07"
EVIL = {
    "colour": "\x1b[31m",
    "clear": "\x1b[2J",
    "title": TITLE,
    "clipboard": "\x1b]52;c;aGk=\x07",
    "c1": "\x9b2J",
    "carriage return": "\r",
    "backspace": "\b",
    "bell": "\a",
    "delete": "\x7f",
    "null": "\0",
}


def harmless(text: str) -> bool:
    return not any(category(c) == "Cc" and c not in "\n\t" for c in text)


@pytest.fixture(params=EVIL)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The embedded model with a sequence in the text of its first answer's first token."""
    shutil.copytree(CHECKPOINT, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    vocab[EVIL[request.param] + "First"] = vocab.pop("First")
    path.write_text(json.dumps(content))
    return path.parent


@pytest.mark.parametrize("how", [[], ["--stream"], ["--by-pass"]], ids=str)
def test_tokens_are_shown_and_not_obeyed(run: Callable[..., Ran], model: Path, how: list[str]) -> None:
    ran = run("generate", PROMPT, "--model", model, "--dtype", "float32", *NEW, *how)
    assert ran.code == 0
    assert harmless(ran.out + ran.err)
    shown = ran.out.removeprefix("[1]")
    assert shown.startswith("\\x")
    assert "First" in shown
    exact = json.loads(run("generate", PROMPT, "--json", "--model", model, "--dtype", "float32", *NEW).out)["text"]
    assert not harmless(exact)
    assert how == ["--by-pass"] or printable(exact) == ran.out.removesuffix("\n")


@pytest.mark.parametrize("name", EVIL)
def test_errors_are_harmless(run: Callable[..., Ran], name: str) -> None:
    for arguments in (
        ["generate", "x", "--model", f"/{EVIL[name]}x".replace("\0", "\1")],
        ["generate", "x", "--scheduler", f"a{EVIL[name]}x"],
        ["generate", "x", "--set", f"a{EVIL[name]}x"],
        [f"a{EVIL[name]}x"],
    ):
        ran = run(*arguments)
        assert ran.code != 0
        assert harmless(ran.err)


def test_what_was_committed_before_an_error_is_harmless(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError(f"Invalid x: expected y, got {TITLE}")

    monkeypatch.setattr(lsp, "generate", broken)
    assert harmless(run("generate", PROMPT).err)


def test_tables_and_verdicts_are_harmless(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"sums{TITLE}[bold]x.jsonl"
    file.write_text(json.dumps({"prompt": PROMPT, "answer": "3"}) + "\n")
    preset = lsp.LongestStablePrefix()
    few = [each for each in grid.grid() if each.name in ("Full", grid.describe(preset, preset.options))]
    monkeypatch.setattr(grid, "grid", lambda: few)
    monkeypatch.setattr(compare, "SECONDS_BETWEEN_LINES", 0.0)
    given = ["--task", file, "--problems", 1, *NEW]
    for arguments in (["compare", "--flips", 0, "--tail", "dropped", *given], ["tune", tmp_path / "out.jsonl", *given]):
        ran = run(*arguments)
        assert ran.code == 0, ran.err
        assert harmless(ran.out + ran.err)
        assert "[bold]x" in ran.out
        assert "[bold]x: 1 of" in ran.err


def test_the_demonstration_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = terminal.pieces_of
    monkeypatch.setattr(terminal, "pieces_of", lambda *given: [TITLE, *pieces(*given)[1:]])
    drawn = demo.generate
    monkeypatch.setattr(demo, "generate", lambda *a, **k: (replace(p, prompt=TITLE + p.prompt) for p in drawn(*a, **k)))
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        demo.run(console, 1, tmp_path / "page.html")
    assert harmless(capture.get())
    assert printable(TITLE) in capture.get()

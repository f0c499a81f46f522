"""Names that README or docs showed in the first release still work, and say what to use instead."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import lsp
from lsp.tracing import html, terminal


@pytest.mark.parametrize("name", ["delimiter_ids", "mask_id", "stop_ids", "vocabulary"])
def test_token_helpers_moved(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"lsp\.{name} is deprecated; use lsp\.tokens\.{name}"):
        assert getattr(lsp, name) is getattr(lsp.tokens, name)
    with pytest.raises(AttributeError, match="module 'lsp' has no attribute 'nothing'"):
        _ = lsp.nothing


def test_pages_and_terminal_moved() -> None:
    render = importlib.import_module("lsp.render")
    with pytest.warns(DeprecationWarning, match=r"use lsp\.tracing\.html"):
        assert render.html is html
    with pytest.warns(DeprecationWarning, match=r"use lsp\.tracing\.terminal"):
        assert render.terminal is terminal


def test_a_step_was_called_scores() -> None:
    with pytest.warns(DeprecationWarning, match=r"lsp\.scoring\.Scores is deprecated; use lsp\.decoding\.Step"):
        assert importlib.import_module("lsp.scoring").Scores is lsp.decoding.Step


def test_the_default_was_called_guarded() -> None:
    with pytest.warns(DeprecationWarning, match=r"guarded\(\) is deprecated; use LongestStablePrefix\(\)"):
        assert lsp.LongestStablePrefix.guarded() == lsp.LongestStablePrefix()


def test_committed_in_was_called_steps() -> None:
    (answer,) = lsp.generate(lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n", max_new_tokens=24)
    with pytest.warns(DeprecationWarning, match=r"Generation\.committed_in"):
        assert answer.steps == answer.committed_in


def test_the_first_format_of_a_trace_is_read(tmp_path: Path) -> None:
    (trace,) = lsp.trace(lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n", max_new_tokens=24)
    trace.save(tmp_path / "new.jsonl")
    head, *steps = map(json.loads, (tmp_path / "new.jsonl").read_text("utf-8").splitlines())
    head["format"] = "lsp trace 1"
    del head["name"], head["notes"]
    for step in steps:
        step["positions"] = step.pop("masks_in_pass")
        del step["reason"], step["rule"]["stopped"]
    (tmp_path / "old.jsonl").write_text("\n".join(map(json.dumps, [head, *steps])), "utf-8")
    old = lsp.Trace.load(tmp_path / "old.jsonl")
    assert (old.name, old.notes, old.tokens) == ("LongestStablePrefix", [], trace.tokens)
    assert [step.masks_in_pass for step in old.steps] == [step.masks_in_pass for step in trace.steps]
    assert "LongestStablePrefix" in html.page([old])

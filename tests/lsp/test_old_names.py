"""Names that README or docs showed in the first release still work, and say what to use instead."""

from __future__ import annotations

import importlib

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

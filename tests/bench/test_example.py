"""The example that README and docs show is what the command decodes today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import lsp
from bench import example
from lsp.tracing.headline import headline

AGAIN = "run: make example"


@pytest.fixture(scope="module")
def traces() -> list[lsp.Trace]:
    return example.traces()


@pytest.mark.parametrize("path", example.TOLD, ids=lambda path: path.name)
def test_pages_have_the_numbers_of_a_fresh_trace(traces: list[lsp.Trace], path: Path) -> None:
    assert example.renewed(path, traces) == path.read_text("utf-8"), AGAIN


def test_the_picture_is_that_of_a_fresh_trace(traces: list[lsp.Trace]) -> None:
    pictures = pytest.importorskip("lsp.tracing.pictures", exc_type=ImportError)
    kept, fresh = example.PICTURE.read_text("utf-8"), pictures.still(traces, example.PASS).decode()
    assert f"<!-- {headline(traces)} -->" in kept, AGAIN
    assert words(kept) == words(fresh), AGAIN


def words(picture: str) -> list[str]:
    """The texts that are drawn as shapes."""
    return re.findall(r"<!-- (.*?) -->", picture, re.DOTALL)


def test_schedulers_of_the_example_differ_visibly(traces: list[lsp.Trace]) -> None:
    few, many = traces
    assert (few.verdict, many.verdict) == ("right", "right")
    assert many.passes > 3 * few.passes
    assert many.positions > 3 * few.positions

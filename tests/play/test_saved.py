"""Files of what the page shows: the same as those of the library, and what is opened is what was saved."""

from __future__ import annotations

import io
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lsp
from lsp.play import saved as saving
from lsp.tracing import html, storage
from lsp.tracing.headline import headline
from lsp.tracing.records import RuleRecord
from tests import traces
from tests.play.serving import as_held, post


def saved(kind: str, *shown: lsp.Trace, **more: Any) -> bytes:
    answer = post("/api/save", {"kind": kind, "traces": list(map(as_held, shown)), **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == "attachment"
    return answer.content


def test_a_saved_run_is_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(saved("jsonl", traces.of("islands")))
    assert lsp.Trace.load(path) == traces.of("islands")


def test_an_infinite_floor_is_saved_as_it_is(tmp_path: Path) -> None:
    trace = replace(traces.of("islands"), level=math.inf)
    (tmp_path / "a.jsonl").write_bytes(saved("jsonl", trace))
    assert lsp.Trace.load(tmp_path / "a.jsonl") == trace


def test_a_run_that_was_stopped_can_be_saved_and_shown(tmp_path: Path) -> None:
    stopped = traces.stopped(traces.of("scattered"), 3)
    (tmp_path / "a.jsonl").write_bytes(saved("jsonl", stopped))
    assert lsp.Trace.load(tmp_path / "a.jsonl") == stopped
    whole = traces.of("full")
    assert headline([stopped, whole]) == f"Passes: 3 (stopped) and {whole.passes}"
    assert saved("html", stopped).decode() == html.page([stopped])


def test_a_saved_page_is_the_page_of_the_traces() -> None:
    shown = traces.of("lsp"), traces.of("threshold")
    assert saved("html", *shown).decode() == html.page(shown)


def test_pictures_are_those_of_the_traces() -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    from lsp.tracing import pictures

    shown = traces.of("lsp"), traces.of("threshold")
    assert saved("svg", *shown, **{"pass": 2}) == pictures.still(shown, 2)
    image = Image.open(io.BytesIO(saved("gif", *shown)))
    assert (image.format, image.n_frames) == ("GIF", max(one.passes for one in shown))


def test_one_picture_is_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(saving, "PATIENCE", 0.0)
    with saving.drawing():
        answers = [post("/api/save", {"kind": kind, "traces": [as_held(traces.of("lsp"))]}) for kind in ("svg", "gif")]
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["error"].startswith("Invalid request: expected one picture at a time")


def test_without_matplotlib_a_picture_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "lsp.tracing.pictures", raising=False)
    monkeypatch.delattr(lsp.tracing, "pictures", raising=False)
    answer = post("/api/save", {"kind": "svg", "traces": [as_held(traces.of("lsp"))]})
    assert answer.status_code == 501
    assert "a picture of a trace needs matplotlib" in answer.json()["error"]


def test_what_is_opened_is_what_was_saved() -> None:
    text = saved("jsonl", traces.of("full")).decode()
    (held,) = post("/api/open", {"files": [{"name": "a.jsonl", "text": text}]}).json()
    assert held == as_held(traces.of("full"))


BAD = {
    "no file": ({"files": []}, "Invalid files: expected from 1 to 8, got 0"),
    "no trace": (
        {"files": [{"name": "a.txt", "text": "hello"}]},
        "Invalid a.txt: expected JSON lines of 'lsp trace 3', got",
    ),
    "a strange field": ({"files": [{"name": "a", "text": "", "x": 1}]}, "Invalid file: expected no field 'x', got 1"),
}


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_opened_is_refused_by_name(name: str) -> None:
    given, words = BAD[name]
    answer = post("/api/open", given)
    assert (answer.status_code, answer.json()["error"][: len(words)]) == (400, words)


NOT_SAVED = {
    "a strange kind": ({"kind": "png"}, "Invalid kind: expected one of jsonl, html, svg, gif, got 'png'"),
    "a file of two": ({"kind": "jsonl", "many": 2}, "Invalid traces: expected from 1 to 8, one for jsonl, got 2"),
    "nine traces": ({"kind": "html", "many": 9}, "Invalid traces: expected from 1 to 8, one for jsonl, got 9"),
    "no trace": ({"kind": "html", "many": 0}, "Invalid traces: expected from 1 to 8, one for jsonl, got 0"),
    "pass 0": ({"kind": "svg", "pass": 0}, "Invalid pass: expected from 1 to 1048576, got 0"),
}


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("name", NOT_SAVED)
def test_what_cannot_be_saved_is_refused_by_name(name: str) -> None:
    asked, words = NOT_SAVED[name]
    many = asked.get("many", 1)
    given = {key: value for key, value in asked.items() if key != "many"}
    answer = post("/api/save", {**given, "traces": [as_held(traces.of("lsp"))] * many})
    assert (answer.status_code, answer.json()["error"]) == (400, words)


def rule(**change: Any) -> RuleRecord:
    """That of the first pass, changed."""
    first = traces.of("lsp").steps[0].rule
    assert first is not None
    return replace(first, **change)


ONE_MASK = {"masks": [3], "masks_in_pass": [3], "tokens": [5], "margins": [1.0], "confidence": [1.0], "rule": None}
IN_A_PASS = {
    "a commit in the prompt": (lambda: {"chosen": [3], "written": [5]}, "got 3 for chosen, not from"),
    "a mask in the prompt": (lambda: ONE_MASK, "got 3 for masks, not from"),
    "a far end": (lambda: {"end": 9999}, "got 9999 for end, not from 0 to"),
    "a negative cache": (lambda: {"frozen": -1}, "got -1 for frozen, not from 0 to"),
    "a far candidate": (lambda: {"rule": rule(candidate=999)}, "got 999 for candidate, not from 0 to"),
}
IN_THE_HEAD = {
    "too many tokens": ({"tokens": [5] * 99, "committed_in": [0] * 99}, "got 99 for the number of tokens"),
    "a pass that never was": ({"tokens": [5], "committed_in": [99]}, "got 99 for committed_in"),
    "too much for a page": ({"max_new_tokens": 2**20}, "expected at most 16384 positions after the prompt"),
}


def refused(trace: lsp.Trace) -> str:
    """Why a trace cannot be opened."""
    answer = post("/api/open", {"files": [{"name": "a.jsonl", "text": storage.to_text(trace)}]})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Invalid a.jsonl: expected ")
    return str(answer.json()["error"])


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("name", IN_A_PASS)
def test_a_pass_with_impossible_numbers_is_not_opened(name: str) -> None:
    change, words = IN_A_PASS[name]
    first, *others = traces.of("lsp").steps
    assert words in refused(replace(traces.of("lsp"), steps=[replace(first, **change()), *others]))


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("name", IN_THE_HEAD)
def test_a_head_with_impossible_numbers_is_not_opened(name: str) -> None:
    change, words = IN_THE_HEAD[name]
    assert words in refused(replace(traces.of("lsp"), **change))


@pytest.mark.abuse("playground")
@pytest.mark.parametrize(
    "change", [{"steps": None}, {"passes": 99}, {"prompt": "a"}, {"max_new_tokens": 2**40}, {"options": None}, {"x": 1}]
)
def test_a_broken_trace_is_not_saved(change: dict[str, Any]) -> None:
    answer = post("/api/save", {"kind": "html", "traces": [as_held(traces.of("lsp")) | change]})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Invalid trace: expected ")

"""Files of what the page shows: the same as those of the library, and what is opened is what was saved."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import lsp
from lsp.tracing import html, storage
from lsp.tracing.compact import shorten
from lsp.tracing.headline import headline
from tests import traces
from tests.play.serving import post


def as_held(trace: lsp.Trace) -> dict[str, Any]:
    """A trace as the page holds it."""
    return json.loads(html.as_json({**storage.head_of(trace), "steps": shorten(trace.steps)}))


def saved(kind: str, *shown: lsp.Trace, **more: Any) -> bytes:
    answer = post("/api/save", {"kind": kind, "traces": list(map(as_held, shown)), **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == "attachment"
    return answer.content


def test_a_saved_run_is_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(saved("jsonl", traces.of("islands")))
    assert lsp.Trace.load(path) == traces.of("islands")


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


@pytest.mark.abuse("playground")
@pytest.mark.parametrize(
    "change", [{"steps": None}, {"passes": 99}, {"prompt": "a"}, {"max_new_tokens": 2**40}, {"options": None}, {"x": 1}]
)
def test_a_broken_trace_is_not_saved(change: dict[str, Any]) -> None:
    answer = post("/api/save", {"kind": "html", "traces": [as_held(traces.of("lsp")) | change]})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Invalid trace: expected ")

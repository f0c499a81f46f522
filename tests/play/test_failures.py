"""What goes wrong: failures of ours are logged, and every status has its sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lsp.play import asks, completions, line, runs, saved, streams
from tests.play.serving import PROMPT, events, post, question

ASKED = {
    "/api/runs": question(),
    "/api/tokens": {"text": "a"},
    "/api/save": {},
    "/api/open": {},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4},
}
STREAM = {**ASKED["/v1/completions"], "stream": True}


def broken(*given: Any) -> Any:
    raise RuntimeError("broken here")


def breaks(*given: Any) -> Iterator[Any]:
    yield ""
    broken()


def said(answer: Any) -> Any:
    """What the page, a client or a reader of events is told."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return events(answer)[-1]["error"]
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "question", "place", "name"),
    [
        pytest.param("/api/runs", ASKED["/api/runs"], runs, "run", id="a run"),
        pytest.param("/api/save", {}, saved, "save", id="a file"),
        pytest.param("/v1/completions", ASKED["/v1/completions"], completions, "generate", id="an answer"),
        pytest.param("/v1/completions", STREAM, completions, "generate", id="a stream"),
    ],
)
def test_a_failure_of_ours_is_logged_once_with_its_traceback(
    path: str, question: Any, place: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(place, name, broken if name == "save" else breaks)
    assert "broken here" in str(said(post(path, question)))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "in broken" in caplog.text


def test_a_wrong_question_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    for path in ASKED:
        assert post(path, {"x": 1}).status_code == 400
    assert not caplog.records


@pytest.mark.parametrize("path", ["/api/runs", "/v1/completions", "/v1/chat/completions"])
def test_who_finds_the_line_full_may_come_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "LONGEST", 0)
    answer = post(path, ASKED[path])
    assert answer.status_code == 503
    words = said(answer)
    assert "expected at most 0 in the line" in (words if path == "/api/runs" else words["message"])


def test_no_question_is_read_where_all_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is free for others while a large file is parsed."""
    threads = []
    parse = streams.parse

    def noted(body: bytes) -> Any:
        threads.append(threading.current_thread())
        return parse(body)

    monkeypatch.setattr(streams, "parse", noted)
    for path, asked in ASKED.items():
        post(path, asked)
    assert len(threads) == len(ASKED)
    assert threading.current_thread() not in threads  # which runs the event loop here


def test_sides_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "side", broken)
    answer = post("/api/runs", question(*["lsp"] * 3000))
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "Invalid sides: expected from 1 to 4 schedulers, got 3000",
    )

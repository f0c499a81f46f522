"""Nothing runs that nobody waits for: who closes the connection ends the run, and leaves the line."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lsp.play import line, runs
from lsp.play.errors import Left
from tests import traces
from tests.play.serving import PROMPT, as_held, question, served, slow_down, until

CHAT = {"messages": [{"role": "user", "content": PROMPT}], "scheduler": "full"}
ASKED = {
    "a run": ("/api/runs", question("full", "full")),
    "an answer": ("/v1/chat/completions", CHAT),
    "a stream": ("/v1/chat/completions", {**CHAT, "stream": True}),
}


@contextmanager
def asked(address: str, path: str, what: Any) -> Iterator[socket.socket]:
    """The connection of a client that has asked and does not read."""
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps(what).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        yield connection


@pytest.mark.parametrize("name", ASKED)
def test_who_goes_away_ends_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = slow_down(monkeypatch)
    with served() as (address, held):
        with asked(address, *ASKED[name]):
            until(lambda: len(told) > 4)
        until(lambda: len(held.line) == 0)
    assert len(told) < 15  # Full takes more passes than that


def test_who_stays_and_does_not_read_keeps_neither_memory_nor_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def endless(playground: Any, ask: Any) -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            passes.append(number)
            yield {"event": "pass", "line": "x" * 200_000}

    monkeypatch.setattr(runs, "run", endless)
    monkeypatch.setattr(line, "PATIENCE", 1.0)
    with served() as (address, held), asked(address, *ASKED["a run"]):
        until(lambda: passes)
        until(lambda: len(held.line) == 0)
        assert len(passes) < line.MOST_UNREAD + 100  # what is more is in the buffers of the connection


def test_who_goes_away_ends_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from lsp.tracing import pictures

    begun, ended = threading.Event(), threading.Event()

    def endless(traces: Any, title: str, before_each: Any) -> bytes:
        begun.set()
        try:
            for _ in range(3000):
                before_each()
                time.sleep(0.01)
        except Left:
            ended.set()
        return b""

    monkeypatch.setattr(pictures, "animated", endless)
    with served() as (address, _):
        with asked(address, "/api/save", {"kind": "gif", "traces": [as_held(traces.of("lsp"))]}):
            assert begun.wait(30)
        assert ended.wait(30)


@pytest.mark.parametrize("name", ASKED)
def test_who_goes_away_leaves_the_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = slow_down(monkeypatch)
    with served() as (address, held), asked(address, *ASKED["a run"]):
        until(lambda: len(told) > 2)
        with asked(address, *ASKED[name]):
            until(lambda: len(held.line) == 2)
        until(lambda: len(held.line) == 1)
        assert len(told) < 15  # the first one still runs

"""Runs as files: traces, pages and pictures of what the page holds, and traces that are opened again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lsp.play.errors import Busy, Left
from lsp.play.fields import Fields
from lsp.tracing import Trace, html, storage
from lsp.tracing.compact import shorten

MOST_TRACES, MOST_POSITIONS = 8, 2**14
PATIENCE = 1.0
"""Seconds that a picture waits for the one before it, which may be a GIF of many."""

KINDS = {
    "jsonl": "application/jsonl; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "gif": "image/gif",
}


_drawing = threading.Lock()


def save(given: Any, gone: threading.Event) -> tuple[bytes, str]:
    """Reads a request to save traces; returns the file and its media type. Ends early if the client is `gone`."""
    ask = Fields(given)
    kind, title = ask.text("kind", 10), ask.text("title", 200, "")
    traces = [one(trace) for trace in ask.take("traces", list, []) or []]
    if kind not in KINDS:
        raise ValueError(f"Invalid kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if not 1 <= len(traces) <= (1 if kind == "jsonl" else MOST_TRACES):
        raise ValueError(f"Invalid traces: expected from 1 to {MOST_TRACES}, one for jsonl, got {len(traces)}")
    at = ask.number("pass", 1, 2**20, 1) or 1
    ask.close()
    return WRITERS[kind](traces, title, at, gone), KINDS[kind]


def one(given: Any) -> Trace:
    """A trace from the object that the page holds."""
    if not isinstance(given, dict) or not isinstance(given.get("steps"), list):
        raise ValueError("Invalid trace: expected an object with its steps, got something else")
    head = {key: math.inf if value == html.LARGEST else value for key, value in given.items() if key != "steps"}
    return storage.from_lines({"format": storage.FORMAT, **head}, given["steps"], "trace")


def opened(given: Any) -> list[dict[str, Any]]:
    """Reads a request to open files; returns their traces as the page holds them."""
    ask = Fields(given)
    files = ask.take("files", list, []) or []
    ask.close()
    if not 1 <= len(files) <= MOST_TRACES:
        raise ValueError(f"Invalid files: expected from 1 to {MOST_TRACES}, got {len(files)}")
    out = []
    for file in files:
        each = Fields(file, "file")
        name, text = each.text("name", 200), each.text("text", 2**26)
        each.close()
        trace = storage.from_bytes(text.encode(), name)
        if trace.max_new_tokens > MOST_POSITIONS:  # the page draws each of them
            expected = f"at most {MOST_POSITIONS} positions after the prompt"
            raise ValueError(f"Invalid {name}: expected {expected}, got {trace.max_new_tokens}")
        out.append({**storage.head_of(trace), "steps": shorten(trace.steps)})
    return out


def picture(traces: list[Trace], title: str, at: int, gone: threading.Event) -> bytes:
    from lsp.tracing import pictures

    with drawing():
        return pictures.still(traces, at, title=title)


def animation(traces: list[Trace], title: str, at: int, gone: threading.Event) -> bytes:
    from lsp.tracing import pictures

    def check() -> None:
        if gone.is_set():
            raise Left

    with drawing():
        return pictures.animated(traces, title=title, before_each=check)


@contextmanager
def drawing() -> Iterator[None]:
    """Inside, no other picture is drawn: each takes a core and some memory."""
    if not _drawing.acquire(timeout=PATIENCE):
        raise Busy("Invalid request: expected one picture at a time, got another one; try again when that is saved")
    try:
        yield
    finally:
        _drawing.release()


WRITERS: dict[str, Callable[[list[Trace], str, int, threading.Event], bytes]] = {
    "jsonl": lambda traces, title, at, gone: storage.to_text(traces[0]).encode(),
    "html": lambda traces, title, at, gone: html.page(traces, title=title or html.TITLE).encode(),
    "svg": picture,
    "gif": animation,
}

"""Runs as files: traces, pages and pictures of what the page holds, and traces that are opened again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lsp.play.fields import Fields
from lsp.tracing import Trace, html, storage
from lsp.tracing.compact import shorten

MOST_TRACES = 8
KINDS = {
    "jsonl": "application/jsonl; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
    "gif": "image/gif",
}


def save(given: Any) -> tuple[bytes, str]:
    """Reads a request to save traces; returns the file and its media type."""
    ask = Fields(given)
    kind, title = ask.text("kind", 10), ask.text("title", 200, "")
    traces = [one(trace) for trace in ask.take("traces", list, []) or []]
    if kind not in KINDS:
        raise ValueError(f"Invalid kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if not 1 <= len(traces) <= (1 if kind == "jsonl" else MOST_TRACES):
        raise ValueError(f"Invalid traces: expected from 1 to {MOST_TRACES}, one for jsonl, got {len(traces)}")
    at = ask.number("pass", 1, 2**20, 1) or 1
    ask.close()
    return WRITERS[kind](traces, title, at), KINDS[kind]


def one(given: Any) -> Trace:
    """A trace from the object that the page holds."""
    if not isinstance(given, dict) or not isinstance(given.get("steps"), list):
        raise ValueError("Invalid trace: expected an object with its steps, got something else")
    head = {key: value for key, value in given.items() if key != "steps"}
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
        out.append({**storage.head_of(trace), "steps": shorten(trace.steps)})
    return out


def picture(traces: list[Trace], title: str, at: int) -> bytes:
    from lsp.tracing import pictures

    return pictures.still(traces, at, title=title)


def animation(traces: list[Trace], title: str, at: int) -> bytes:
    from lsp.tracing import pictures

    return pictures.animated(traces, title=title)


WRITERS: dict[str, Callable[[list[Trace], str, int], bytes]] = {
    "jsonl": lambda traces, title, at: storage.to_text(traces[0]).encode(),
    "html": lambda traces, title, at: html.page(traces, title=title or html.TITLE).encode(),
    "svg": picture,
    "gif": animation,
}

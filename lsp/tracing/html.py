"""Traces as one HTML page to step through. The page fetches nothing: it opens from a file, a mail or a web server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lsp.files import write_whole
from lsp.tracing.compact import shorten
from lsp.tracing.records import Trace

ASSETS = Path(__file__).parent / "assets"
SHARED = tuple(ASSETS / f"{name}.js" for name in ("expand", "state", "words", "chart", "sequence", "view", "controls"))
"""The scripts that show traces, here and in the playground."""

SCRIPTS = (*SHARED, ASSETS / "trace.js")
TITLE = "Decoding, pass by pass"
LARGEST = 1.7e308
"""What stands for infinity on a page, as JSON has none."""


def page(traces: Sequence[Trace], *, title: str = TITLE) -> str:
    """A page that shows traces side by side, usually schedulers on the same prompt.

    Everything is inside: style, script, and the traces as JSON. The page's policy lets it run its own script and fetch
    nothing, so a prompt cannot add markup to it.

    Parameters
    ----------
    traces : sequence of Trace
        At least one.
    title : str
        The heading.
    """
    if not traces:
        raise ValueError("Invalid traces: expected at least one, got none")
    style = read("trace.css")
    script = script_of(SCRIPTS)
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; base-uri 'none'",
        "style": style,
        "script": script,
        "view": read("view.html"),
        "data": as_json([vars(trace) | {"steps": shorten(trace.steps)} for trace in traces]),
    }
    return filled(read("trace.html"), parts)


def write(path: str | Path, traces: Sequence[Trace], *, title: str = TITLE) -> None:
    """Writes the `page` to a file."""
    write_whole(path, page(traces, title=title))


def script_of(paths: Iterable[Path]) -> str:
    """Scripts as one, which leaves nothing outside of itself."""
    return '(() => {\n"use strict";\n' + "\n".join(map(source, paths)) + "})();\n"


def filled(template: str, parts: dict[str, str]) -> str:
    """The template with its parts; what they hold is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def as_json(value: Any) -> str:
    """JSON that cannot end a script element: ASCII, without the characters that markup is made of."""
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return LARGEST if value == math.inf else value


def hashed(text: str) -> str:
    """How a policy allows a script or a style by what it is."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def read(name: str) -> str:
    return source(ASSETS / name)


def source(path: Path) -> str:
    return path.read_text("utf-8")

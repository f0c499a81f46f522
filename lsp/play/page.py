"""The page of the playground: one file like the page of traces, with which it shares script and style."""

from __future__ import annotations

import html
from functools import cache
from pathlib import Path

import torch

from lsp.play.asks import LONGEST_ANSWER, LONGEST_PROMPT, offered
from lsp.play.playground import PROBLEMS, Playground
from lsp.tracing.html import SHARED, as_json, filled, hashed, read, script_of, source

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (*SHARED, *(ASSETS / name for name in ("stream.js", "form.js", "shelf.js", "play.js")))
DEFAULTS = {"task": "arithmetic", "index": 0, "sides": ["lsp", "full"]}
"""What the page shows first: schedulers that differ visibly."""


@cache
def script() -> str:
    return script_of(SCRIPTS)


@cache
def style() -> str:
    return read("trace.css") + source(ASSETS / "play.css")


def policy() -> str:
    """The page runs its own script, asks its own server, and no more."""
    allowed = f"script-src {hashed(script())}; style-src {hashed(style())}; connect-src 'self'; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def page(playground: Playground) -> str:
    """The page with all that it needs to know of the model and the schedulers."""
    about = {
        "model": playground.name,
        "device": device_of(playground),
        "tasks": playground.tasks,
        "problems": PROBLEMS,
        "schedulers": offered(),
        "chat": playground.chat,
        "length": playground.length(),
        "limits": {"prompt": LONGEST_PROMPT, "answer": LONGEST_ANSWER},
        "first": DEFAULTS if playground.tasks else {**DEFAULTS, "task": None},
    }
    parts = {
        "style": style(),
        "script": script(),
        "view": read("view.html"),
        "model": html.escape(playground.name),
        "data": as_json(about),
    }
    return filled(source(ASSETS / "play.html"), parts)


def device_of(playground: Playground) -> str:
    """Where the model runs, in words."""
    device = playground.model.device
    if device.type != "cpu":
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"CPU, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"

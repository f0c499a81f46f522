"""Schedulers and options in short words, for a heading."""

from __future__ import annotations

import re

from lsp.decode import Options
from lsp.trace import Trace

NAMES = {
    "LongestStablePrefix": "Longest stable prefix",
    "FixedPrefix": "Fixed prefix",
    "Full": "Full: one token a pass",
    "TopK": "Top k by confidence",
    "Threshold": "Confidence threshold",
    "Factor": "Confidence factor",
    "ScatteredMargin": "Scattered by margin",
    "Prophet": "Prophet",
}


def name(trace: Trace) -> str:
    """The scheduler in words: ``"Longest stable prefix"``. One of your own keeps the name of its class."""
    kind = trace.scheduler.partition("(")[0]
    return NAMES.get(kind, kind)


def notes(trace: Trace) -> list[str]:
    """What sets this run apart: the numbers of the scheduler, and the options that are not the default."""
    out = []
    if trace.scheduler.startswith("LongestStablePrefix("):
        range_ = re.search(r"alpha=([^,]*), beta=([^,]*)", trace.scheduler)
        paper = "no floor" + (f", α = {range_[1]}, β = {range_[2]}" if range_ else "")
        out.append(paper if trace.level is None else f"floor {trace.level:g}")
    elif flat := re.fullmatch(r"(\w+)\(([^()]*)\)", trace.scheduler):
        out += [] if flat[1] == "Full" else [part.replace("=", " = ") for part in flat[2].split(", ") if part]
    if trace.islands is not None:
        out.append(f"islands {trace.islands:g}")
    usual = vars(Options())
    for key, value in trace.options.items():
        if value != usual.get(key):
            out.append(key.replace("_", " ") if value is True else f"{key} {value}".replace("_", " "))
    return out

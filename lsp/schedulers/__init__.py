"""Which masks to commit in a step: the longest stable prefix, and every rival that it is compared with.

A scheduler is one class that describes itself (`lsp.Scheduler`): its name, its loop options, and what a trace says of
its choices. It is called once a step with a `lsp.decoding.Step` and returns, for every sequence that is not finished,
positions and the tokens to write there, at least one. It keeps nothing between steps.
"""

from __future__ import annotations

from collections.abc import Callable

from lsp.decoding.scheduler import Chosen, Custom, Scheduler, described
from lsp.decoding.step import Step

from lsp.schedulers.prefix import FixedPrefix, LongestStablePrefix  # isort: skip; lsp info begins with it
from lsp.schedulers.scattered import Factor, Full, ScatteredMargin, Threshold, TopK  # isort: skip
from lsp.schedulers.blocks import AdaBlock, SlidingBlock
from lsp.schedulers.bounds import EntropyBound, Frechet
from lsp.schedulers.early import Prophet, SchED
from lsp.schedulers.history import Klass, Less
from lsp.schedulers.locally import LocalLeap
from lsp.schedulers.timed import DreamOrder

NAMES = Scheduler.registered
"""The schedulers by the names that `lsp.generate` and the command line know: every class with a `key`, and presets."""


def scheduler_of(given: Scheduler | Callable[[Step], list[Chosen]] | str | None) -> Scheduler:
    """A scheduler from its name, from a function, or as it is; by default `LongestStablePrefix()`."""
    if given is None:
        return LongestStablePrefix()
    if isinstance(given, str):
        if given not in NAMES:
            raise ValueError(f"Invalid scheduler: expected one of {', '.join(NAMES)}, got {given!r}")
        return NAMES[given]()
    return described(given)


__all__ = [
    "NAMES",
    "AdaBlock",
    "Custom",
    "DreamOrder",
    "EntropyBound",
    "Factor",
    "FixedPrefix",
    "Frechet",
    "Full",
    "Klass",
    "Less",
    "LocalLeap",
    "LongestStablePrefix",
    "Prophet",
    "ScatteredMargin",
    "SchED",
    "Scheduler",
    "SlidingBlock",
    "Threshold",
    "TopK",
    "scheduler_of",
]

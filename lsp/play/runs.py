"""A comparison while it runs: the schedulers take turns, a pass each, and every pass is an event for the page."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from lsp.play.asks import Comparison
from lsp.play.playground import Playground
from lsp.tiny.tasks import verdict
from lsp.tracing.live import Live

Event = dict[str, Any]


def run(playground: Playground, ask: Comparison) -> Generator[Event, None, None]:
    """The events of a comparison. Each says which side it concerns.

    ``begin`` has the head of a trace as far as it is known, ``pass`` the line of a pass with the running costs, ``end``
    the whole head, the verdict included.
    """
    sides = [start(playground, ask, side) for side in range(len(ask.schedulers))]
    for side, live in enumerate(sides):
        yield {"event": "begin", "side": side, "head": live.head}
    open_ = dict(enumerate(sides))
    while open_:
        for side, live in list(open_.items()):
            news = live.step()
            if news is not None:
                yield {"event": "pass", "side": side, **news}
            else:
                del open_[side]
                head = live.head
                head["verdict"] = verdict(ask.problem, head["text"])
                yield {"event": "end", "side": side, "head": head}


def start(playground: Playground, ask: Comparison, side: int) -> Live:
    options = {**ask.options[side], "seed": ask.seed, "max_new_tokens": ask.length}
    return Live(playground.model, [ask.prompt], scheduler=ask.schedulers[side], **playground.given, **options)

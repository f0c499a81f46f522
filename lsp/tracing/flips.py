"""How often predictions change before they are committed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

from lsp.tracing.records import Trace


def flip_rate(traces: Iterable[Trace], *, tail: bool = True, between: tuple[float, float] = (0.25, 0.75)) -> float:
    """The share of open masks whose best token is another one than in the pass before, in the middle of decoding.

    `between` says which passes count, by the share of the tokens that are committed. Without the `tail`, only positions
    up to the end of the answer count: what follows it predicts the stop in every pass and hides what happens before.
    """
    flips = compared = 0
    for trace in traces:
        begin = len(trace.prompt)
        end = begin + (trace.max_new_tokens if tail else len(trace.tokens))
        committed: set[int] = set()
        for before, after in pairwise(trace.steps):
            committed.update(before.chosen)
            done = sum(begin <= position < end for position in committed) / max(1, end - begin)
            if between[0] <= done <= between[1]:
                earlier = dict(zip(before.masks_in_pass, before.tokens, strict=True))
                for position, token in zip(after.masks_in_pass, after.tokens, strict=True):
                    if position < end and position in earlier:
                        compared += 1
                        flips += token != earlier[position]
    return flips / compared if compared else math.nan

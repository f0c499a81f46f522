"""Device functions: log-odds and entropy of a row, from what `top2.merge` returns of it.

They are those of the clean logits: `clean` is that of the token, `high` the largest of the others, and their weights
`total` and `spread` are relative to it. `others`: how many ids there are besides the token and the suppressed ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .noise import LN2
from .top2 import distance

HIGHEST_LOG_ODDS = tl.constexpr(80.0)


@triton.jit
def log_odds_of(clean, high, second, total, others):
    """log(p / (1 - p)) of the token, at most 80; NaN if the row has one, which `second` shows."""
    above = tl.where(clean == high, 0.0, clean - high) - tl.log2(total) * LN2
    # Where all others are -inf, the weight relative to them says nothing.
    alone = tl.where(clean == high, 0.0 - tl.log2(others.to(tl.float32)) * LN2, HIGHEST_LOG_ODDS)
    log_odds = tl.minimum(tl.where(high == float("-inf"), alone, above), HIGHEST_LOG_ODDS)
    log_odds = tl.where(others == 0, float("inf"), log_odds)
    return tl.where(second == second, log_odds, float("nan"))


@triton.jit
def entropy_of(clean, high, second, total, spread, others):
    """The entropy of the softmax in nats. Its terms are all positive, so that it is precise where it is small."""
    top = tl.maximum(clean, high)
    own, rest = distance(clean, top), distance(high, top)
    e_own, e_rest = tl.exp(own), tl.exp(rest)
    more = tl.where(
        clean >= high, total * e_rest, total - 1.0 + e_own
    )  # the weight of all, relative to the top, is 1 more
    entropy = log1p(more) - (e_own * own + e_rest * (spread + rest * total)) / (1.0 + more)
    entropy = tl.where(top == float("-inf"), tl.log2(others.to(tl.float32) + 1.0) * LN2, entropy)
    return tl.where(second == second, entropy, float("nan"))


@triton.jit
def log1p(x):
    """log(1 + x), relatively precise for small x too."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log2(y) * LN2 * (x / (y - 1.0)))

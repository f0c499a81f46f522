"""The rule once more, straight from the paper and in plain Python: thresholds are enumerated, fractions are exact.

Shares no code and no shortcut with the package. Slow, and meant to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from lsp_kernels import PrefixRule


class Row(NamedTuple):
    token: int
    top1: float
    top2: float
    log_odds: float
    margin: float


def score_row(logits: Sequence[float], suppressed: set[int]) -> Row:
    allowed = [i for i in range(len(logits)) if i not in suppressed]
    numbers = [i for i in allowed if not math.isnan(logits[i])]
    top1 = max((logits[i] for i in numbers), default=-math.inf)
    token = min((i for i in numbers if logits[i] == top1 > -math.inf), default=allowed[0])
    if len(numbers) < len(allowed):
        return Row(token, top1 + 0.0, math.nan, math.nan, math.nan)
    others = [logits[i] for i in allowed if i != token]
    top2 = max(others, default=-math.inf)
    margin = 0.0 if top1 == top2 else float(np.float32(top1) - np.float32(top2))
    return Row(token, top1 + 0.0, top2 + 0.0, log_odds(top1, others), margin)


def log_odds(top1: float, others: list[float]) -> float:
    """log(p / (1 - p)) of the best token, at most 80."""
    if not others:
        return math.inf
    differences = [0.0 if z == top1 else z - top1 for z in others]
    largest = max(differences)
    if largest == -math.inf:
        return 80.0
    total = math.fsum(math.exp(d - largest) for d in differences)
    return min(80.0, -largest - math.log(total))


def run_above(margins: Sequence[float], threshold: float) -> int:
    """The paper's L'(tau): the run of margins, from the left, that exceed tau."""
    run = 0
    while run < len(margins) and margins[run] > threshold:
        run += 1
    return run


def candidate_length(margins: Sequence[float], rule: PrefixRule) -> int:
    n = len(margins)
    upper = math.floor(Fraction(round(rule.beta * 10**6), 10**6) * n)
    if rule.floor is not None:
        reach = run_above(margins, np.nextafter(np.float32(rule.floor), np.float32(-np.inf)))
        return min(n, max(1, upper), max(reach, 1))
    lo = max(1, math.ceil(Fraction(round(rule.alpha * 10**6), 10**6) * n))
    hi = min(n, max(lo, upper))
    lengths = {run_above(margins, threshold) for threshold in [-math.inf, *margins]}
    return max((m for m in lengths if lo <= m <= hi), default=hi)


def scored_rows(n: int, rule: PrefixRule) -> int:
    """How many rows the definition says the rule may look at."""
    upper = math.floor(Fraction(round(rule.beta * 10**6), 10**6) * n)
    if rule.floor is not None:
        return min(n, max(min(n, max(1, upper)), rule.min_length))
    lo = max(1, math.ceil(Fraction(round(rule.alpha * 10**6), 10**6) * n))
    return min(n, max(min(n, max(lo, upper)) + 1, rule.min_length))


def select(
    margins: Sequence[float],
    tokens: Sequence[int],
    rule: PrefixRule,
    delimiters: set[int],
    stops: set[int],
) -> tuple[int, bool]:
    """Commit length and whether a stop was committed, from the margins of all N active positions."""
    n = len(margins)
    if n == 0 or any(math.isnan(m) for m in margins[: scored_rows(n, rule)]):
        return 0, False
    margins = [0.0 if math.isnan(m) else m for m in margins]  # past the scored rows, where nothing is looked at
    candidate = length = candidate_length(margins, rule)
    if rule.snap:
        ends = [j for j in range(1, candidate + 1) if tokens[j - 1] in delimiters]
        near = [j for j in ends if candidate - j <= rule.window]
        if near:
            length = max(near)
        elif rule.no_delimiter == "minimum":
            length = rule.min_length
    length = min(n, max(rule.min_length, length))
    for j in range(1, length + 1):
        if tokens[j - 1] in stops:
            return j, True
    return length, False

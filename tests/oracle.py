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
    entropy: float
    clean: float  # the logit of the token without noise


class Draw(NamedTuple):
    """What the noise of a row is made of."""

    temperature: float  # a float32
    seed: int
    position: int
    number: int  # of the pass


def score_row(logits: Sequence[float], suppressed: set[int], draw: Draw | None = None, offset: int = 0) -> Row:
    allowed = [i for i in range(len(logits)) if i not in suppressed]
    numbers = [i for i in allowed if not math.isnan(logits[i])]
    noisy = {i: logits[i] if draw is None else logits[i] + draw.temperature * gumbel(draw, offset + i) for i in numbers}
    top1 = max(noisy.values(), default=-math.inf)
    token = min((i for i in numbers if noisy[i] == top1 > -math.inf), default=allowed[0])
    clean = logits[token] + 0.0 if token in noisy else -math.inf
    if len(numbers) < len(allowed):
        return Row(token + offset, top1 + 0.0, *[math.nan] * 4, clean)
    top2 = max((noisy[i] for i in allowed if i != token), default=-math.inf)
    margin = 0.0 if top1 == top2 else float(np.float32(top1) - np.float32(top2))
    odds = log_odds(logits[token], [logits[i] for i in allowed if i != token])
    h = entropy([logits[i] for i in allowed])
    return Row(token + offset, top1 + 0.0, top2 + 0.0, odds, margin, h, clean)


def entropy(logits: Sequence[float]) -> float:
    """Of the softmax, in nats; equal infinities share the probability."""
    highest = max(logits)
    weights = [1.0 if z == highest else math.exp(z - highest) for z in logits]
    total = math.fsum(weights)
    return math.fsum(-w / total * math.log(w / total) for w in weights if w > 0)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 as its authors describe it."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        high_a, low_a = divmod(a * 0xD2511F53, 2**32)
        high_c, low_c = divmod(c * 0xCD9E8D57, 2**32)
        a, b, c, d = high_c ^ b ^ k, low_c, high_a ^ d ^ m, low_a
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return [a, b, c, d]


def random_word(draw: Draw, token: int) -> int:
    high, low = divmod(draw.seed % 2**64, 2**32)
    return philox([token // 4, draw.position, draw.number, 0], [low, high])[token % 4]


def gumbel_of(word: int) -> float:
    """-log E with E = -log u, u = (word + 1/2) / 2^32. Both halves are exact before the logarithm."""
    exact = Fraction(2 * word + 1, 2**33)
    if word < 2**31:
        return -math.log(-math.log(float(exact)))
    return -math.log(-math.log1p(-float(1 - exact)))


def gumbel(draw: Draw, token: int) -> float:
    return gumbel_of(random_word(draw, token))


def log_odds(top1: float, others: list[float]) -> float:
    """log(p / (1 - p)) of the token with logit top1, at most 80."""
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

"""What earlier passes over a sequence have predicted. It belongs to the sequence, and is kept only if it is asked for.

Predictions are those without noise: a token that was drawn against the odds does not look like a change of mind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Predicted(NamedTuple):
    """What a pass predicted for its masks: best tokens and their log-odds by position, -1 and NaN where it has none."""

    tokens: np.ndarray
    log_odds: np.ndarray

    @classmethod
    def at(cls, where: np.ndarray, tokens: np.ndarray, log_odds: np.ndarray, length: int) -> Predicted:
        """Predictions for these positions of a sequence of this length."""
        out = cls(np.full(length, -1, dtype=np.int64), np.full(length, np.nan, dtype=np.float32))
        out.tokens[where], out.log_odds[where] = tokens, log_odds
        return out


class Distributions(NamedTuple):
    """The log-probabilities of all ids, float32 [n, V], at these n positions."""

    where: np.ndarray
    log_probs: np.ndarray

    def drift(self, before: Sequence[Distributions], length: int) -> np.ndarray:
        """KL(this, the first of those before) by position; infinite where there is none."""
        out = np.full(length, np.inf)
        for then in before[:1]:
            both, here, there = np.intersect1d(self.where, then.where, assume_unique=True, return_indices=True)
            out[both] = divergence(self.log_probs[here], then.log_probs[there])
        return out


class Log(Generic[T]):
    """One thing for each of the last passes over a sequence, by the number of the pass."""

    def __init__(self) -> None:
        self._noted: dict[int, T] = {}

    def note(self, number: int, what: T, keep: int) -> None:
        """Adds a pass, and forgets all but the last `keep`."""
        self._noted[number] = what
        for old in [n for n in self._noted if n <= number - keep]:
            del self._noted[old]

    def before(self, number: int, passes: int) -> list[T]:
        """The passes right before this one, the last one first: so many, or as many as were noted without a gap."""
        out = []
        for n in range(number - 1, number - 1 - passes, -1):
            if n not in self._noted:
                break
            out.append(self._noted[n])
        return out


class History:
    """What the last passes over a sequence predicted; empty unless a scheduler asks for it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.predicted: Log[Predicted] = Log()
        self.distributions: Log[Distributions] = Log()
        self.drifts: Log[np.ndarray] = Log()


def lasting(earlier: Sequence[Predicted], passes: int, where: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Whether each token was the best one at its position in each of so many earlier passes."""
    if len(earlier) < passes:
        return np.zeros(len(where), dtype=bool)
    same = [each.tokens[where] == tokens for each in earlier[:passes]]
    out: np.ndarray = np.logical_and.reduce(same) if same else np.ones(len(where), dtype=bool)
    return out


def divergence(now: np.ndarray, then: np.ndarray) -> np.ndarray:
    """KL(now, then) of each row of log-probabilities, in float64. What is impossible now counts nothing."""
    p = now.astype(np.float64)
    with np.errstate(invalid="ignore"):  # -inf minus -inf where an id is suppressed
        terms = np.exp(p) * (p - then.astype(np.float64))
    out: np.ndarray = np.where(np.isneginf(now), 0.0, terms).sum(axis=-1)
    return out

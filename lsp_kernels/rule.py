"""The selection rule: how many of a sequence's masked positions one pass commits.

``csrc/rule.h`` and ``triton/rule.py`` have the same steps under the same names. Everything here is exact integer
arithmetic or a comparison of float32 margins, so all three agree bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import as_integer

MILLION = 1_000_000
# Bits of a vocabulary's flags. SUPPRESSED_NEAR marks every id of a span that holds a suppressed id: where it is not
# set, a kernel need not look at the flags of the span's other ids.
DELIMITER, STOP, SUPPRESSED, SUPPRESSED_NEAR = 1, 2, 4, 8
SPAN = 16384


@dataclass(frozen=True)
class PrefixRule:
    """How much of the stable prefix a pass commits.

    ``PrefixRule()`` is the rule of the paper. A ``floor`` makes it conservative when the model is unsure: without one,
    a pass commits at least ``alpha`` of the masked positions, however small their margins are.

    Parameters
    ----------
    alpha, beta : float
        The candidate length lies in [ceil(alpha N), floor(beta N)], 0 < alpha <= beta <= 1, N being the number of
        masked positions. Both are held in millionths, so that the bounds are exact integers on every device.
    min_length : int
        L_min >= 1, the smallest commit length (N if fewer than L_min positions are masked).
    window : int
        W >= 0, how many tokens before the candidate's end a delimiter may lie.
    floor : float, optional
        Commit the positions before the first margin below this value, at least 1 and at most beta N of them.
        ``alpha`` is then not used. Compared in float32.
    snap : bool
        Whether to end at a delimiter.
    no_delimiter : {"minimum", "keep"}
        What to commit if the window holds no delimiter: ``min_length`` (the paper's formula) or the whole candidate.

    Examples
    --------
    >>> rule = PrefixRule(alpha=0.07, beta=0.29)
    >>> rule.lowest(100), rule.highest(100), rule.scored_rows(100)
    (7, 29, 30)
    >>> PrefixRule.guarded()
    PrefixRule(alpha=0.25, beta=1.0, min_length=1, window=16, floor=4.0, snap=False, no_delimiter='keep')
    """

    alpha: float = 0.25
    beta: float = 0.50
    min_length: int = 1
    window: int = 16
    floor: float | None = None
    snap: bool = True
    no_delimiter: Literal["minimum", "keep"] = "minimum"

    alpha_ppm: int = field(init=False, repr=False, compare=False)
    beta_ppm: int = field(init=False, repr=False, compare=False)
    arguments: tuple[Any, ...] = field(init=False, repr=False, compare=False)  # as the operators take the rule

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "floor"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | NoneType):
                raise TypeError(f"Invalid {name}: expected a number, got {value!r}")
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            ppm = round(value * MILLION) if value is not None and 0 < value <= 1 else 0
            object.__setattr__(self, f"{name}_ppm", ppm)
        for name, least in (("min_length", 1), ("window", 0)):
            object.__setattr__(self, name, as_integer(name, getattr(self, name), least))
        if self.beta_ppm == 0:
            raise ValueError(f"Invalid beta: expected 0 < beta <= 1 (in millionths), got {self.beta}")
        if self.floor is None and (self.alpha_ppm == 0 or self.alpha > self.beta):
            raise ValueError(
                f"Invalid alpha: expected 0 < alpha <= beta = {self.beta} (in millionths), got {self.alpha}"
            )
        if self.floor is not None and not self.floor >= 0:
            raise ValueError(f"Invalid floor: expected a number >= 0 or None, got {self.floor}")
        if not isinstance(self.snap, bool):
            raise TypeError(f"Invalid snap: expected True or False, got {self.snap!r}")
        if self.no_delimiter not in ("minimum", "keep"):
            raise ValueError(f"Invalid no_delimiter: expected 'minimum' or 'keep', got {self.no_delimiter!r}")
        keep = self.no_delimiter == "keep"
        arguments = (self.alpha_ppm, self.beta_ppm, self.min_length, self.window, self.floor, self.snap, keep)
        object.__setattr__(self, "arguments", arguments)

    @classmethod
    def of(
        cls, alpha: int, beta: int, min_length: int, window: int, floor: float | None, snap: bool, keep: bool
    ) -> PrefixRule:
        """The rule with these `arguments`."""
        no_delimiter: Literal["keep", "minimum"] = "keep" if keep else "minimum"
        return cls(alpha / MILLION, beta / MILLION, min_length, window, floor, snap, no_delimiter)

    @classmethod
    def guarded(cls) -> PrefixRule:
        """The preset for real models: commit every position before the first margin below 4, however many they are."""
        return cls(floor=4.0, beta=1.0, snap=False, no_delimiter="keep")

    # Step 1: the target range. `n` is a Python integer or a tensor of any integer dtype on any device; the result is a
    # Python integer or an int64 tensor. Narrower tensors are widened first, because alpha and beta are millionths.

    def lowest(self, n: Any) -> Any:
        """The smallest candidate length, ``lo``: max(1, ceil(alpha n)), or 1 with a floor. int64 for a tensor."""
        n = _widened(n)
        return _at_least(1, n * 0 if self.floor is not None else -(n * -self.alpha_ppm // MILLION))

    def highest(self, n: Any) -> Any:
        """The largest candidate length, ``hi``: min(n, max(lo, floor(beta n))). int64 for a tensor."""
        n = _widened(n)
        return _at_most(n, _at_least(self.lowest(n), n * self.beta_ppm // MILLION))

    def scored_rows(self, n: Any) -> Any:
        """M, the number of rows that the rule looks at. The rows after them cannot change the commit length.

        int64 for a tensor.
        """
        n = _widened(n)
        seen = self.highest(n) + (1 if self.floor is None else 0)
        return _at_most(n, _at_least(self.min_length, seen))

    # Steps 2 to 8 on a padded batch: margins and tokens [B, P + 1], whose last column is padding; n [B]. A prefix of
    # length j ends with column j - 1. What columns past scored_rows(n) hold does not matter.

    def select(self, margins: Tensor, tokens: Tensor, n: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
        """Commit length int64 [B] and finished bool [B] of every sequence."""
        lengths = torch.arange(1, margins.size(1) + 1, device=margins.device)
        scored = lengths <= self.scored_rows(n)[:, None]
        margins = margins.masked_fill(~scored, math.inf)

        candidate = self.stable_length(margins, lengths, n)
        length = self.snap_to_delimiter(has_flag(flags, tokens, DELIMITER), lengths, candidate)
        length = torch.minimum(length.clamp(min=self.min_length), n)
        length, finished = self.cut_at_stop(has_flag(flags, tokens, STOP), lengths, length)

        nothing = margins.isnan().any(1) | (n == 0)
        return length.masked_fill(nothing, 0), finished & ~nothing

    def stable_length(self, margins: Tensor, lengths: Tensor, n: Tensor) -> Tensor:
        """L', the candidate: the longest length in the target range that some threshold gives, else the range's end.

        With a floor: the number of positions before the first margin below it, at least 1 and at most the range's end.
        """
        prefix_min = margins.cummin(1).values
        hi = self.highest(n)
        if self.floor is not None:
            run = ((prefix_min >= self.floor) & (lengths <= hi[:, None])).sum(1)
            return torch.minimum(hi, run.clamp(min=1))
        new_minimum_follows = torch.zeros_like(prefix_min, dtype=torch.bool)
        new_minimum_follows[:, :-1] = prefix_min[:, 1:] < prefix_min[:, :-1]
        reachable = new_minimum_follows | (lengths == n[:, None])
        in_range = (lengths >= self.lowest(n)[:, None]) & (lengths <= hi[:, None])
        longest = (lengths * (reachable & in_range)).amax(1)
        return torch.where(longest > 0, longest, hi)

    def snap_to_delimiter(self, delimiter: Tensor, lengths: Tensor, candidate: Tensor) -> Tensor:
        """The length that ends with the last delimiter in the window; without one, as ``no_delimiter`` says."""
        if not self.snap:
            return candidate
        last = self.last_delimiter(delimiter, lengths, candidate)
        otherwise = candidate if self.no_delimiter == "keep" else torch.full_like(candidate, self.min_length)
        return torch.where(last > 0, last, otherwise)

    def last_delimiter(self, delimiter: Tensor, lengths: Tensor, candidate: Tensor) -> Tensor:
        """j*, the length that ends with the last delimiter in the window before the candidate's end; 0 without one."""
        back = candidate[:, None] - lengths
        return (lengths * (delimiter & (back >= 0) & (back <= self.window))).amax(1)

    def cut_at_stop(self, stop: Tensor, lengths: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """The length that ends with the first stop, if the committed tokens hold one, and whether they do."""
        inside = stop & (lengths <= length[:, None])
        first = torch.where(inside, lengths, lengths.size(0)).amin(1)
        finished = inside.any(1)
        return torch.where(finished, first, length), finished


def has_flag(flags: Tensor | None, tokens: Tensor, flag: int) -> Tensor:
    """Which tokens have a flag. An id outside the vocabulary has none."""
    if flags is None:
        return torch.zeros_like(tokens, dtype=torch.bool)
    known = (tokens >= 0) & (tokens < flags.size(0))
    return ((flags[tokens.clamp(0, flags.size(0) - 1)] & flag) != 0) & known


def _widened(n: Any) -> Any:
    """A Python integer as it is, an integer tensor as int64."""
    if not isinstance(n, Tensor):
        return n
    if n.is_floating_point() or n.is_complex() or n.dtype == torch.bool:
        raise TypeError(f"Invalid dtype of n: expected integers, got {n.dtype}")
    return n.long()


def _at_least(least: Any, x: Any) -> Any:
    return max(least, x) if isinstance(x, int) else torch.clamp(x, min=least)


def _at_most(most: Any, x: Any) -> Any:
    return min(most, x) if isinstance(x, int) else torch.minimum(most, x)

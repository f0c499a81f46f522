"""The results of the commit operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .errors import deprecated


class TokenStats(NamedTuple):
    """The best token of every row, and how sure the model is of it. Each tensor has the logits' shape without V.

    Attributes
    ----------
    tokens : Tensor, int64
        The lowest id that has the largest logit. With noise, a sample: the largest noisy logit.
    top1, top2 : Tensor, float32
        The two largest logits, noisy ones with noise. ``top2`` is NaN where the row holds a NaN.
    log_odds : Tensor, float32
        log(p / (1 - p)), p being the probability of the token under the logits without noise. At most 80; +inf where
        there is no other id, NaN where the row holds a NaN. Rank rows by it: it keeps the order that a float32
        probability loses near 1.
    entropy : Tensor, float32, or None
        Of softmax(logits) without noise, in nats, if it was asked for. NaN where the row holds a NaN.
    clean : Tensor, float32, or None
        The logit of the token without noise; None if there is no noise, then it is ``top1``.
    """

    tokens: Tensor
    top1: Tensor
    top2: Tensor
    log_odds: Tensor
    entropy: Tensor | None = None
    clean: Tensor | None = None

    @property
    def margins(self) -> Tensor:
        """top1 - top2, and 0 where they are equal (also where both are infinite)."""
        return torch.where(self.top1 == self.top2, 0.0, self.top1 - self.top2)

    @property
    def confidence(self) -> Tensor:
        """The probability of the token."""
        return torch.sigmoid(self.log_odds)

    @property
    def rest(self) -> Tensor:
        """Deprecated: ``-log_odds``."""
        deprecated("TokenStats.rest", "-TokenStats.log_odds")
        return -self.log_odds


class Commit(NamedTuple):
    """How many of each sequence's masked positions to commit, and the tokens and margins behind the choice.

    Attributes
    ----------
    lengths : Tensor, int32 [B]
        How many of the masked positions to commit, from the left; 0 where a scored row holds a NaN.
    finished : Tensor, bool [B]
        Whether the committed tokens end with a stop.
    tokens : Tensor, int64
        The best token of every scored row, -1 in the other rows. Shape of the logits without V.
    margins : Tensor, float32
        The margin of every scored row, -inf in the other rows. Shape of the logits without V.
    top1 : Tensor, float32
        The largest logit of every scored row, the noisy one with noise; -inf in the other rows.
    log_odds : Tensor, float32, or None
        As in `TokenStats`, if they were asked for; -inf in rows that are not scored.
    """

    lengths: Tensor
    finished: Tensor
    tokens: Tensor
    margins: Tensor
    top1: Tensor
    log_odds: Tensor | None = None

    @property
    def confidence(self) -> Tensor | None:
        """The probability of the token of every row, if the log-odds were asked for."""
        return None if self.log_odds is None else torch.sigmoid(self.log_odds)

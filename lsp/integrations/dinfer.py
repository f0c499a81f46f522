"""Decoders for dInfer: objects with the `decode` of its `ParallelDecoder`, and the ids that its runners read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lsp.integrations._common import MaskedPrefix, check_block, refuse_noise
from lsp_kernels import PrefixRule, Vocabulary, token_stats
from lsp_kernels.errors import as_integer, fail_shape

__all__ = ["PrefixParallelDecoder", "ThresholdParallelDecoder"]


class ParallelDecoder:
    """What both decoders share: dInfer's attributes, and where a block is."""

    def __init__(self, temperature: float, remasking: str, mask_id: int, eos_id: int) -> None:
        refuse_noise(temperature, remasking)
        self.temperature, self.remasking = temperature, remasking
        self.mask_id, self.eos_id = as_integer("mask_id", mask_id, 0), as_integer("eos_id", eos_id, 0)

    def block_init(self, block_x: Tensor, block_id: int) -> None:
        """Called before each block; there is nothing to prepare."""

    def block(self, logits: Tensor, block_start: int, block_end: int, x: Any) -> Tensor:
        """The ids of the block, from a tensor or a `TokenArray`."""
        ids: Tensor = x[:, block_start:block_end]
        if logits.dim() == 3 and logits.size(1) != ids.size(1):
            fail_shape("logits", f"{ids.size(1)} rows, from {block_start} to {block_end} of x", logits)
        check_block(logits, ids)
        return ids


class ThresholdParallelDecoder(ParallelDecoder):
    """dInfer's `ThresholdParallelDecoder` on `token_stats`: the same tokens without a softmax over the vocabulary.

    Parameters
    ----------
    temperature, remasking
        0 and ``"low_confidence"``; anything else is refused.
    threshold : float
        Every mask whose confidence reaches it is written, and always those within 1e-5 of the best one.
    mask_id, eos_id : int
    use_float64 : bool
        Plays no part: confidences are as exact as those of a softmax in float64, but for 3e-7.

    Examples
    --------
    >>> import torch
    >>> from lsp.integrations.dinfer import ThresholdParallelDecoder
    >>> decoder = ThresholdParallelDecoder(0, threshold=0.9, mask_id=9, eos_id=2)
    >>> x, logits = torch.tensor([[7, 9, 9]]), torch.zeros(1, 2, 10)
    >>> logits[0, 0, 4], logits[0, 1, 5] = 8.0, 1.0
    >>> decoder.decode(logits, 1, 3, x)
    >>> x
    tensor([[7, 4, 9]])
    """

    def __init__(
        self,
        temperature: float,
        threshold: float,
        remasking: str = "low_confidence",
        mask_id: int = 126336,
        eos_id: int = 126081,
        use_float64: bool = False,
    ) -> None:
        super().__init__(temperature, remasking, mask_id, eos_id)
        self.threshold, self.use_float64 = threshold, use_float64

    def decode(
        self, logits: Tensor, block_start: int, block_end: int, x: Any, iter_threshold: float | None = None
    ) -> None:
        """Writes the tokens that are sure enough into ``x[:, block_start:block_end]``.

        `logits` [B, block, V] are those of the block. `iter_threshold` replaces the threshold in this call.
        """
        ids = self.block(logits, block_start, block_end, x)
        stats = token_stats(logits)
        masked = ids == self.mask_id
        if bool((stats.log_odds.isnan() & masked).any()):
            raise ValueError("Invalid logits: expected numbers, got NaN at a masked position")
        masked &= stats.tokens != self.mask_id
        confidence = torch.where(masked, torch.sigmoid(stats.log_odds.double()), -torch.inf)
        best = confidence.amax(1, keepdim=True)
        enough = (best - 1e-5).clamp(max=self.threshold if iter_threshold is None else iter_threshold)
        x[:, block_start:block_end] = torch.where(masked & (confidence >= enough), stats.tokens, ids)


class PrefixParallelDecoder(ParallelDecoder):
    """The longest stable prefix of the masks of a block, for dInfer's runners.

    Parameters
    ----------
    temperature, remasking
        0 and ``"low_confidence"``; anything else is refused.
    mask_id, eos_id : int
        What follows a committed stop in its block is filled up with `eos_id`.
    rule : PrefixRule, optional
        By default `PrefixRule.guarded`.
    vocabulary : Vocabulary, optional
        Delimiters and stops; by default `eos_id` is the only stop.

    Examples
    --------
    >>> import torch
    >>> from lsp.integrations.dinfer import PrefixParallelDecoder
    >>> decoder = PrefixParallelDecoder(mask_id=9, eos_id=2)
    >>> x, logits = torch.tensor([[7, 9, 9, 9]]), torch.zeros(1, 3, 10)
    >>> logits[0, 0, 4], logits[0, 1, 5], logits[0, 2, 6] = 8.0, 5.0, 1.0
    >>> decoder.decode(logits, 1, 4, x)
    >>> x
    tensor([[7, 4, 5, 9]])
    """

    def __init__(
        self,
        temperature: float = 0.0,
        remasking: str = "low_confidence",
        mask_id: int = 126336,
        eos_id: int = 126081,
        *,
        rule: PrefixRule | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        super().__init__(temperature, remasking, mask_id, eos_id)
        self.threshold = 0.0  # some runners read it, and give `decode` one for each pass; the rule has none
        self.prefix = MaskedPrefix(mask_id, rule, vocabulary, stops=(eos_id,), fill=eos_id)

    def decode(
        self, logits: Tensor, block_start: int, block_end: int, x: Any, iter_threshold: float | None = None
    ) -> None:
        """Writes the prefix into ``x[:, block_start:block_end]``; `logits` [B, block, V] are those of the block.

        `iter_threshold` plays no part.
        """
        ids = self.block(logits, block_start, block_end, x)
        x[:, block_start:block_end] = self.prefix(logits, ids)

"""`get_transfer_index` of Fast-dLLM (v1) and d3LLM, without their softmax over the vocabulary in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lsp.integrations._common import check_block, refuse_noise
from lsp_kernels import token_stats
from lsp_kernels.errors import check_device, check_tensor, fail_dtype, fail_shape, values_are_free

__all__ = ["get_transfer_index"]


def get_transfer_index(
    logits: Tensor,
    temperature: float,
    remasking: str,
    mask_index: Tensor,
    x: Tensor,
    num_transfer_tokens: Tensor | Sequence[int] | None,
    threshold: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The best token of every masked position, and which of them to write in this step.

    Parameters
    ----------
    logits : Tensor, float32, bfloat16 or float16 [B, L, V]
        Any strides, as long as the last dimension is contiguous.
    temperature, remasking
        0 and ``"low_confidence"``; anything else is refused.
    mask_index : Tensor, bool [B, L]
        The positions that may be written.
    x : Tensor, int64 [B, L]
        The ids so far.
    num_transfer_tokens : Tensor, integers [B] or [B, 1]
        How many positions of each row to write, the most confident ones. Plays no part with a threshold.
    threshold : float, optional
        Every position whose confidence reaches it is written, and always the most confident one.

    Returns
    -------
    x0 : Tensor, int64 [B, L]
        The best tokens where `mask_index` says so, `x` elsewhere.
    transfer_index : Tensor, bool [B, L]
        What to write: ``x[transfer_index] = x0[transfer_index]``. Only masked positions, also where there are fewer of
        them than `num_transfer_tokens`; the original then adds others, which hold what they held.

    Examples
    --------
    >>> import torch
    >>> from lsp.integrations.fast_dllm import get_transfer_index
    >>> logits = torch.tensor([[[0.0, 5.0, 1.0], [4.0, 0.0, 0.0], [0.0, 0.0, 9.0]]])
    >>> x = torch.tensor([[7, 9, 9]])
    >>> get_transfer_index(logits, 0.0, "low_confidence", x == 9, x, torch.tensor([1]))
    (tensor([[7, 0, 2]]), tensor([[False, False,  True]]))
    """
    refuse_noise(temperature, remasking)
    check_block(logits, x)
    check_tensor("mask_index", mask_index)
    if mask_index.shape != x.shape:
        fail_shape("mask_index", f"{list(x.shape)} as x", mask_index)
    if mask_index.dtype != torch.bool:
        fail_dtype("mask_index", "bool", mask_index)
    check_device("mask_index", mask_index, x)
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise TypeError(f"Invalid threshold: expected a number or None, got {threshold!r}")

    stats = token_stats(logits)
    if bool((stats.log_odds.isnan() & mask_index).any()):
        raise ValueError("Invalid logits: expected numbers, got NaN at a masked position")
    log_odds = torch.where(mask_index, stats.log_odds, -math.inf)
    order = (-log_odds).argsort(dim=1, stable=True)  # the most confident first, ties to the left
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(x.size(1), device=x.device).expand_as(order))
    if threshold is None:
        chosen = rank < _counts(num_transfer_tokens, x)[:, None]
    else:
        chosen = (torch.sigmoid(log_odds.double()) >= threshold) | (rank == 0)
    return torch.where(mask_index, stats.tokens, x), chosen & mask_index


def _counts(given: Tensor | Sequence[int] | None, x: Tensor) -> Tensor:
    """How many positions of each row, int64 [B]."""
    if given is None:
        raise TypeError("Invalid num_transfer_tokens: expected integers [B] without a threshold, got None")
    counts = torch.as_tensor(given, device=x.device)
    if counts.dim() == 2 and counts.size(1) == 1:
        counts = counts[:, 0]
    if list(counts.shape) != [x.size(0)]:
        fail_shape("num_transfer_tokens", f"[{x.size(0)}] or [{x.size(0)}, 1]", counts)
    if counts.is_floating_point() or counts.is_complex() or counts.dtype == torch.bool:
        fail_dtype("num_transfer_tokens", "integers", counts)
    if values_are_free(counts):
        for b, count in enumerate(counts.tolist()):
            if not 0 <= count <= x.size(1):
                raise ValueError(f"Invalid num_transfer_tokens[{b}]: expected 0 to {x.size(1)}, got {count}")
    return counts

"""`get_transfer_index` and `get_transfer_index_dynamic` of Fast-dLLM (v1) and d3LLM, without their float64 softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lsp.integrations._common import check_block
from lsp_kernels import token_stats
from lsp_kernels.errors import check_device, check_tensor, fail_dtype, fail_shape, values_are_free

__all__ = ["get_transfer_index", "get_transfer_index_dynamic"]


def get_transfer_index(
    logits: Tensor,
    temperature: float,
    remasking: str,
    mask_index: Tensor,
    x: Tensor,
    num_transfer_tokens: Tensor | Sequence[int] | None,
    threshold: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The token proposed for every masked position, and which of them to write in this step.

    Parameters
    ----------
    logits : Tensor, float32, bfloat16 or float16 [B, L, V]
        Any strides, as long as the last dimension is contiguous.
    temperature : float
        Scale of the Gumbel noise under which tokens are drawn; 0 takes the best token. Drawn in float64 from torch's
        global generator, as the original does, so that the same seed gives the same tokens.
    remasking : {"low_confidence", "random"}
        Whether positions are ranked by the clean probability of their token, or at random.
    mask_index : Tensor, bool [B, L]
        The positions that may be written.
    x : Tensor, int64 [B, L]
        The ids so far.
    num_transfer_tokens : Tensor, integers [B] or [B, 1]
        How many positions of each row to write, the most confident ones. Plays no part with a threshold.
    threshold : number, optional
        A number, or a tensor or array that holds one. Every position whose confidence reaches it is written, and always
        the most confident one.

    Returns
    -------
    x0 : Tensor, int64 [B, L]
        The proposed tokens where `mask_index` says so, `x` elsewhere.
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
    bound = None if threshold is None else _number("threshold", threshold)
    found = _propose(logits, temperature, remasking, mask_index, x)
    if bound is None:
        chosen = found.rank < _counts(num_transfer_tokens, x)[:, None]
    else:
        chosen = (found.confidence >= bound) | (found.rank == 0)
    return torch.where(mask_index, found.tokens, x), chosen & mask_index


def get_transfer_index_dynamic(
    logits: Tensor,
    temperature: float,
    remasking: str,
    mask_index: Tensor,
    x: Tensor,
    num_transfer_tokens: Tensor | Sequence[int] | None = None,
    factor: float | Tensor = 1,
) -> tuple[Tensor, Tensor]:
    """As `get_transfer_index`, with a number of positions that follows from their confidences.

    The n most confident are written as long as the n-th has a confidence of at least 1 - factor / (n + 1), and at least
    one; all, if only the last one misses its bound. `num_transfer_tokens` plays no part, as in the original.

    Examples
    --------
    >>> import torch
    >>> from lsp.integrations.fast_dllm import get_transfer_index_dynamic
    >>> logits = torch.tensor([[[9.0, 0.0], [0.1, 0.0], [0.1, 0.0]]])
    >>> x = torch.tensor([[7, 7, 7]])
    >>> get_transfer_index_dynamic(logits, 0.0, "low_confidence", x == 7, x)[1]
    tensor([[ True, False, False]])
    """
    scale = _number("factor", factor)
    found = _propose(logits, temperature, remasking, mask_index, x)
    masks = mask_index.sum(1, keepdim=True)
    place = found.rank + 1  # 1 for the most confident
    misses = (found.confidence < 1 - scale / (place + 1)) & (found.rank > 0) & mask_index
    first_miss = torch.where(misses, place, masks + 1).amin(1, keepdim=True)
    chosen = (place < first_miss) | (first_miss >= masks)
    return torch.where(mask_index, found.tokens, x), chosen & mask_index


class Proposal(NamedTuple):
    """A token for every position, its confidence in float64, and its rank among the masks of its row, from 0."""

    tokens: Tensor
    confidence: Tensor
    rank: Tensor


def _propose(logits: Tensor, temperature: float, remasking: str, mask_index: Tensor, x: Tensor) -> Proposal:
    check_block(logits, x)
    check_tensor("mask_index", mask_index)
    if mask_index.shape != x.shape:
        fail_shape("mask_index", f"{list(x.shape)} as x", mask_index)
    if mask_index.dtype != torch.bool:
        fail_dtype("mask_index", "bool", mask_index)
    check_device("mask_index", mask_index, x)
    if remasking not in ("low_confidence", "random"):
        raise ValueError(f"Invalid remasking: expected 'low_confidence' or 'random', got {remasking!r}")
    scale = _number("temperature", temperature)
    if not 0 <= scale < math.inf:
        raise ValueError(f"Invalid temperature: expected a finite number >= 0, got {temperature!r}")
    stats = token_stats(logits)
    if bool((stats.log_odds.isnan() & mask_index).any()):
        raise ValueError("Invalid logits: expected numbers, got NaN at a masked position")
    tokens, log_odds = stats.tokens, stats.log_odds.double()
    confidence, key = torch.sigmoid(log_odds), log_odds  # log-odds tell apart what rounds to a probability of 1
    if scale:
        noise = torch.rand_like(logits, dtype=torch.float64)
        tokens = (logits.double() - scale * (-noise.log()).log()).argmax(-1)
        drawn = logits.gather(-1, tokens[..., None])[..., 0].double()
        confidence = key = confidence * (drawn - stats.top1.double()).exp()
    if remasking == "random":
        confidence = key = torch.rand(x.shape, device=x.device)
    key = torch.where(mask_index, key, -math.inf)
    order = (-key).argsort(dim=1, stable=True)  # the most confident first, ties to the left
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(x.size(1), device=x.device).expand_as(order))
    return Proposal(tokens, confidence, rank)


def _number(name: str, value: Any) -> float:
    """A number from Python, numpy or torch."""
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"Invalid {name}: expected a number, got {value!r}") from None


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

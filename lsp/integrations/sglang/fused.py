"""The steps of SGLang's ``LowConfidence`` and ``JointThreshold`` on confidences that need no softmax of all logits."""

from __future__ import annotations

import torch
from torch import Tensor

from lsp_kernels import token_stats

__all__ = ["confidences", "joint_threshold", "low_confidence", "penalise"]


def confidences(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best token of every row and its probability, rounded to the dtype of the logits as a softmax is.

    Examples
    --------
    >>> import torch
    >>> confidences(torch.tensor([[0.0, 3.0, 0.0]]))
    (tensor([1]), tensor([0.9094]))
    """
    stats = token_stats(logits)
    return stats.tokens, stats.confidence.to(logits.dtype)


def low_confidence(logits: Tensor, ids: Tensor, masked: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Every mask above the threshold, or the most confident one of its block.

    Parameters
    ----------
    logits : Tensor [B, L, V]
    ids : Tensor, int64 [B, L]
    masked : Tensor, bool [B, L]
    threshold : float

    Returns
    -------
    ids : Tensor, int64 [B, L]
    done : Tensor, bool [B]
        Which blocks had no mask left.
    """
    tokens, confidence = confidences(logits)
    confidence = torch.where(masked, confidence, -torch.inf)
    chosen = confidence > threshold
    best = torch.zeros_like(chosen).scatter(1, confidence.argmax(1, keepdim=True), True)
    chosen = torch.where(chosen.any(1, keepdim=True), chosen, best) & masked
    return torch.where(chosen, tokens, ids), ~masked.any(1)


def joint_threshold(
    logits: Tensor,
    ids: Tensor,
    prompt: Tensor,
    mask_id: int,
    threshold: float,
    edit_threshold: float,
    resting: Tensor,
    spent: Tensor,
) -> tuple[Tensor, Tensor]:
    """Masks above a threshold become tokens, and tokens that the model would replace are replaced.

    Parameters
    ----------
    logits : Tensor [B, L, V]
    ids : Tensor, int64 [B, L]
    prompt : Tensor, bool [B, L]
        Positions that stay as they are.
    mask_id : int
    threshold, edit_threshold : float
    resting : Tensor, bool [B]
        Blocks that were finished before.
    spent : Tensor, bool [B]
        Blocks that may not edit again once they have no mask.

    Returns
    -------
    ids : Tensor, int64 [B, L]
    changed : Tensor, bool [B]
        Whether a block was written to; if not, it is finished.
    """
    tokens, confidence = confidences(logits)
    masked = (ids == mask_id) & ~prompt
    has_mask = masked.any(1, keepdim=True)
    ranked = torch.where(masked, confidence, -torch.inf)
    sure = ranked > threshold
    best = torch.zeros_like(sure).scatter(1, ranked.topk(1, dim=1).indices, True)
    filled = torch.where(sure.any(1, keepdim=True), sure, best & has_mask)
    edited = (confidence > edit_threshold) & (ids != tokens) & ~masked & ~prompt
    idle = resting | (spent & ~has_mask[:, 0])
    written = (filled | edited) & ~idle[:, None]
    return torch.where(written, tokens, ids), written.any(1)


def penalise(logits: Tensor, ids: Tensor, penalty: float) -> None:
    """Takes the penalty from the logit of every token's left neighbour, in place. `logits` [B, L, V], `ids` [B, L]."""
    before = ids[:, :-1, None]
    amount = torch.full_like(before, -penalty, dtype=logits.dtype)
    logits[:, 1:].scatter_add_(2, before, amount)

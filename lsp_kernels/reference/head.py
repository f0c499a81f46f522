"""The definition of the head operations: float32 logits, then the commit operations on them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..results import LinearCommit, TokenStats
from ..rule import PrefixRule
from .commit import Tables, commit_prefix, token_stats


def linear_token_stats(
    hidden: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    vocabulary: Tables | None = None,
    id_offset: int = 0,
) -> TokenStats:
    """`token_stats` of hidden times weight; the ids begin with `id_offset`."""
    stats = token_stats(_logits(hidden, weight, bias), vocabulary=vocabulary)
    return stats._replace(tokens=stats.tokens + id_offset)


def linear_commit_prefix(
    hidden: Tensor,
    weight: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    bias: Tensor | None = None,
    vocabulary: Tables | None = None,
) -> LinearCommit:
    """`commit_prefix` of hidden times weight."""
    logits = _logits(hidden, weight, bias)
    commit = commit_prefix(logits, cu_rows, n_active, starts, rule=rule, vocabulary=vocabulary)
    top1 = token_stats(logits, vocabulary=vocabulary).top1
    return LinearCommit(*commit, top1.masked_fill(commit.tokens < 0, -math.inf))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits in float32: products of 16-bit values are exact there, and only the sums are rounded."""
    exact = torch.promote_types(hidden.dtype, torch.float32)
    out = hidden.detach().to(exact) @ weight.detach().to(exact).T
    return out if bias is None else out + bias.detach().to(exact)

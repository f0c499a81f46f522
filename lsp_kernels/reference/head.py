"""The definition of the head operations: float32 logits, then the commit operations on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..results import Commit, TokenStats
from ..rule import PrefixRule
from .commit import Sampling, Tables, commit_prefix, token_stats


def linear_token_stats(
    hidden: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    vocabulary: Tables | None = None,
    id_offset: int = 0,
    noise: Sampling | None = None,
    entropy: bool = False,
) -> TokenStats:
    """`token_stats` of hidden times weight."""
    logits = linear_logits(hidden, weight, bias)
    return token_stats(logits, vocabulary=vocabulary, id_offset=id_offset, noise=noise, entropy=entropy)


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
    noise: Sampling | None = None,
    log_odds: bool = False,
) -> Commit:
    """`commit_prefix` of hidden times weight."""
    options: dict[str, Any] = {"rule": rule, "vocabulary": vocabulary, "noise": noise, "log_odds": log_odds}
    return commit_prefix(linear_logits(hidden, weight, bias), cu_rows, n_active, starts, **options)


def linear_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits in float32: products of 16-bit values are exact there, and only the sums are rounded."""
    exact = torch.promote_types(hidden.dtype, torch.float32)
    out = hidden.detach().to(exact) @ weight.detach().to(exact).T
    return out if bias is None else out + bias.detach().to(exact)

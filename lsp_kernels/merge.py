"""Statistics of the shards of a vocabulary, joined."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ._widest import widest
from .errors import check_device, check_kind, fail_shape
from .reference.commit import HIGHEST_LOG_ODDS
from .results import TokenStats


def merge_token_stats(parts: Sequence[TokenStats]) -> TokenStats:
    """The statistics of rows whose ids were divided into shards, from those of each shard.

    Parameters
    ----------
    parts : sequence of TokenStats
        One per shard, of the same rows, in any order and of any sizes; their tokens are ids of the whole vocabulary
        (`linear_token_stats` with ``id_offset``). The shards have no id in common.

    Returns
    -------
    TokenStats
        Tokens, top1 and top2 are those of the whole rows bit for bit, log-odds to 1e-5. A NaN in a shard survives.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import linear_token_stats, merge_token_stats
    >>> hidden, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> left, right = linear_token_stats(hidden, weight[:1]), linear_token_stats(hidden, weight[1:], id_offset=1)
    >>> merge_token_stats([left, right]).tokens
    tensor([2])
    """
    check_parts(parts)
    if len(parts) == 1:
        return parts[0]
    tokens, top1, top2, log_odds = (torch.stack(column) for column in zip(*parts, strict=True))  # [shards, ...]
    best = top1.amax(0)
    winners = top1 == best
    token = tokens.masked_fill(~winners, torch.iinfo(torch.int64).max).amin(0)  # of equal logits the lowest id
    owner = winners & (tokens == token)
    second = torch.maximum(top2.amax(0), top1.masked_fill(owner, -math.inf).amax(0))
    # Everything relative to the best logit, also where that is infinite: the other ids of each shard, and what lost.
    below = torch.where(winners, 0.0, widest(top1) - widest(best))
    others = torch.cat([below - widest(log_odds), below.masked_fill(owner, -math.inf)]).logsumexp(0)
    odds = (0.0 - others).clamp(max=HIGHEST_LOG_ODDS).float()
    return TokenStats(token, best, second, torch.where(second.isnan(), math.nan, odds))


def check_parts(parts: Sequence[TokenStats]) -> None:
    """Raises unless there is at least one part, and all are statistics of the same rows."""
    if not isinstance(parts, Sequence) or isinstance(parts, TokenStats):
        raise TypeError(f"Invalid parts: expected a list of TokenStats, one per shard, got a {type(parts).__name__}")
    if not parts:
        raise ValueError("Invalid parts: expected the TokenStats of at least one shard, got none")
    first: Tensor | None = None
    for i, part in enumerate(parts):
        check_kind(f"parts[{i}]", part, TokenStats)
        for name, tensor in part._asdict().items():
            check_kind(f"parts[{i}].{name}", tensor, Tensor)
            first = tensor if first is None else first
            check_device(f"parts[{i}].{name}", tensor, first)
            if tensor.shape != first.shape:
                fail_shape(f"parts[{i}].{name}", str(list(first.shape)), tensor)

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
        Tokens, top1, top2 and clean logits are those of the whole rows bit for bit, log-odds and entropy to 1e-5. A NaN
        in a shard survives.

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
    tokens, top1, top2, log_odds = (torch.stack(column) for column in list(zip(*parts, strict=True))[:4])
    best = top1.amax(0)
    winners = top1 == best
    token = tokens.masked_fill(~winners, torch.iinfo(torch.int64).max).amin(0)  # of equal logits the lowest id
    owner = winners & (tokens == token)
    second = torch.maximum(top2.amax(0), top1.masked_fill(owner, -math.inf).amax(0))
    nan = second.isnan()
    noisy = parts[0].clean is not None
    clean = torch.stack([part.clean for part in parts]) if noisy else top1  # type: ignore[misc]
    chosen = clean.masked_fill(~owner, -math.inf).amax(0)
    # Everything relative to the logit of the token, also where that is infinite.
    own = torch.where(clean == chosen, 0.0, widest(clean) - widest(chosen))  # what each shard has chosen
    others = own - widest(log_odds)  # the rest of each shard
    lost = torch.cat([others, own.masked_fill(owner, -math.inf)]).logsumexp(0)
    odds = (0.0 - lost).clamp(max=HIGHEST_LOG_ODDS).float().masked_fill(nan, math.nan)
    entropy = None
    if parts[0].entropy is not None:
        weights = torch.logaddexp(own, others)  # of each shard
        within = torch.stack([part.entropy for part in parts])  # type: ignore[misc]
        entropy = _joined_entropy(weights, within).masked_fill(nan, math.nan)
    return TokenStats(token, best, second, odds, entropy, chosen if noisy else None)


def _joined_entropy(weights: Tensor, entropies: Tensor) -> Tensor:
    """The entropy of all ids, from the log-weight and the entropy of each shard."""
    p = weights.softmax(0)
    among: Tensor = torch.special.entr(p).sum(0)
    return (among + (p * widest(entropies)).masked_fill(p == 0, 0.0).sum(0)).float()


def check_parts(parts: Sequence[TokenStats]) -> None:
    """Raises unless there is at least one part, and all are statistics of the same rows."""
    if not isinstance(parts, Sequence) or isinstance(parts, TokenStats):
        raise TypeError(f"Invalid parts: expected a list of TokenStats, one per shard, got a {type(parts).__name__}")
    if not parts:
        raise ValueError("Invalid parts: expected the TokenStats of at least one shard, got none")
    first = parts[0]
    for i, part in enumerate(parts):
        check_kind(f"parts[{i}]", part, TokenStats)
        for name, tensor in part._asdict().items():
            if name in ("entropy", "clean") and (tensor is None) != (getattr(first, name) is None):
                expected = "all parts to have it or none"
                raise ValueError(f"Invalid parts[{i}].{name}: expected {expected}, got one that differs from parts[0]")
            if tensor is None and name in ("entropy", "clean"):
                continue
            check_kind(f"parts[{i}].{name}", tensor, Tensor)
            check_device(f"parts[{i}].{name}", tensor, first.tokens)
            if tensor.shape != first.tokens.shape:
                fail_shape(f"parts[{i}].{name}", str(list(first.tokens.shape)), tensor)

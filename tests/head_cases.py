"""What the tests of the head share: the cases of the commit by the head's operations, and products beside float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lsp_kernels import Commit, TokenStats


class ByIdentity:
    """The commit operations on given logits, by the head operations: hidden states of zeros and a one pick a column.

    Every product and sum is exact, so the results are those of the logits bit for bit.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    @staticmethod
    def factors(logits: Tensor) -> tuple[Tensor, Tensor]:
        rows = logits.reshape(math.prod(logits.shape[:-1]), logits.size(-1))
        size = max(len(rows), 1)
        hidden = torch.eye(size, dtype=logits.dtype)[: len(rows)]
        hidden[rows.isnan().all(-1)] = math.nan
        weight = torch.zeros(logits.size(-1), size, dtype=logits.dtype)
        weight[:, : len(rows)] = rows.nan_to_num(0.0).T
        return hidden.view(*logits.shape[:-1], size), weight

    def commit_prefix(self, logits: Tensor, **arguments: Any) -> Commit:
        return self.backend.linear_commit_prefix(*self.factors(logits), **arguments)

    def token_stats(self, logits: Tensor, **arguments: Any) -> TokenStats:
        return self.backend.linear_token_stats(*self.factors(logits), **arguments)


def factors(rows: int, size: int, ids: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random hidden states [rows, size] and weights [ids, size]."""
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(n, size, generator=generator).to(dtype) for n in (rows, ids))
    return hidden, weight


def check_products(stats: TokenStats, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Every result is that of exact logits, but for the error that the docstring states."""
    logits = hidden.double() @ weight.double().T + (0 if bias is None else bias.double())
    bound = hidden.size(-1) * 2**-23 * hidden.double().norm(dim=-1, keepdim=True) * weight.double().norm(dim=-1)
    worst = (bound + (0 if bias is None else 2**-23 * logits.abs())).amax(-1)  # adding the bias rounds once more
    top = logits.topk(2)
    for got, expected in ((stats.top1, top.values[..., 0]), (stats.top2, top.values[..., 1])):
        assert ((got.double() - expected).abs() <= worst + 1e-30).all()
    sure = top.values[..., 0] - top.values[..., 1] > 2 * worst
    assert (stats.tokens == top.indices[..., 0])[sure].all()
    others = logits.scatter(-1, stats.tokens[..., None], -math.inf)
    chosen = logits.gather(-1, stats.tokens[..., None])[..., 0]
    odds = (chosen - others.logsumexp(-1)).clamp(max=80)
    assert ((stats.log_odds.double() - odds).abs() <= 2 * worst + 2e-5).all()

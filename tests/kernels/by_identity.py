"""The head operations on given logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import lsp_kernels


class ByIdentity:
    """The commit operations on given logits, by the head operations: hidden states of zeros and a one pick a column.

    Every product and sum is exact, so the results are those of the logits bit for bit.
    """

    def __init__(self, backend: object) -> None:
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

    def commit_prefix(self, logits: Tensor, **arguments: object) -> lsp_kernels.Commit:
        return self.backend.linear_commit_prefix(*self.factors(logits), **arguments)

    def token_stats(self, logits: Tensor, **arguments: object) -> lsp_kernels.TokenStats:
        return self.backend.linear_token_stats(*self.factors(logits), **arguments)

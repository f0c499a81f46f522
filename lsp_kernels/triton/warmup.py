"""Which calls make Triton compile every commit kernel that calls of one kind may need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import commit
from .configs.commit import split_counts


def compile_commit(
    logits: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    tables: tuple[Tensor | None, Tensor | None, int],
    rule: tuple[Any, ...],
    noise: bool,
    log_odds: bool,
    entropy: bool,
) -> None:
    """Runs the three operations on one row with every number of splits, aligned to 16 bytes and not.

    A kernel depends on the dtype, on which arguments and results there are, on the rule's flags, on the splits, on the
    alignment, with noise on whether `id_offset` is a multiple of 4 (here it is), and on nothing else, so these calls
    stand for those with any number of rows, pointers and strides.
    """

    def one(tensor: Tensor | None, *values: int) -> Tensor | None:
        return None if tensor is None else torch.tensor(values, dtype=torch.int32, device=logits.device)

    sequences = (one(cu_rows, 0, 1), one(n_active, 1), one(starts, 0))
    for row in _rows(logits):
        table = torch.zeros(*row.shape[:-1], 3, dtype=torch.int64, device=row.device) if noise else None
        for splits in split_counts():
            commit.token_stats(row, *tables, 0, table, entropy, None, None, splits=splits)
            commit.commit_prefix(row, *sequences, *tables, *rule, table, log_odds, None, None, splits=splits)
    margins = torch.zeros([1] * (logits.dim() - 1), device=logits.device)
    commit.select_prefix(margins, margins.long(), *sequences, tables[0], *rule)


def _rows(logits: Tensor) -> Iterator[Tensor]:
    """A row that is aligned, and one that is not."""
    size = logits.size(-1)
    for offset in (0, 1):
        yield logits.new_zeros(size + offset)[offset:].view(*[1] * (logits.dim() - 1), size)

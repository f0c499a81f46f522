"""Which calls make Triton compile every commit, head or block kernel that calls of one kind may need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import block, commit, head
from .configs.commit import split_counts
from .configs.head import tiles_of


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
    sequences = _one_sequence(cu_rows, n_active, starts)
    for row in _rows(logits):
        table = torch.zeros(*row.shape[:-1], 3, dtype=torch.int64, device=row.device) if noise else None
        for splits in split_counts():
            commit.token_stats(row, *tables, 0, table, entropy, None, None, splits=splits)
            commit.commit_prefix(row, *sequences, *tables, *rule, table, log_odds, None, None, splits=splits)
    margins = torch.zeros([1] * (logits.dim() - 1), device=logits.device)
    commit.select_prefix(margins, margins.long(), *sequences, tables[0], *rule)


def compile_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sequences: tuple[Tensor | None, Tensor | None, Tensor | None],
    tables: tuple[Tensor | None, Tensor | None, int],
    rule: tuple[Any, ...],
    noise: bool,
    log_odds: bool,
    entropy: bool,
) -> None:
    """Runs the two operations of the head on one row in every tile.

    Beside what `compile_commit` names, a kernel depends on the hidden size, on the tile, and on which strides and
    addresses of hidden states and weights are aligned, so those given are kept.
    """
    first = (slice(0, 1),) * (hidden.dim() - 1)
    row = hidden[first] if hidden.numel() else hidden.new_zeros(*[1] * (hidden.dim() - 1), hidden.size(-1))
    table = torch.zeros(*row.shape[:-1], 3, dtype=torch.int64, device=row.device) if noise else None
    for tile in tiles_of(hidden, noise):
        head.linear_token_stats(row, weight, bias, *tables, 0, table, entropy, None, None, config=tile)
        head.linear_commit_prefix(
            row, weight, bias, *_one_sequence(*sequences), *tables, *rule, table, log_odds, None, None, config=tile
        )


def compile_block(
    x: Tensor,
    weight: Tensor,
    q: Tensor,
    k: Tensor,
    gate_up: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> None:
    """Runs the three operations on one token that lies as the first of those given.

    A kernel depends on the dtype, on the hidden size or the head dimension, on which strides and addresses are aligned,
    on whether there is a residual or norms of heads, and on nothing else.
    """
    angles = torch.zeros(1, q.size(-1) // 2, device=q.device)
    for residual in (None, _one_token(x)):
        block.add_norm(_one_token(x), residual, weight, 1.0)
    block.rotate_(_one_token(q), _one_token(k), angles, angles, q_norm, k_norm, 1.0)
    block.silu_mul(_one_token(gate_up))


def _one_token(x: Tensor) -> Tensor:
    """A token of zeros with the strides of x, and an address as far from a multiple of 16 bytes."""
    shift = x.data_ptr() % 16 // x.element_size()
    room = x.new_zeros(shift + x.size(-1) + sum(n * s for n, s in zip(x.shape[1:-1], x.stride()[1:-1], strict=True)))
    return room[shift:].as_strided((1, *x.shape[1:]), x.stride())


def _one_sequence(
    cu_rows: Tensor | None, n_active: Tensor | None, starts: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Borders, count and start of a sequence of one row, those that are given."""

    def one(tensor: Tensor | None, *values: int) -> Tensor | None:
        return None if tensor is None else torch.tensor(values, dtype=torch.int32, device=tensor.device)

    return one(cu_rows, 0, 1), one(n_active, 1), one(starts, 0)


def _rows(logits: Tensor) -> Iterator[Tensor]:
    """A row that is aligned, and one that is not."""
    size = logits.size(-1)
    for offset in (0, 1):
        yield logits.new_zeros(size + offset)[offset:].view(*[1] * (logits.dim() - 1), size)

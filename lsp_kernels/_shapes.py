"""How rows of logits are divided into sequences, as far as shapes tell."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def batch_of(rows: Tensor, row_dims: int, cu_rows: Tensor | None) -> Any:
    """The number of sequences in a batch [B, L, ...] (`row_dims` 2) or in packed rows [R, ...] (`row_dims` 1).

    An int, or a symbolic one while torch traces.
    """
    if row_dims == 2:
        return rows.size(0)
    return 1 if cu_rows is None else cu_rows.size(0) - 1

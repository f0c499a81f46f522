"""What the launchers of the commit and head families share: splits, options, and the numbers of a rule."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from torch import Tensor

from ..rule import PrefixRule
from .configs.commit import Table, room_of, splits_of
from .configs.device import device_of
from .ticket import shared_memory


class Launch:
    """Splits, tiles and options of a launch that scores about so many rows; `splits` follows from them unless given.

    `more`: there is noise, or the kernel computes more of each row than usual.
    """

    def __init__(
        self,
        table: dict[str, Table],
        logits: Tensor,
        flags: Tensor | None,
        rows: int,
        splits: int | None,
        more: bool,
    ) -> None:
        device = device_of(logits.device)
        self.config = table[device.architecture][logits.dtype]
        self.splits = splits or splits_of(rows, logits.size(-1), device.processors)
        blocks = triton.cdiv(logits.size(-1), self.config.block)
        self.tiles = triton.cdiv(blocks, self.splits)  # blocks per split
        aligned = is_aligned(logits, flags)
        self.options: dict[str, Any] = {
            "ALIGNED": aligned, "SPLITS": self.splits, "BLOCK": self.config.block, "WAIT": self.config.wait,
            "FAST": self.config.fast,
            **self.config.options(aligned, more),
        }  # fmt: skip
        self.device = logits.device

    def workspace(
        self, partials: Tensor | None, tickets: Tensor | None, rows: int, planes: int, sequences: int = 0
    ) -> tuple[Tensor | None, Tensor | None]:
        """Partials and tickets; allocated here if the caller gives none.

        What the kernel does not use is None.
        """
        n_partials, n_tickets = room_of(rows, self.splits, planes, sequences)
        if n_tickets == 0:
            return None, None
        partials, tickets = shared_memory(partials, tickets, n_partials, n_tickets, self.device)
        return partials.view(torch.float32) if n_partials else None, tickets


def is_aligned(logits: Tensor, flags: Tensor | None) -> bool:
    """Whether rows and flags begin at multiples of 16 bytes, and the number of ids is divisible by 16."""
    tables = [logits] if flags is None else [logits, flags]
    return not any(n % 16 for n in (*(t.data_ptr() for t in tables), logits.size(-1), *logits.stride()[:-1]))


def rows_of(tensor: Tensor, row_dims: int) -> tuple[int, int, int]:
    """Number of rows, rows per sequence, and stride between sequences, of a batch (`row_dims` 2) or packed rows (1)."""
    if row_dims == 1:
        return tensor.size(0), tensor.size(0), 0
    return tensor.size(0) * tensor.size(1), tensor.size(1), tensor.stride(0)


def check_flags(flags: Tensor | None, needed: bool) -> None:
    """Raises if there is no table of flags although ids are suppressed or the rule snaps."""
    if needed and flags is None:
        raise ValueError("Invalid flags: expected the table of a Vocabulary with suppressed ids or snap, got None")


rule_of = functools.lru_cache(maxsize=256)(PrefixRule.of)  # making one takes longer than a launch


def new_lengths(like: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Fresh lengths and finished flags; the flags as bytes, which Triton can store."""
    return like.new_empty(batch, dtype=torch.int32), like.new_empty(batch, dtype=torch.uint8)


def rule_options(
    alpha: int, beta: int, min_length: int, window: int, floor: float | None, snap: bool, keep: bool
) -> tuple[tuple[int | float, ...], dict[str, bool]]:
    """The numbers of a rule, which a kernel gets at run time, and the flags for which it is compiled."""
    numbers = (alpha, beta, min_length, window, 0.0) if floor is None else (0, beta, min_length, window, float(floor))
    return numbers, {"HAS_FLOOR": floor is not None, "SNAP": snap, "KEEP": keep}

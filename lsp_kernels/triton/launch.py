"""What the launchers of the commit family share: splits and options of a launch over the rows of some logits."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .configs.commit import PLANES, Table, splits_of
from .configs.device import device_of
from .ticket import shared_memory


class Launch:
    """Splits, tiles and options of a launch; `splits` is chosen from the shape unless it is given."""

    def __init__(self, table: dict[str, Table], logits: Tensor, rows: int, splits: int | None) -> None:
        device = device_of(logits.device)
        self.config = table[device.architecture][logits.dtype]
        self.splits = splits or splits_of(rows, logits.size(-1), device.processors)
        self.rows = rows
        blocks = triton.cdiv(logits.size(-1), self.config.block)
        self.tiles = triton.cdiv(blocks, self.splits)  # blocks per split
        self.options: dict[str, int] = {"num_warps": self.config.warps, "num_stages": 1}
        if self.config.maxnreg is not None:
            self.options["maxnreg"] = self.config.maxnreg
        self.device = logits.device

    def workspace(
        self, partials: Tensor | None, tickets: Tensor | None, n_tickets: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Partials as floats, the same partials as ids, and tickets; allocated here if the caller gives none."""
        needed = PLANES * self.rows * self.splits
        partials, tickets = shared_memory(partials, tickets, needed, n_tickets, self.device)
        return partials.view(torch.float32), partials, tickets


def rows_of(tensor: Tensor, row_dims: int) -> tuple[int, int, int]:
    """Number of rows, rows per sequence, and stride between sequences, of a batch (`row_dims` 2) or packed rows (1)."""
    if row_dims == 1:
        return tensor.size(0), tensor.size(0), 0
    return tensor.size(0) * tensor.size(1), tensor.size(1), tensor.stride(0)


def check_flags(flags: Tensor | None, needed: bool) -> None:
    """Raises if there is no table of flags although ids are suppressed or the rule snaps."""
    if needed and flags is None:
        raise ValueError("Invalid flags: expected the table of a Vocabulary with suppressed ids or snap, got None")

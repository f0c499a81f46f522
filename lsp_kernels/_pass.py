"""A pass that a `PrefixCache` has begun, and its lengths on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Operands = tuple[Tensor | None, Tensor, Tensor, Tensor | None]
"""cu_seqlens, prefix_lens, append_lens and slots, as `suffix_attention` takes them."""


@dataclass
class Pass:
    """Which rows of the cache the sequences have, how many tokens each appends, and which layers were written."""

    rows: Sequence[int]
    append: list[int]
    tables: Operands
    written: set[int] = field(default_factory=set)


class Tables:
    """The lengths of a pass on the device. Their addresses stay the same, so a captured pass can be replayed."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self._borders = torch.zeros(batch + 1, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(3, batch, dtype=torch.int32, device=device)

    def filled(
        self,
        cu_seqlens: Tensor | None,
        rows: Sequence[int],
        held: Sequence[int],
        append: Sequence[int],
        slots: bool,
    ) -> Operands:
        """The operands for sequences in these rows of the cache; `held` has the frozen lengths of all rows."""
        n = len(rows)
        idle = self._lengths.size(1) - n
        values = [[held[row] for row in rows], append, rows]
        upload([[*each, *[0] * idle] for each in values], self._lengths)
        prefixes, appends, places = (table[:n] for table in self._lengths)
        if cu_seqlens is None:
            return None, prefixes, appends, places if slots else None
        return self._borders[: n + 1].copy_(cu_seqlens), prefixes, appends, places if slots else None


def upload(values: Sequence[int] | Sequence[Sequence[int]], to: Tensor) -> None:
    """Writes integers from the host to a tensor, without waiting for the device."""
    if to.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("Invalid capture: expected attend alone inside, got a call that uploads lengths")
    to.copy_(torch.tensor(values, dtype=torch.int32, pin_memory=to.is_cuda), non_blocking=True)

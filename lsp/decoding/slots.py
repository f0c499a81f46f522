"""What a dual cache holds: K and V of every position but those that a pass computes anew, also of masks.

Such a cache is not a prefix, so somebody has to know which position lies in which slot: `Slots`. Attention does not
depend on the order of the slots.
"""

from __future__ import annotations

import numpy as np
import torch

from lsp_kernels import PrefixCache

NOTHING = np.zeros(0, dtype=np.int64)


class Slots:
    """The positions that one row of the cache holds, by slot.

    Attributes
    ----------
    positions : int64 array
    """

    def __init__(self) -> None:
        self.positions = NOTHING
        self._from = self._to = NOTHING

    def clear(self) -> None:
        self.positions = self._from = self._to = NOTHING

    def append(self, positions: np.ndarray) -> None:
        """What a pass has appended."""
        self.positions = np.concatenate([self.positions, positions])

    def drop(self, begin: int, end: int, rest: int) -> None:
        """Gives up the positions from `begin` to before `end`, and all from `rest` on.

        What lies in the last slots fills the gaps, as soon as somebody calls `move`.
        """
        held = self.positions
        kept = (held < rest) & ((held < begin) | (held >= end))
        size = int(kept.sum())
        self._from, self._to = size + np.flatnonzero(kept[size:]), np.flatnonzero(~kept[:size])
        self.positions = held[:size].copy()
        self.positions[self._to] = held[self._from]

    def move(self, cache: PrefixCache, row: int) -> None:
        """Moves K and V in this row to where `drop` wants them; its length is for the caller to change."""
        if len(self._from):
            source, target = torch.from_numpy(np.stack([self._from, self._to])).to(cache.device)
            for layer in (*cache.k, *cache.v):
                layer[row][:, target] = layer[row][:, source]
        self._from = self._to = NOTHING


def outside_in(where: np.ndarray, border: int) -> np.ndarray:
    """The positions before the border, and the others from right to left: first what a cache holds for longest."""
    return np.concatenate([where[where < border], where[where >= border][::-1]])

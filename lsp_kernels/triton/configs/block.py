"""Launch options of the block kernels: how much of its rows a program has, by architecture, dtype and size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .device import ARCHITECTURES, CDNA, DTYPES

MOST_WARPS = 16
MOST_HEADS = 32  # that a program turns


@dataclass(frozen=True)
class BlockConfig:
    """How the block kernels are compiled for one architecture and dtype.

    Attributes
    ----------
    values : int
        Values that a program of four warps loads at once, at least 128 bits per thread. A row that is normalised is
        loaded as a whole, by more warps where it is longer.
    """

    values: int = 1024

    def norm(self, size: int) -> dict[str, int]:
        """Tile and options of add_norm: whole rows of `size` values, several if they are short."""
        block = padded(size)
        warps = min(MOST_WARPS, max(4, 4 * block // (2 * self.values)))
        return {"ROWS": max(1, 2 * self.values // block), "BLOCK": block, "num_warps": warps, "num_stages": 1}

    def rotation(self, size: int) -> dict[str, int]:
        """Tile and options of rotate_: some heads of a token, their left and right halves of `size` / 2 values."""
        block = padded(size // 2)
        return {"HEADS": min(MOST_HEADS, max(1, self.values // block)), "BLOCK": block, "num_warps": 4, "num_stages": 1}

    def gate(self) -> dict[str, int]:
        """Tile and options of silu_mul: a part of a row's gates and of what they are multiplied by."""
        return {"BLOCK": self.values, "num_warps": 4, "num_stages": 1}


def padded(size: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(size - 1, 0).bit_length()


def _block(architecture: str, dtype: torch.dtype) -> BlockConfig:
    lanes = 64 if architecture in CDNA else 32
    return BlockConfig(values=4 * lanes * (16 // dtype.itemsize))


BLOCK = {name: {dtype: _block(name, dtype) for dtype in DTYPES} for name in ARCHITECTURES}

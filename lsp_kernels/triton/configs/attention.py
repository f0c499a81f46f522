"""Launch options of the attention kernel: tiles per architecture, dtype and head dimension, and splits of the keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from .device import CDNA, DTYPES, device_of


@dataclass(frozen=True)
class AttentionConfig:
    """How the attention kernel is compiled for one tile on one architecture, dtype and head dimension.

    Attributes
    ----------
    rows : int
        Rows of a program's tile. A row is one query head of one token.
    keys : int
        Keys that a program scores at once.
    warps, stages : int
    wait : bool
        As in `commit.CommitConfig`.
    """

    rows: int
    keys: int
    warps: int = 4
    stages: int = 1
    wait: bool = False

    @property
    def options(self) -> dict[str, int]:
        """The launch options under Triton's names."""
        return {"num_warps": self.warps, "num_stages": self.stages}


MOST_ROWS = 128  # rows of the largest tile
MOST_MERGED = 512  # rows that the splits of one tile have together, at most
LEAST_KEYS = 256  # keys of a split; a program with fewer costs more than it saves
BORDERS = 128  # borders of sequences that a program reads at once

# Tiles from small to large, by head dimension padded to a power of two.
Tile = AttentionConfig
Tiles = dict[int, list[Tile]]
_AMPERE: Tiles = {
    32: [Tile(16, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 2)],
    64: [Tile(16, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    128: [Tile(16, 64, 4, 2), Tile(64, 32, 4, 3), Tile(128, 32, 8, 3)],
    256: [Tile(16, 32, 4, 2), Tile(64, 32, 8, 2)],
}
_HOPPER: Tiles = {
    32: [Tile(16, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    64: [Tile(16, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    128: [Tile(16, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    256: [Tile(16, 32, 4, 2), Tile(64, 64, 8, 2)],
}
_GFX9: Tiles = {
    32: [Tile(16, 64, 4, 2), Tile(64, 32, 4, 2), Tile(128, 32, 8, 2)],
    64: [Tile(16, 64, 4, 2), Tile(64, 32, 4, 2), Tile(128, 32, 8, 2)],
    128: [Tile(16, 64, 4, 2), Tile(64, 32, 4, 2), Tile(128, 32, 8, 2)],
    256: [Tile(16, 32, 4, 2), Tile(64, 32, 8, 1)],
}
_GFX11: Tiles = {
    32: [Tile(16, 32), Tile(64, 32, 8), Tile(128, 32, 8)],
    64: [Tile(16, 32), Tile(64, 64, 8), Tile(128, 32, 8)],
    128: [Tile(16, 16), Tile(64, 32, 8)],
    256: [Tile(32, 16, 16)],
}
_GFX12: Tiles = _GFX11 | {128: [Tile(16, 32), Tile(64, 32, 8)]}
# float32 products are exact (IEEE), which only the tensor cores of gfx9 can do; elsewhere the tiles are small.
_NVIDIA_FLOAT32: Tiles = {32: [Tile(32, 32)], 64: [Tile(32, 32)], 128: [Tile(16, 16)], 256: [Tile(16, 16)]}
_CDNA_FLOAT32: Tiles = {32: [Tile(32, 32)], 64: [Tile(32, 32)], 128: [Tile(32, 32)], 256: [Tile(16, 32)]}
_RDNA_FLOAT32: Tiles = {32: [Tile(16, 16)], 64: [Tile(16, 16)], 128: [Tile(16, 16, 8)], 256: [Tile(16, 16, 16)]}
_TILES: dict[str, tuple[Tiles, Tiles]] = {
    **{f"sm_{n}": (_AMPERE, _NVIDIA_FLOAT32) for n in (80, 86, 89, 120)},
    **{f"sm_{n}": (_HOPPER, _NVIDIA_FLOAT32) for n in (90, 100)},
    **{name: (_GFX9, _CDNA_FLOAT32) for name in ("gfx942", "gfx950")},
    "gfx1100": (_GFX11, _RDNA_FLOAT32),
    "gfx1201": (_GFX12, _RDNA_FLOAT32),
}


def _attention(architecture: str, dtype: torch.dtype) -> dict[int, list[AttentionConfig]]:
    tiles = _TILES[architecture][dtype == torch.float32]
    wait = architecture in CDNA
    return {size: [replace(tile, wait=wait) for tile in by_size] for size, by_size in tiles.items()}


ATTENTION = {name: {dtype: _attention(name, dtype) for dtype in DTYPES} for name in _TILES}


@dataclass(frozen=True)
class AttentionLaunch:
    """How one call is divided into programs: one for each tile of rows, split of the keys and head of K/V."""

    config: AttentionConfig
    group: int  # query heads per head of K/V
    padded: int  # head dimension, padded to a power of two
    heads: int  # heads of K/V
    tiles: int
    splits: int

    @property
    def least(self) -> int:
        """The smallest number of chunks of keys in a split, so that short prefixes are not divided."""
        return -(-LEAST_KEYS // self.config.keys)

    @property
    def partials(self) -> int:
        """The size of the values, maximum and sum of every row of every split; 0 with one split per tile."""
        slots = self.tiles * self.splits * self.heads if self.splits > 1 else 0
        return slots * self.config.rows * (self.padded + 2)

    @property
    def tickets(self) -> int:
        """One per tile and head; 0 with one split per tile."""
        return self.tiles * self.heads if self.splits > 1 else 0


def tiles_of(q: torch.Tensor) -> list[AttentionConfig]:
    """Every tile that a launch may choose, from small to large."""
    return ATTENTION[device_of(q.device).architecture][q.dtype][padded_size(q.size(-1))]


def padded_size(head_dim: int) -> int:
    """The head dimension padded to a power of two."""
    return 1 << (head_dim - 1).bit_length()


def launch_of(
    q: torch.Tensor, k_cache: torch.Tensor, splits: int | None = None, config: AttentionConfig | None = None
) -> AttentionLaunch:
    """The tile that fits the average number of rows per sequence, and as many splits as fill the device.

    Both follow from shapes alone. The largest tiles are chosen only if they leave work for every processor; among the
    others the larger one is better, because a small tile reads the keys more often.
    """
    processors = device_of(q.device).processors
    batch, heads, capacity, size = k_cache.shape
    group, tokens = q.size(-2) // heads, math.prod(q.shape[:-2])
    average = -(-tokens // batch)

    def programs(tile: AttentionConfig) -> int:
        return heads * max(-(-tokens * group // tile.rows), min(batch, tokens))

    def most_splits(tile: AttentionConfig) -> int:
        return max(min((capacity + average) // LEAST_KEYS, MOST_MERGED // tile.rows), 1)

    if config is None:
        small, *larger = tiles_of(q)
        roomy = [tile for tile in larger[1:] if programs(tile) * most_splits(tile) >= processors]
        choice = [small, *larger[:1], *roomy]
        config = next((tile for tile in choice if tile.rows >= average * group), choice[-1])
    if splits is None:
        room = processors * max(8 // config.warps, 1) // programs(config)
        splits = max(min(room, most_splits(config)), 1)
    tiles = tokens * group // config.rows + batch if q.dim() == 3 else batch * -(-average * group // config.rows)
    return AttentionLaunch(config, group, padded_size(size), heads, tiles, splits)


def workspace_of(q: torch.Tensor, k_cache: torch.Tensor) -> tuple[int, int]:
    """The numbers of partials and tickets that a launch needs."""
    if q.numel() == 0 or k_cache.size(0) == 0:
        return 0, 0
    launch = launch_of(q, k_cache)
    return launch.partials, launch.tickets

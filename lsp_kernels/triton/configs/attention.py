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
MODEST_ROWS = 64  # rows of the largest tile that is chosen however few programs there are
LEAST_KEYS = 256  # keys of a split; a program with fewer costs more than it saves
LONG_KEYS = 4096  # keys of a split where every processor has a tile anyway
BORDERS = 128  # borders of sequences that a program reads at once

# Tiles from small to large, by head dimension padded to a power of two.
Tile = AttentionConfig
Tiles = dict[int, list[Tile]]
_AMPERE: Tiles = {
    32: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 2)],
    64: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    128: [Tile(16, 64, 4, 2), Tile(32, 64, 4, 2), Tile(64, 32, 4, 3), Tile(128, 32, 8, 3)],
    256: [Tile(16, 32, 4, 2), Tile(32, 32, 4, 2), Tile(64, 32, 8, 2)],
}
# As for sm_80, but where its tiles spill here.
_SM_120: Tiles = _AMPERE | {
    32: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 8, 2)],
    128: [Tile(16, 64, 4, 2), Tile(32, 64, 4, 2), Tile(64, 32, 4, 3), Tile(128, 16, 8, 3)],
}
_HOPPER: Tiles = {
    32: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    64: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 2), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    128: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 32, 4, 3), Tile(128, 64, 8, 3)],
    256: [Tile(16, 32, 4, 2), Tile(32, 32, 4, 2), Tile(64, 64, 8, 2)],
}
# No tile has 2 stages here: Triton 3.7.1 then lets tcgen05.mma read values that cp.async has copied to shared memory
# without the proxy fence that must come between (`tests/triton/test_targets.py`).
_BLACKWELL: Tiles = {
    32: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 4, 3)],
    64: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    128: [Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)],
    256: [Tile(16, 32, 4, 3), Tile(32, 32, 8, 3), Tile(64, 64, 8, 3)],
}
_GFX9: Tiles = {
    32: [Tile(16, 64, 4, 2), Tile(32, 64, 4, 2), Tile(64, 32, 4, 2), Tile(128, 32, 8, 2)],
    64: [Tile(16, 64, 4, 2), Tile(32, 32, 4, 2), Tile(64, 32, 4, 2), Tile(128, 32, 8, 2)],
    128: [Tile(16, 64, 4, 2), Tile(32, 32, 4, 2), Tile(64, 32, 4, 2), Tile(128, 32, 8, 2)],
    256: [Tile(16, 32, 4, 2), Tile(32, 32, 8, 1), Tile(64, 32, 8, 1)],
}
_GFX11: Tiles = {
    32: [Tile(16, 32), Tile(32, 32), Tile(64, 32, 8), Tile(128, 32, 8)],
    64: [Tile(16, 32), Tile(32, 32), Tile(64, 64, 8), Tile(128, 32, 8)],
    128: [Tile(16, 16), Tile(32, 32, 8), Tile(64, 16, 8)],
    256: [Tile(32, 16, 16)],
}
_GFX12: Tiles = _GFX11 | {128: [Tile(16, 32), Tile(32, 32, 8), Tile(64, 32, 8)]}
# float32 products are exact (IEEE), which only the tensor cores of gfx9 can do; elsewhere the tiles are small.
_NVIDIA_FLOAT32: Tiles = {32: [Tile(32, 32)], 64: [Tile(32, 32)], 128: [Tile(16, 16)], 256: [Tile(16, 16)]}
_CDNA_FLOAT32: Tiles = {32: [Tile(32, 32)], 64: [Tile(32, 32)], 128: [Tile(32, 32)], 256: [Tile(16, 32)]}
_RDNA_FLOAT32: Tiles = {32: [Tile(16, 16)], 64: [Tile(16, 16)], 128: [Tile(16, 16, 8)], 256: [Tile(16, 16, 16)]}
_TILES: dict[str, tuple[Tiles, Tiles]] = {
    **{f"sm_{n}": (_AMPERE, _NVIDIA_FLOAT32) for n in (80, 86, 89)},
    "sm_120": (_SM_120, _NVIDIA_FLOAT32),
    "sm_90": (_HOPPER, _NVIDIA_FLOAT32),
    "sm_100": (_BLACKWELL, _NVIDIA_FLOAT32),
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
    """How one call is divided into programs: one for each tile of rows, and `extra` ones for splits of long prefixes.

    All of that once per head of K/V. The device decides from the lengths which tiles are split. Programs that it does
    not need leave at once.
    """

    config: AttentionConfig
    group: int  # query heads per head of K/V
    padded: int  # head dimension, padded to a power of two
    heads: int  # heads of K/V
    tiles: int
    splits: int  # of one tile, at most
    extra: int
    least_keys: int  # keys of a split, at least

    @property
    def least(self) -> int:
        """The smallest number of chunks of keys in a split."""
        return -(-self.least_keys // self.config.keys)

    @property
    def places(self) -> int:
        """How many splits of divided tiles there can be: a tile that is divided into n uses n - 1 extra programs."""
        return min(2 * self.extra, self.tiles + self.extra)

    @property
    def partials(self) -> int:
        """The size of the values, maximum and sum of every row of every split of a divided tile."""
        return self.places * self.heads * self.config.rows * (self.padded + 2)

    @property
    def tickets(self) -> int:
        """One per place and head: a divided tile uses that of its first split."""
        return self.places * self.heads


def tiles_of(q: torch.Tensor) -> list[AttentionConfig]:
    """Every tile that a launch may choose, from small to large."""
    return ATTENTION[device_of(q.device).architecture][q.dtype][padded_size(q.size(-1))]


def padded_size(head_dim: int) -> int:
    """The head dimension padded to a power of two."""
    return 1 << (head_dim - 1).bit_length()


def launch_of(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    batch: int,
    splits: int | None = None,
    config: AttentionConfig | None = None,
) -> AttentionLaunch:
    """The tile that fits the average number of rows per sequence, and programs for splits that fill the device.

    All of it follows from shapes alone. The largest tiles are chosen only if they leave work for every processor; among
    the others the larger one is better, because a small tile reads the keys more often. `splits`, if given, is what
    every tile may be divided into.
    """
    processors = device_of(q.device).processors
    heads, capacity, size = k_cache.shape[1:]
    group, tokens = q.size(-2) // heads, math.prod(q.shape[:-2])
    average = -(-tokens // batch)

    def programs(tile: AttentionConfig) -> int:
        return heads * max(-(-tokens * group // tile.rows), min(batch, tokens))

    def most_splits(tile: AttentionConfig) -> int:
        return max(min((capacity + average) // LEAST_KEYS, MOST_MERGED // tile.rows), 1)

    if config is None:
        fits = [t for t in tiles_of(q) if t.rows <= MODEST_ROWS or programs(t) * most_splits(t) >= processors]
        config = next((tile for tile in fits if tile.rows >= average * group), fits[-1])
    tiles = tokens * group // config.rows + batch if q.dim() == 3 else batch * -(-average * group // config.rows)
    room, least = processors * max(8 // config.warps, 1), LEAST_KEYS
    if splits is None:
        splits, free = most_splits(config), room - programs(config)
        if programs(config) * 2 > room:  # the device is full: a long prefix is divided so that nobody waits for it
            least, free = LONG_KEYS, room if capacity + average > LONG_KEYS else 0
        extra = min(-(-free // heads), tiles * (splits - 1))
        splits = splits if extra else 1  # the kernel without splits must not plan any
    else:
        extra = tiles * (splits - 1)
    return AttentionLaunch(config, group, padded_size(size), heads, tiles, splits, extra, least)


def workspace_of(q: torch.Tensor, k_cache: torch.Tensor, prefix_lens: torch.Tensor) -> tuple[int, int]:
    """The numbers of partials and tickets that a launch needs."""
    if q.numel() == 0 or prefix_lens.size(0) == 0:
        return 0, 0
    launch = launch_of(q, k_cache, prefix_lens.size(0))
    return launch.partials, launch.tickets

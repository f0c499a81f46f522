"""Tiles and launch options per architecture, in one table. Nothing is tuned at run time.

Splits follow from shapes and the device's processor count alone, so that a launch needs no synchronisation and can be
captured in a CUDA graph. This module does not import Triton.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch

ALL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_SPLITS = 16
LEAST_SPLIT = 8192  # ids; under this a program costs more than it saves
PROGRAMS_PER_PROCESSOR = 4
PLANES = 4  # partials per row and split: best, second, id, weight of the rest


@dataclass(frozen=True)
class CommitConfig:
    """How the kernels of the commit family are compiled for one architecture and dtype.

    Attributes
    ----------
    block : int
        Ids that all threads of a program load at once, 128 bits each.
    warps : int
    rows : int
        Rows that the rule looks at in one go.
    maxnreg : int, optional
        A bound on registers, where the assembler would spill for the sake of occupancy.
    wait : bool
        Whether a barrier leaves stores of other waves in flight (gfx9), so that they must be waited for first.
    """

    block: int = 2048
    warps: int = 8
    rows: int = 64
    maxnreg: int | None = None
    wait: bool = False


Table = dict[torch.dtype, CommitConfig]


def _nvidia(maxnreg: int) -> Table:
    return {dtype: CommitConfig(maxnreg=maxnreg) for dtype in ALL_DTYPES}


# Waves of 64 lanes: 16-bit loads are 128 bits wide from 4096 ids on.
_CDNA: Table = {dtype: CommitConfig(block=2048 if dtype == torch.float32 else 4096, wait=True) for dtype in ALL_DTYPES}
_RDNA: Table = {dtype: CommitConfig() for dtype in ALL_DTYPES}
_AMD = {"gfx942": _CDNA, "gfx950": _CDNA, "gfx1100": _RDNA, "gfx1201": _RDNA}

# 80 registers: three programs of 8 warps on a processor. The exponentials of token_stats need more on the newest.
COMMIT: dict[str, Table] = {f"sm_{n}": _nvidia(80) for n in (80, 86, 89, 90, 100, 120)} | _AMD
STATS: dict[str, Table] = {f"sm_{n}": _nvidia(80) for n in (80, 86, 89, 90)} | {
    "sm_100": _nvidia(96),
    "sm_120": _nvidia(96),
    **_AMD,
}


@dataclass(frozen=True)
class Device:
    """What a launch needs to know of the GPU it runs on."""

    architecture: str
    processors: int


@functools.cache
def device_of(device: torch.device) -> Device:
    """The GPU behind a torch device, or what stands for one where kernels are interpreted on the CPU."""
    if device.type == "cpu":
        return Device("sm_80", 4)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        name = properties.gcnArchName.split(":")[0]
        return Device(nearest(name), properties.multi_processor_count)
    return Device(nearest(f"sm_{properties.major}{properties.minor}"), properties.multi_processor_count)


def nearest(architecture: str) -> str:
    """The architecture itself if it is in the table, else the newest of its kind that is not newer."""
    if architecture in COMMIT:
        return architecture
    vendor = "sm_" if architecture.startswith("sm_") else "gfx"

    def age(name: str) -> int:
        return int(name.removeprefix(vendor), 16)

    older = [name for name in COMMIT if name.startswith(vendor) and age(name) <= age(architecture)]
    return max(older, key=age) if older else next(name for name in COMMIT if name.startswith(vendor))


def workspace_of(logits: torch.Tensor, n_tickets: int) -> tuple[int, int]:
    """Partials and tickets that a launch over the rows of some logits needs, at least."""
    rows = math.prod(logits.shape[:-1])
    splits = splits_of(rows, logits.size(-1), device_of(logits.device).processors)
    return PLANES * rows * splits, n_tickets


def split_counts() -> list[int]:
    """Every number of splits that a launch may choose."""
    return [1 << k for k in range(MOST_SPLITS.bit_length())]


def splits_of(rows: int, vocabulary: int, processors: int) -> int:
    """Into how many programs a row is cut: a power of two, enough to fill the device."""
    wanted = min(processors * PROGRAMS_PER_PROCESSOR // max(rows, 1), -(-vocabulary // LEAST_SPLIT), MOST_SPLITS)
    return 1 << (max(wanted, 1).bit_length() - 1)


@dataclass(frozen=True)
class AttentionConfig:
    """How the attention kernel is compiled for one architecture, dtype, head dimension and size of tile.

    Attributes
    ----------
    rows, keys : int
        Rows (query heads of tokens) of a program's tile, and keys that it looks at in one go.
    warps, stages : int
    wait : bool
        As in `CommitConfig`.
    """

    rows: int
    keys: int
    warps: int = 4
    stages: int = 1
    wait: bool = False

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


MOST_ROWS = 128
MOST_MERGED = 512  # rows of all splits of a tile
LEAST_KEYS = 256  # of a split; under this a program costs more than it saves
BORDERS = 128  # borders of sequences that a program looks at in one go

# By head dimension, padded to a power of two: tiles by size.
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
# float32 is exact (IEEE), so without tensor cores but on gfx9.
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
    wait = architecture.startswith("gfx9")
    return {size: [replace(tile, wait=wait) for tile in by_size] for size, by_size in tiles.items()}


ATTENTION = {name: {dtype: _attention(name, dtype) for dtype in ALL_DTYPES} for name in _TILES}


@dataclass(frozen=True)
class AttentionLaunch:
    """How one call is cut into programs: tiles of rows, times splits, times heads of K/V."""

    config: AttentionConfig
    group: int  # query heads per head of K/V
    padded: int  # head dimension
    heads: int  # of K/V
    tiles: int
    splits: int

    @property
    def least(self) -> int:
        """Chunks of keys that a split has at least, so that short prefixes are not cut."""
        return -(-LEAST_KEYS // self.config.keys)

    @property
    def partials(self) -> int:
        """Values, maximum and sum of every row of every split; none where a tile has one split."""
        slots = self.tiles * self.splits * self.heads if self.splits > 1 else 0
        return slots * self.config.rows * (self.padded + 2)

    @property
    def tickets(self) -> int:
        return self.tiles * self.heads if self.splits > 1 else 0


def attention_tiles(q: torch.Tensor) -> list[AttentionConfig]:
    """Every tile that a launch may choose, by size."""
    return ATTENTION[device_of(q.device).architecture][q.dtype][padded_size(q.size(-1))]


def padded_size(head_dim: int) -> int:
    """The next power of two."""
    return 1 << (head_dim - 1).bit_length()


def attention_launch(
    q: torch.Tensor, k_cache: torch.Tensor, splits: int | None = None, config: AttentionConfig | None = None
) -> AttentionLaunch:
    """From shapes alone: a tile that suits the rows of a sequence on average, and splits that fill the device.

    A tile is large only if there is work for every processor then; small ones read the keys too often to be better.
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
        small, *larger = attention_tiles(q)
        roomy = [tile for tile in larger[1:] if programs(tile) * most_splits(tile) >= processors]
        choice = [small, *larger[:1], *roomy]
        config = next((tile for tile in choice if tile.rows >= average * group), choice[-1])
    if splits is None:
        room = processors * max(8 // config.warps, 1) // programs(config)
        splits = max(min(room, most_splits(config)), 1)
    tiles = tokens * group // config.rows + batch if q.dim() == 3 else batch * -(-average * group // config.rows)
    return AttentionLaunch(config, group, padded_size(size), heads, tiles, splits)


def attention_workspace_of(q: torch.Tensor, k_cache: torch.Tensor) -> tuple[int, int]:
    """Partials and tickets that a launch needs, at least."""
    if q.numel() == 0 or k_cache.size(0) == 0:
        return 0, 0
    launch = attention_launch(q, k_cache)
    return launch.partials, launch.tickets

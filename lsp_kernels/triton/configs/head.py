"""Launch options of the head kernels: tiles per architecture and dtype, and programs that share the vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._shapes import batch_of
from ...rule import PrefixRule
from .commit import MOST_PLANES, commit_slots
from .device import CDNA, DTYPES, NVIDIA, RDNA, device_of


@dataclass(frozen=True)
class HeadConfig:
    """How the head kernels are compiled for one tile on one architecture and dtype.

    Attributes
    ----------
    rows, ids : int
        Rows and ids of the tile of logits that a program has in registers.
    depth : int
        Values of a hidden state that are multiplied at once.
    warps, stages : int
    wait, fast : bool
        As in `commit.CommitConfig`.
    pin : bool
        Whether logits come from tensor memory (`tiles.pinned`).
    """

    rows: int
    ids: int
    depth: int
    warps: int = 4
    stages: int = 1
    wait: bool = False
    fast: bool = False
    pin: bool = False

    @property
    def merged(self) -> int:
        """Ranges of ids that are merged at once."""
        return max(MERGED // self.rows, 4)

    @property
    def options(self) -> dict[str, int]:
        """The launch options under Triton's names."""
        # On NVIDIA the assembler would otherwise spill a little to let more programs fit, though there is one each.
        return {
            "num_warps": self.warps,
            "num_stages": self.stages,
            **({"maxnreg": MOST_REGISTERS} if self.fast else {}),
        }


MOST_REGISTERS = 255
MERGED = 512  # partials that a program reads at once
CHUNK = 64  # sequences or rows of the rule that a program looks at at once

# Tiles from few to many rows: greedy ones, and those with noise, which takes many registers per logit.
Tile = HeadConfig
_AMPERE = [Tile(16, 128, 64, 4, 4), Tile(32, 128, 64, 4, 3), Tile(64, 128, 64, 8, 3), Tile(128, 128, 32, 8, 3)]
_AMPERE_NOISE = [Tile(16, 128, 64, 4, 4), Tile(32, 64, 64, 8, 3), Tile(64, 64, 64, 8, 3)]
_HOPPER = [Tile(16, 128, 128, 4, 4), Tile(32, 128, 128, 4, 3), Tile(64, 128, 64, 4, 5), Tile(128, 128, 64, 8, 5)]
_HOPPER_NOISE = [Tile(16, 128, 128, 4, 4), Tile(32, 64, 64, 4, 4), Tile(64, 64, 64, 8, 4)]
# No tile of sm_100 has 2 stages, for the reason given in `attention`. Some of the others would spill there.
_BLACKWELL = [Tile(16, 128, 128, 4, 4), Tile(32, 128, 64, 4, 3), *_HOPPER[2:]]
_BLACKWELL_NOISE = [Tile(16, 64, 128, 4, 4), *_HOPPER_NOISE[1:]]
_CDNA = [Tile(16, 128, 64, 4, 2), Tile(32, 128, 64, 4, 2), Tile(64, 128, 64, 8, 2), Tile(128, 128, 32, 8, 2)]
_CDNA_NOISE = [Tile(16, 128, 64, 4, 2), Tile(32, 64, 64, 4, 2), Tile(64, 64, 64, 8, 2)]
# With 8 warps stores are still in flight at a barrier here, so there are no larger tiles.
_RDNA = [Tile(16, 128, 64, 4, 2), Tile(32, 64, 64, 4, 2)]
_RDNA_NOISE = [Tile(16, 64, 64, 4, 2), Tile(32, 64, 64, 4, 2)]
# float32 products are exact (IEEE), which only the tensor cores of gfx9 can do; elsewhere the tiles are small.
_FLOAT32 = [Tile(16, 64, 32), Tile(32, 64, 32)]
_FLOAT32_NOISE = [Tile(16, 64, 32), Tile(32, 32, 32)]
_TILES: dict[str, tuple[list[Tile], list[Tile]]] = {
    **dict.fromkeys(("sm_80", "sm_86", "sm_89", "sm_120"), (_AMPERE, _AMPERE_NOISE)),
    "sm_90": (_HOPPER, _HOPPER_NOISE),
    "sm_100": (_BLACKWELL, _BLACKWELL_NOISE),
    **dict.fromkeys(CDNA, (_CDNA, _CDNA_NOISE)),
    **dict.fromkeys(RDNA, (_RDNA, _RDNA_NOISE)),
}
Tiles = dict[bool, list[HeadConfig]]  # by whether there is noise


def _head(architecture: str, dtype: torch.dtype) -> Tiles:
    own = {"wait": architecture in CDNA, "fast": architecture in NVIDIA, "pin": architecture == "sm_100"}
    tiles = (_FLOAT32, _FLOAT32_NOISE) if dtype == torch.float32 else _TILES[architecture]
    return {noise: [replace(tile, **own) for tile in tiles[noise]] for noise in (False, True)}


HEAD = {name: {dtype: _head(name, dtype) for dtype in DTYPES} for name in _TILES}


@dataclass(frozen=True)
class HeadLaunch:
    """How one call is divided into programs.

    The device divides the programs among the tiles that have scored rows, and the vocabulary among the programs of a
    tile. So `programs` is about the number of processors, and never below the number of tiles.
    """

    config: HeadConfig
    tiles: int  # of rows, at most
    programs: int

    def room(self, planes: int, sequences: int = 0) -> tuple[int, int]:
        """The numbers of partials and tickets: some of every row of every program; of every tile and sequence."""
        return planes * self.programs * self.config.rows, sequences + self.tiles


def tiles_of(hidden: Tensor, noise: bool) -> list[HeadConfig]:
    """Every tile that a launch may choose, from few to many rows."""
    return HEAD[device_of(hidden.device).architecture][hidden.dtype][noise]


def launch_of(
    hidden: Tensor,
    vocabulary: int,
    rows: int,
    likely: int,
    noise: bool,
    programs: int | None = None,
    config: HeadConfig | None = None,
) -> HeadLaunch:
    """The smallest tile that has all rows that are likely scored, and a program for each processor.

    `rows` is how many rows may be scored at most. With more rows than the largest tile has there are several tiles, and
    each reads all weights, so the largest is best then.
    """
    fitting = tiles_of(hidden, noise)
    config = config or next((tile for tile in fitting if tile.rows >= likely), fitting[-1])
    tiles = -(-rows // config.rows)
    programs = programs or min(device_of(hidden.device).processors, tiles * -(-vocabulary // config.ids))
    return HeadLaunch(config, tiles, max(programs, tiles, 1))


def stats_launch(hidden: Tensor, weight: Tensor, noise: bool, *chosen: Any) -> HeadLaunch:
    """The launch of a linear_token_stats; `chosen`: programs and configuration, if given."""
    rows = math.prod(hidden.shape[:-1])
    return launch_of(hidden, weight.size(0), rows, rows, noise, *chosen)


def commit_launch(
    hidden: Tensor,
    weight: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    rule: PrefixRule,
    noise: bool,
    *chosen: Any,
) -> HeadLaunch:
    """The launch of a linear_commit_prefix; `chosen`: programs and configuration, if given."""
    slots = commit_slots(hidden, cu_rows, n_active, rule)
    return launch_of(hidden, weight.size(0), slots.count, slots.likely, noise, *chosen)


def head_stats_workspace(hidden: Tensor, weight: Tensor, noise: bool) -> tuple[int, int]:
    """The numbers of partials and tickets that a launch of linear_token_stats needs at most."""
    return stats_launch(hidden, weight, noise).room(MOST_PLANES)


def head_commit_workspace(
    hidden: Tensor, weight: Tensor, cu_rows: Tensor | None, n_active: Tensor | None, rule: PrefixRule, noise: bool
) -> tuple[int, int]:
    """The numbers of partials and tickets that a launch of linear_commit_prefix needs at most."""
    launch = commit_launch(hidden, weight, cu_rows, n_active, rule, noise)
    return launch.room(MOST_PLANES, batch_of(hidden, hidden.dim() - 1, cu_rows))

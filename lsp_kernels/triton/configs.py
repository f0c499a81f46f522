"""Tiles and launch options per architecture, in one table. Nothing is tuned at run time.

Splits follow from shapes and the device's processor count alone, so that a launch needs no synchronisation and can be
captured in a CUDA graph. This module does not import Triton.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

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

"""Launch options of the commit kernels: blocks of ids per architecture and dtype, and splits of the vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .device import CDNA, DTYPES, NVIDIA, RDNA, device_of

MOST_SPLITS = 16
LEAST_SPLIT = 8192  # ids; a program with fewer costs more than it saves
PROGRAMS_PER_PROCESSOR = 4
PLANES = 4  # partials per row and split: best, second, id, weight of the others


@dataclass(frozen=True)
class CommitConfig:
    """How the commit kernels are compiled for one architecture and dtype.

    Attributes
    ----------
    block : int
        Ids that all threads of a program load at once, with 128 bits per thread.
    warps : int
    rows : int
        Rows that the rule reads at once.
    maxnreg : int, optional
        Upper bound on registers, where the assembler would otherwise choose so few for occupancy that it spills.
    wait : bool
        Whether a barrier leaves the stores of other waves in flight (gfx9), so that a wait must come before it.
    """

    block: int = 2048
    warps: int = 8
    rows: int = 64
    maxnreg: int | None = None
    wait: bool = False


Table = dict[torch.dtype, CommitConfig]


def _nvidia(maxnreg: int) -> Table:
    return {dtype: CommitConfig(maxnreg=maxnreg) for dtype in DTYPES}


# Waves of 64 lanes: with 16-bit dtypes it takes 4096 ids to give each lane 128 bits.
_CDNA: Table = {dtype: CommitConfig(block=2048 if dtype == torch.float32 else 4096, wait=True) for dtype in DTYPES}
_RDNA: Table = {dtype: CommitConfig() for dtype in DTYPES}
_AMD = dict.fromkeys(CDNA, _CDNA) | dict.fromkeys(RDNA, _RDNA)

# With 80 registers, three programs of 8 warps fit a processor. token_stats, which sums exponentials, needs more of them
# on the two newest architectures.
COMMIT: dict[str, Table] = {name: _nvidia(80) for name in NVIDIA} | _AMD
STATS: dict[str, Table] = {name: _nvidia(96 if name in ("sm_100", "sm_120") else 80) for name in NVIDIA} | _AMD


def workspace_of(logits: torch.Tensor, n_tickets: int) -> tuple[int, int]:
    """The numbers of partials and tickets that a launch over the rows of these logits needs."""
    rows = math.prod(logits.shape[:-1])
    splits = splits_of(rows, logits.size(-1), device_of(logits.device).processors)
    return PLANES * rows * splits, n_tickets


def split_counts() -> list[int]:
    """Every number of splits that a launch may choose."""
    return [1 << k for k in range(MOST_SPLITS.bit_length())]


def splits_of(rows: int, vocabulary: int, processors: int) -> int:
    """How many programs share a row: a power of two that fills the device and leaves each program enough ids."""
    wanted = min(processors * PROGRAMS_PER_PROCESSOR // max(rows, 1), -(-vocabulary // LEAST_SPLIT), MOST_SPLITS)
    return 1 << (max(wanted, 1).bit_length() - 1)

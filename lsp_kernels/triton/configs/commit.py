"""Launch options of the commit kernels: blocks of ids per architecture and dtype, and splits of the vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._shapes import batch_of
from ...rule import PrefixRule
from .device import CDNA, DTYPES, NVIDIA, RDNA, device_of

MOST_SPLITS = 16
LEAST_SPLIT = 8192  # ids; a program with fewer costs more than it saves
PROGRAMS_PER_PROCESSOR = 4


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
    maxnreg_unaligned : int, optional
        The same for rows that are not aligned. Their ids are loaded one by one, which takes more registers.
    maxnreg_more : int, optional
        The same for kernels that compute more than usual: noise, the entropy, or the log-odds of a commit.
    wait : bool
        Whether a barrier leaves the stores of other waves in flight (gfx9), so that a wait must come before it.
    fast : bool
        Whether the logarithms of noise are NVIDIA's instruction.
    """

    block: int = 2048
    warps: int = 8
    rows: int = 256
    maxnreg: int | None = None
    maxnreg_unaligned: int | None = None
    maxnreg_more: int | None = None
    wait: bool = False
    fast: bool = False

    def options(self, aligned: bool = True, more: bool = False) -> dict[str, int]:
        """The launch options under Triton's names."""
        bound = self.maxnreg_more if more else self.maxnreg if aligned else self.maxnreg_unaligned
        return {"num_warps": self.warps, "num_stages": 1, **({} if bound is None else {"maxnreg": bound})}


Table = dict[torch.dtype, CommitConfig]


def _nvidia(maxnreg: int, more: int = 128) -> Table:
    return dict.fromkeys(DTYPES, CommitConfig(maxnreg=maxnreg, maxnreg_unaligned=96, maxnreg_more=more, fast=True))


# Waves of 64 lanes: with 16-bit dtypes it takes 4096 ids to give each lane 128 bits.
_CDNA: Table = {dtype: CommitConfig(block=2048 if dtype == torch.float32 else 4096, wait=True) for dtype in DTYPES}
_RDNA: Table = {dtype: CommitConfig() for dtype in DTYPES}
_AMD = dict.fromkeys(CDNA, _CDNA) | dict.fromkeys(RDNA, _RDNA)

# With 80 registers, three programs of 8 warps fit a processor, with 128 two. token_stats, which sums exponentials,
# needs more of them on the two newest architectures.
COMMIT: dict[str, Table] = {name: _nvidia(80) for name in NVIDIA} | _AMD
STATS: dict[str, Table] = {name: _nvidia(80) for name in NVIDIA} | _AMD
STATS |= {"sm_100": _nvidia(96), "sm_120": _nvidia(96, more=160)}
# select_prefix reads no logits: one program per sequence, with a thread for every row of a chunk.
SELECT: dict[str, CommitConfig] = dict.fromkeys((*NVIDIA, *CDNA, *RDNA), CommitConfig())


@dataclass(frozen=True)
class Slots:
    """The rows of a commit_prefix that get programs, as far as shapes and the rule tell.

    Packed sequences have one slot per row. A batch has `per_sequence` slots per sequence, for its first active rows.
    """

    count: int
    per_sequence: int
    likely: int  # about how many of them are scored


def commit_slots(logits: Tensor, cu_rows: Tensor | None, n_active: Tensor | None, rule: PrefixRule) -> Slots:
    """The slots of a launch of commit_prefix.

    Without `n_active`, N is at most the number of rows of a sequence, and the number of scored rows grows with N, so no
    sequence of L rows has more than scored_rows(L) of them. With `n_active`, N may be larger and all rows scored.
    """
    row_dims = logits.dim() - 1
    rows, batch, length = math.prod(logits.shape[:-1]), batch_of(logits, row_dims, cu_rows), logits.size(row_dims - 1)
    if cu_rows is not None:
        # Callers that know N pass only the rows which are scored; else sequences of equal length are a fair guess.
        guess = rows if n_active is not None else batch * rule.scored_rows(-(-rows // max(batch, 1)))
        return Slots(rows, 0, min(guess, rows))
    scored = rule.scored_rows(length)
    per_sequence = scored if n_active is None else length
    return Slots(batch * per_sequence, per_sequence, rows if row_dims == 1 and n_active is not None else batch * scored)


def commit_workspace(
    logits: Tensor, cu_rows: Tensor | None, n_active: Tensor | None, rule: PrefixRule
) -> tuple[int, int]:
    """The numbers of partials and tickets that a launch of commit_prefix needs."""
    slots = commit_slots(logits, cu_rows, n_active, rule)
    splits = splits_of(slots.likely, logits.size(-1), device_of(logits.device).processors)
    return room_of(slots.count, splits, MOST_PLANES, batch_of(logits, logits.dim() - 1, cu_rows))


def stats_workspace(logits: Tensor) -> tuple[int, int]:
    """The numbers of partials and tickets that a launch of token_stats needs."""
    rows = math.prod(logits.shape[:-1])
    return room_of(rows, splits_of(rows, logits.size(-1), device_of(logits.device).processors), MOST_PLANES)


def planes(noise: bool, rest: bool, entropy: bool) -> int:
    """The number of partials per row and split: best, second and id, and what is kept of the others.

    For the log-odds (`rest`) a weight, with noise also two clean logits; for the entropy another weight.
    """
    return 3 + rest * (3 if noise else 1) + entropy


MOST_PLANES = planes(noise=True, rest=True, entropy=True)


def room_of(rows: int, splits: int, planes: int, sequences: int = 0) -> tuple[int, int]:
    """The numbers of partials and tickets: of every row, if rows are split, and a ticket of every sequence."""
    shared = rows if splits > 1 else 0
    return planes * shared * splits, sequences + shared


def split_counts() -> list[int]:
    """Every number of splits that a launch may choose."""
    return [1 << k for k in range(MOST_SPLITS.bit_length())]


def splits_of(rows: int, vocabulary: int, processors: int) -> int:
    """How many programs share a row: a power of two that fills the device and leaves each program enough ids."""
    wanted = min(processors * PROGRAMS_PER_PROCESSOR // max(rows, 1), -(-vocabulary // LEAST_SPLIT), MOST_SPLITS)
    return 1 << (max(wanted, 1).bit_length() - 1)

"""Fences on the way from a write to a read: fence.proxy.async.

Matrix instructions read shared memory through the async proxy. What the generic proxy wrote is visible there only if a
fence.proxy.async lies on the path by which the write happens before the read: executed by the writer after the write
and before a barrier, by the reader after that barrier, or by any warp between two barriers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .dtypes import Array
from .errors import UnsupportedPtx
from .operands import Operands
from .parse import Instruction
from .table import Mask, Modifiers, Step, opcode

if TYPE_CHECKING:
    from .cta import Cta


class Fences:
    """When each warp executed its last fence of one kind, and which of these a barrier has followed."""

    def __init__(self, warps: int) -> None:
        self.time = np.zeros(warps, np.int64)
        self.epoch = np.full(warps, -1, np.int64)
        self.published_time = self.time.copy()  # of fences before the last barrier
        self.published_epoch = -1

    def fence(self, warps: Array, time: int, epoch: int) -> None:
        self.time[warps] = time
        self.epoch[warps] = epoch

    def barrier(self) -> None:
        self.published_time = self.time.copy()
        self.published_epoch = int(self.epoch.max())

    def between(self, writers: Array, times: Array, epochs: Array, reader: int) -> Array:
        """Whether a fence lies between writes (by warp, time and epoch) and what `reader` does now, after a barrier
        unless it is the writer itself."""
        by_writer = self.published_time[writers] > times
        by_reader = (self.epoch[reader] > epochs) | ((writers == reader) & (self.time[reader] > times))
        return by_writer | by_reader | (self.published_epoch > epochs)


@opcode("fence.proxy.async(?:.shared::cta)?")
def _proxy_fence(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    if instruction.operands:
        raise UnsupportedPtx("number of operands")

    def step(cta: Cta, mask: Mask) -> None:
        if cta.shared_order:
            cta.shared_order.proxy_fence(_fencing(cta, mask))

    return step


def _fencing(cta: Cta, mask: Mask) -> Array:
    """The warps all of whose threads execute: a fence of part of a warp orders nothing here."""
    if mask is None:
        return np.unique(cta.warps)
    return np.nonzero(mask.reshape(-1, 32).all(1))[0]

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
from .warp import warps_of

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

    def before_barrier(self, warps: Array, times: Array) -> Array:
        """Whether warps fenced after what they did at some times and before the last barrier."""
        return self.published_time[warps] > times

    def after_barrier(self, warps: Array | int, epochs: Array) -> Array:
        """Whether warps fenced after the barriers that ended some epochs."""
        return self.epoch[warps] > epochs

    def between(self, writers: Array, times: Array, epochs: Array, reader: int) -> Array:
        """Whether a fence lies between writes (by warp, time and epoch) and what `reader` does now, after a barrier
        unless it is the writer itself."""
        own = (writers == reader) & (self.time[reader] > times)
        one_side = self.before_barrier(writers, times) | self.after_barrier(reader, epochs)
        return own | one_side | (self.published_epoch > epochs)


@opcode("fence.proxy.async(?:.shared::cta)?")
def _proxy_fence(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    if instruction.operands:
        raise UnsupportedPtx("number of operands")

    def step(cta: Cta, mask: Mask) -> None:
        if cta.shared_order:
            cta.shared_order.proxy_fence(warps_of(cta, mask))

    return step

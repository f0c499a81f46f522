"""Happens-before checks of shared memory: between the warps of a CTA, and with what reads it asynchronously.

Between barriers no warp may touch what another writes. A matrix instruction (wgmma, tcgen05.mma) reads shared memory at
any time between its issue and the wait for it, through the async proxy: ordinary stores and cp.async must be made
visible to it by a fence.proxy.async, and nobody may store over its operands before they know that it is done.

Accesses of one warp count as ordered: a missing `bar.warp.sync` is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .dtypes import Array
from .errors import AccessError, PtxError, RaceError
from .proxy import Fences

WARPS = 64  # stamps are epoch * 64 + warp; warp 63 stands for several
SEVERAL = 63
ROW = 16  # bytes: matrices lie in shared memory in pieces of this size


@dataclass(eq=False)
class Reader:
    """A matrix instruction that reads rows of 16 bytes, and which warps know that it is done."""

    rows: Array
    known: Array = field(default_factory=lambda: np.zeros(WARPS, bool))


class SharedOrder:
    """Who wrote and read each byte since the last barrier, and what is still under way."""

    def __init__(self, size: int) -> None:
        self.epoch = 0
        self.clock = 0  # counts stores and fences
        self.written = np.full(size, -1, np.int32)
        self.stored_at = np.zeros(size, np.int32)  # the clock of the last store
        self.read = np.full(size, -1, np.int32)
        self.in_flight = np.zeros(size, bool)  # destinations of cp.async not waited for
        self.opaque = np.zeros(size, bool)  # mbarriers, from their init until their inval
        self.readers: list[Reader] = []
        self.proxy_fences = Fences(WARPS)

    def barrier(self) -> None:
        self.epoch += 1
        self.proxy_fences.barrier()
        self.readers = [reader for reader in self.readers if not reader.known.any()]  # now everybody knows

    def proxy_fence(self, warps: Array) -> None:
        self.clock += 1
        self.proxy_fences.fence(warps, self.clock, self.epoch)

    def load(self, warps: Array, offsets: Array, width: int, *, mbarrier: bool = False) -> None:
        rows, now = offsets // width, self.epoch * WARPS
        self._check_kind(rows, width, mbarrier)
        mine = (now + warps).astype(np.int32)[:, None]
        self._has_landed(rows, width)
        written = self.written.reshape(-1, width)[rows]
        if ((written >= now) & (written != mine)).any():
            raise RaceError("shared memory: load of a word that another warp wrote, no barrier since")
        table = self.read.reshape(-1, width)
        before = table[rows]
        table[rows] = np.where((before >= now) & (before != mine), now + SEVERAL, mine)
        lost = table[rows] != mine  # several warps in this very instruction
        if lost.any():
            table[rows] = np.where(lost, now + SEVERAL, table[rows])

    def _has_landed(self, rows: Array, width: int) -> None:
        if self.in_flight.reshape(-1, width)[rows].any():
            raise RaceError("shared memory: load of a cp.async destination before its wait_group")
        if (self.written.reshape(-1, width)[rows] < 0).any():
            raise AccessError("load of shared memory that was never written")

    def _check_kind(self, rows: Array, width: int, mbarrier: bool) -> None:
        """Whether bytes are an mbarrier is for its own instructions alone to see."""
        if self.opaque.reshape(-1, width)[rows].any() and not mbarrier:
            raise PtxError("shared memory: an ordinary access to an mbarrier that is not invalidated")

    def store(self, warps: Array, offsets: Array, width: int, *, mbarrier: bool = False) -> None:
        self.may_store(warps, offsets, width, mbarrier=mbarrier)
        self.clock += 1
        mine = (self.epoch * WARPS + warps).astype(np.int32)[:, None]
        self.written.reshape(-1, width)[offsets // width] = mine
        self.stored_at.reshape(-1, width)[offsets // width] = self.clock

    def may_store(self, warps: Array, offsets: Array, width: int, *, mbarrier: bool = False) -> None:
        rows, now = offsets // width, self.epoch * WARPS
        self._check_kind(rows, width, mbarrier)
        mine = (now + warps)[:, None]
        if self.in_flight.reshape(-1, width)[rows].any():
            raise RaceError("shared memory: store over a cp.async destination before its wait_group")
        for reader in self.readers:
            if (reader.rows[offsets // ROW] & ~reader.known[warps]).any():
                raise RaceError("shared memory: store over a word that a matrix instruction in flight reads")
        read = self.read.reshape(-1, width)[rows]
        if ((read >= now) & (read != mine)).any():
            raise RaceError("shared memory: store over a word that another warp read, no barrier since")
        written = self.written.reshape(-1, width)[rows]
        if ((written >= now) & (written != mine)).any():
            raise RaceError("shared memory: two warps store to one word, no barrier between")

    def start_copy(self, warps: Array, offsets: Array, width: int) -> None:
        """A cp.async may write at any time from now until it is waited for."""
        self.may_store(warps, offsets, width)
        self.in_flight.reshape(-1, width)[offsets // width] = True

    def finish_copy(self, warps: Array, offsets: Array, width: int) -> None:
        self.in_flight.reshape(-1, width)[offsets // width] = False
        self.store(warps, offsets, width)

    def start_read(self, warps: Sequence[int], rows: Array) -> Reader:
        """A matrix instruction of some warps, each of which reads all rows, may read until it is waited for."""
        now = self.epoch * WARPS
        self._has_landed(rows, ROW)
        written = self.written.reshape(-1, ROW)[rows]
        own = now + warps[0] if len(warps) == 1 else -1
        if ((written >= now) & (written != own)).any():
            raise RaceError("shared memory: matrix instruction on a word that another warp wrote, no barrier since")
        times, epochs, writers = self.stored_at.reshape(-1, ROW)[rows], written // WARPS, written % WARPS
        for warp in warps:
            if not self.proxy_fences.between(writers, times, epochs, warp).all():
                raise RaceError("shared memory: matrix instruction on a word written since the last fence.proxy.async")
        mask = np.zeros(self.written.size // ROW, bool)
        mask[rows] = True
        reader = Reader(mask)
        self.readers.append(reader)
        return reader

    def finish_read(self, reader: Reader) -> None:
        """The warps that read have waited, each for its own part: to all others it is as if the read were now."""
        self.readers = [other for other in self.readers if other is not reader]
        self.read.reshape(-1, ROW)[reader.rows] = self.epoch * WARPS + SEVERAL

"""Happens-before checks of tensor memory, warp by warp.

A load or store of a warp (tcgen05.ld, tcgen05.st) is done when that warp has waited for it; between those of different
warps there must be a barrier, too. An mma runs at any time between its issue and the moment when an mbarrier tells that
it is done. A warp that has waited for the mbarrier knows, and after the next barrier all warps know. Until then a warp
may not touch what the mma reads and writes. Further mmas of the same thread on the very same accumulator are ordered by
themselves; any other pair of mmas is not.

The PTX manual also has a `tcgen05.fence::before_thread_sync` before and an `::after_thread_sync` behind whatever
synchronises threads (a tcgen05.commit does the former by itself). Triton's compiler emits neither, so they are demanded
only if `fences` is set.
"""

from __future__ import annotations

import numpy as np

from .dtypes import Array
from .errors import RaceError
from .proxy import Fences
from .shared_order import SEVERAL, WARPS
from .tensor_memory import COLUMNS, LANES, Batch, Place, Tile


class Accesses:
    """The last access of one kind to each word: who, when, and whether it has been waited for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stamp = np.full((LANES, COLUMNS), -1, np.int32)  # epoch * 64 + warp; warp 63 stands for several
        self.time = np.zeros((LANES, COLUMNS), np.int32)
        self.unwaited = np.full((LANES, COLUMNS), -1, np.int8)  # the warp that has not waited

    def note(self, place: Place, warps: Array, epoch: int, time: int) -> None:
        mine, before = (epoch * WARPS + warps)[:, None], self.stamp[place]
        self.stamp[place] = np.where((before >= epoch * WARPS) & (before != mine), epoch * WARPS + SEVERAL, mine)
        self.time[place] = time
        self.unwaited[place] = warps[:, None]

    def wait(self, warps: Array) -> None:
        self.unwaited[np.isin(self.unwaited, warps)] = -1


class TensorOrder:
    """Who touched which word of tensor memory since the last barrier, and what is still under way."""

    def __init__(self, fences: bool) -> None:
        self.fences = fences
        self.epoch = 0
        self.clock = 0
        self.stores, self.loads = Accesses("tcgen05.st"), Accesses("tcgen05.ld")
        self.batches: list[Batch] = []  # that some warp does not know to be done
        self.before_sync, self.after_sync = Fences(WARPS), Fences(WARPS)

    def barrier(self) -> None:
        self.epoch += 1
        self.clock += 1
        self.before_sync.barrier()
        for batch in self.batches:
            if batch.known.any() and not batch.known.all():
                self._learn(batch, np.nonzero(~batch.known)[0])
        if not self.fences:
            self.batches = [batch for batch in self.batches if not batch.known.all()]

    def fence(self, warps: Array, *, before: bool) -> None:
        self.clock += 1
        (self.before_sync if before else self.after_sync).fence(warps, self.clock, self.epoch)

    def done(self, batches: list[Batch], warps: Array) -> None:
        """Some warps have waited for mmas."""
        self.clock += 1
        for batch in batches:
            self._learn(batch, warps[~batch.known[warps]])

    def _learn(self, batch: Batch, warps: Array) -> None:
        batch.known[warps] = True
        batch.known_at[warps] = self.clock
        for reader in batch.readers:
            reader.known[warps] = True

    def load(self, warps: Array, place: Place) -> None:
        self._after(self.stores, warps, place, "load")
        self._after_mmas(warps, place, "load", over_operands=False)
        self.clock += 1
        self.loads.note(place, warps, self.epoch, self.clock)

    def store(self, warps: Array, place: Place) -> None:
        self._after(self.stores, warps, place, "store")
        self._after(self.loads, warps, place, "store")
        self._after_mmas(warps, place, "store", over_operands=True)
        self.clock += 1
        self.stores.note(place, warps, self.epoch, self.clock)

    def mma(self, batch: Batch, warp: int, target: Tile, operand: Tile | None) -> None:
        """A new mma of a batch: it reads its operand, and writes and perhaps reads its target."""
        warps = np.array([warp])
        if operand is not None:
            self._after(self.stores, warps, operand.place, "mma")
            self._after_mmas(warps, operand.place, "mma", over_operands=False)
            batch.operands.add(operand)
        self._after(self.stores, warps, target.place, "mma")
        self._after(self.loads, warps, target.place, "mma")
        self._after_mmas(warps, target.place, "mma", over_operands=True, pipelined=(batch.thread, target))
        batch.targets.add(target)
        if batch not in self.batches:
            self.batches.append(batch)

    def free(self, warp: int) -> None:
        """All of the tensor memory is given back."""
        everything = Tile(LANES, 0, 0, COLUMNS).place
        self._after(self.stores, np.array([warp]), everything, "freed")
        self._after(self.loads, np.array([warp]), everything, "freed")
        self._after_mmas(np.array([warp]), everything, "freed", over_operands=True)

    def _after(self, accesses: Accesses, warps: Array, place: Place, verb: str) -> None:
        now, mine = self.epoch * WARPS, (self.epoch * WARPS + warps)[:, None]
        if (accesses.unwaited[place] >= 0).any():
            raise RaceError(f"tensor memory: {verb} before the wait for the {accesses.name} of the same word")
        stamp = accesses.stamp[place]
        if ((stamp >= now) & (stamp != mine)).any():
            raise RaceError(f"tensor memory: {verb} after the {accesses.name} of another warp, no barrier since")
        if self.fences:
            self._check_fences(stamp, accesses.time[place], warps, verb)

    def _check_fences(self, stamp: Array, times: Array, warps: Array, verb: str) -> None:
        others = (stamp >= 0) & (stamp % WARPS != warps[:, None])
        both = self.before_sync.before_barrier(stamp % WARPS, times)
        both &= self.after_sync.after_barrier(warps[:, None], stamp // WARPS)
        if (others & ~both).any():
            raise RaceError(f"tensor memory: {verb} without tcgen05.fence on both sides of the barrier before it")

    def _after_mmas(
        self,
        warps: Array,
        place: Place,
        verb: str,
        *,
        over_operands: bool,
        pipelined: tuple[int, Tile] | None = None,
    ) -> None:
        for batch in self.batches:
            unknown = ~batch.known[warps]
            if self.fences:
                unknown |= self.after_sync.time[warps] < batch.known_at[warps]
            if not unknown.any():
                continue
            others = {tile for tile in batch.targets if (batch.thread, tile) != pipelined}
            for tile in (others | batch.operands) if over_operands else others:
                if (tile.covers(place) & unknown[:, None]).any():
                    raise RaceError(f"tensor memory: {verb} of a word of an mma that the warp does not know to be done")

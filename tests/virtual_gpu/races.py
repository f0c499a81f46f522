"""Happens-before checks on the executed schedule, at the level of the PTX memory model.

Within a CTA a barrier orders everything before it against everything after it. Between CTAs only a
release observed by an acquire does: a release by thread t at time s covers what t itself did until
then and, because barriers are cumulative, what any thread of the CTA did before the last barrier.
What is acquired belongs to the acquiring thread until the next barrier shares it with the CTA.

CTAs run one after the other, so a race is found from the missing order, not from a wrong value.
Shared memory has an order of its own, in `shared_order.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dtypes import Array
from .errors import RaceError
from .memory import Access, Segment


@dataclass(frozen=True)
class Release:
    """Covers an access by `thread` up to `time`, and by any thread up to `barrier`."""

    barrier: int
    thread: int
    time: int

    def covers(self, threads: Array, times: Array) -> Array:
        return (times <= self.barrier) | ((threads == self.thread) & (times <= self.time))


Knowledge = dict[int, set[Release]]  # of each CTA, the releases one is ordered after


def _learn(known: Knowledge, more: Knowledge) -> None:
    for cta, releases in more.items():
        known.setdefault(cta, set()).update(releases)


class Stamps:
    """The last write of each byte of a segment: CTA (-1 for none), thread, time, atomic or not."""

    def __init__(self, size: int) -> None:
        self.cta = np.full(size, -1, np.int32)
        self.thread = np.zeros(size, np.int32)
        self.time = np.zeros(size, np.int32)
        self.atomic = np.zeros(size, bool)


class LaunchOrder:
    """What outlives a CTA: write stamps per segment and what was released at each address.

    `tensor_fences` says whether tensor memory needs its own fences around barriers; see `tensor_order.py`.
    """

    def __init__(self, tensor_fences: bool = False) -> None:
        self.tensor_fences = tensor_fences
        self.stamps: dict[Segment, Stamps] = {}
        self.released: dict[int, Knowledge] = {}


class CtaOrder:
    """The order of one CTA's global accesses with its own and with other CTAs' accesses."""

    def __init__(self, launch: LaunchOrder, cta: int) -> None:
        self.launch = launch
        self.cta = cta
        self.last_barrier = 0
        self.known: Knowledge = {}
        self.known_by: dict[int, Knowledge] = {}  # acquired by a thread since the last barrier
        self.unfenced: dict[int, Knowledge] = {}  # read by relaxed atomics, acquired by a fence
        self.fences: dict[int, Release] = {}  # what a thread's relaxed atomics release

    def barrier(self, time: int) -> None:
        self.last_barrier = time
        for known in self.known_by.values():
            _learn(self.known, known)
        self.known_by = {}

    def fence(self, threads: Array, time: int) -> None:
        for thread in threads.tolist():
            self.fences[thread] = Release(self.last_barrier, thread, time)
            _learn(self.known_by.setdefault(thread, {}), self.unfenced.pop(thread, {}))

    def atomic(self, address: int, thread: int, time: int, acquire: bool, release: bool) -> None:
        """An atomic of GPU scope: exchange knowledge through its address."""
        there = self.launch.released.setdefault(address, {})
        _learn((self.known_by if acquire else self.unfenced).setdefault(thread, {}), there)
        mine = Release(self.last_barrier, thread, time) if release else self.fences.get(thread)
        if mine is not None:
            _learn(there, {self.cta: {mine}})
            _learn(there, self.known)
            _learn(there, self.known_by.get(thread, {}))

    def _unordered(self, cta: int, threads: Array, times: Array, me: Array) -> Array:
        """Which earlier accesses (thread, time) of a CTA are not ordered before thread `me` now."""
        if cta == self.cta:
            return (threads != me) & (times > self.last_barrier)
        unordered = np.ones(np.broadcast_shapes(threads.shape, times.shape, me.shape), bool)
        for release in self.known.get(cta, ()):
            unordered &= ~release.covers(threads, times)
        for thread, known in self.known_by.items():
            for release in known.get(cta, ()):
                unordered &= ~(release.covers(threads, times) & (me == thread))
        return unordered

    def after_writes(self, segment: Segment, access: Access, what: str) -> None:
        """Every byte accessed must be ordered after the last write to it."""
        stamps = self.launch.stamps.get(segment)
        if stamps is None:
            return
        rows, width = access.offsets // access.width, access.width
        cta = stamps.cta.reshape(-1, width)[rows]
        suspect = cta >= 0
        if what == "atomic":
            suspect &= ~stamps.atomic.reshape(-1, width)[rows]
        if not suspect.any():
            return
        thread = stamps.thread.reshape(-1, width)[rows]
        time = stamps.time.reshape(-1, width)[rows]
        for other in np.unique(cta[suspect]).tolist():
            racing = self._unordered(other, thread, time, access.threads[:, None])
            if (racing & suspect & (cta == other)).any():
                raise RaceError(f"{what} in {segment.name} {self._not_after(other, 'written')}")

    def after_reads(self, segment: Segment, access: Access, what: str) -> None:
        """A write must be ordered after every earlier read of its bytes."""
        low, high = access.span
        for read in segment.loads:
            first, end = read.span
            if first >= high or low >= end or (read.cta == self.cta and read.time <= self.last_barrier):
                continue
            mine, theirs = access.offsets[:, None], read.offsets[None, :]
            overlap = (mine < theirs + read.width) & (theirs < mine + access.width)
            times = np.full(1, read.time)
            racing = self._unordered(read.cta, read.threads[None, :], times, access.threads[:, None])
            if (overlap & racing).any():
                raise RaceError(f"{what} in {segment.name} {self._not_after(read.cta, 'read')}")

    def wrote(self, segment: Segment, access: Access, atomic: bool) -> None:
        """Stamp a write. A plain store also ends what was released at its address."""
        if not atomic and self.launch.released:
            for address in (access.offsets + segment.base).tolist():
                self.launch.released.pop(address, None)
        stamps = self.launch.stamps.get(segment)
        if stamps is None:
            stamps = self.launch.stamps[segment] = Stamps(segment.window.size)
        rows, width = access.offsets // access.width, access.width
        stamps.cta.reshape(-1, width)[rows] = self.cta
        stamps.thread.reshape(-1, width)[rows] = access.threads[:, None]
        stamps.time.reshape(-1, width)[rows] = access.time
        stamps.atomic.reshape(-1, width)[rows] = atomic

    def _not_after(self, other: int, verb: str) -> str:
        if other == self.cta:
            return f"of a word {verb} by another thread, with no barrier since"
        return f"of a word {verb} by another program, which no release and acquire order before it"

"""mbarriers, as far as tcgen05.commit uses them: init, try_wait by parity, inval.

A phase of an mbarrier is complete when as many commits as its count say have arrived. A commit arrives when the mmas
before it are done, at any time until somebody waits for it; here that is when somebody waits. A wait by parity can tell
a phase from the one before and after it, but not from the next but one. So before a commit may complete a phase, every
warp that waits for this mbarrier must have seen the phase before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import Array
from .errors import PtxError, RaceError, UnsupportedPtx
from .operands import Operands
from .parse import Instruction
from .table import Mask, Modifiers, Step, opcode
from .tensor_memory import Batch
from .warp import WARP, warps_of, whole_warps

if TYPE_CHECKING:
    from .cta import Cta

WIDTH = 8  # bytes


@dataclass
class Mbarrier:
    count: int
    phases: int = 0  # that are complete
    looked: bool = False  # somebody has looked at the running phase in vain
    arrivals: list[list[Batch]] = field(default_factory=list)  # commits since then, with the mmas that they wait for
    done: list[Batch] = field(default_factory=list)  # the mmas of all complete phases
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # by each warp: complete phases, and in which epoch

    def arrive(self, batches: list[Batch], warp: int, epoch: int) -> None:
        phase = self.phases + len(self.arrivals) // self.count
        for waiting, (phases, when) in self.seen.items():
            if phases < phase or (waiting != warp and when >= epoch):
                raise RaceError("mbarrier: commit before all warps have seen the phase before, and a barrier since")
        if phase > self.phases:
            raise RaceError("mbarrier: commit before anybody has seen the phase before")
        self.arrivals.append(batches)

    def may_complete(self) -> bool:
        return len(self.arrivals) >= self.count

    def next_phase(self) -> list[Batch]:
        """Completes a phase; returns the mmas that are done now."""
        arrived, self.arrivals = self.arrivals[: self.count], self.arrivals[self.count :]
        self.phases += 1
        self.looked = False
        finished = [batch for batches in arrived for batch in batches]
        self.done += finished
        return finished


def one_thread(mask: Mask) -> int:
    if mask is None or mask.sum() != 1:
        raise UnsupportedPtx("an instruction for one thread, executed by several")
    return int(np.nonzero(mask)[0][0])


def find(cta: Cta, addresses: Array, threads: Array) -> Mbarrier:
    """The one mbarrier that some threads name. They must come after its init."""
    offsets = cta.shared.locate(addresses[threads], WIDTH, "mbarrier access")
    barrier = cta.mbarriers.get(int(offsets[0]))
    if barrier is None or (offsets != offsets[0]).any():
        raise PtxError("not one mbarrier that is initialised")
    if cta.shared_order:
        cta.shared_order.load(cta.warps[threads], offsets, WIDTH, mbarrier=True)
    return barrier


@opcode("mbarrier.init.shared::cta.b64")
def _init(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    target, size = instruction.operands
    address, count = operands.address(target), operands.integer(size)
    if count < 1:
        raise UnsupportedPtx("count")

    def step(cta: Cta, mask: Mask) -> None:
        offset = _change(cta, address(cta), one_thread(mask))
        if offset in cta.mbarriers:
            raise PtxError("an mbarrier is initialised twice")
        cta.mbarriers[offset] = Mbarrier(count)
        _mark(cta, offset, True)

    return step


@opcode("mbarrier.inval.shared::cta.b64")
def _inval(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    (target,) = instruction.operands
    address = operands.address(target)

    def step(cta: Cta, mask: Mask) -> None:
        thread = one_thread(mask)
        offset = _change(cta, address(cta), thread)
        barrier = cta.mbarriers.pop(offset, None)
        if barrier is None:
            raise PtxError("an mbarrier is invalidated that is not initialised")
        if barrier.arrivals:
            raise RaceError("mbarrier: invalidated while a commit may still arrive")
        _mark(cta, offset, False)

    return step


def _change(cta: Cta, addresses: Array, thread: int) -> int:
    """The offset of an mbarrier that a thread makes or ends; to others that is as a store."""
    offsets = cta.shared.locate(addresses[thread : thread + 1], WIDTH, "mbarrier access")
    if cta.shared_order:
        cta.shared_order.store(np.array([thread // WARP]), offsets, WIDTH, mbarrier=True)
    return int(offsets[0])


def _mark(cta: Cta, offset: int, opaque: bool) -> None:
    if cta.shared_order:
        cta.shared_order.opaque[offset : offset + WIDTH] = opaque


@opcode("mbarrier.try_wait.parity.shared::cta.b64")
def _try_wait(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """The first look at a phase is always in vain: a try_wait may give up, so code must look again."""
    result, target, parity = instruction.operands
    put, address, wanted = operands.target(result, "pred"), operands.address(target), operands.source(parity, "b32")

    def step(cta: Cta, mask: Mask) -> None:
        whole_warps(mask)
        warps = warps_of(cta, mask)
        threads = cta.threads if mask is None else np.nonzero(mask)[0]
        barrier = find(cta, address(cta), threads)
        parities = wanted(cta)[threads] & 1
        if (parities != parities[0]).any():
            raise UnsupportedPtx("warps that wait for different phases at once")
        if barrier.phases % 2 == parities[0] and barrier.may_complete():
            if barrier.looked:
                cta.tensor.finish(barrier.next_phase())
            else:
                barrier.looked = True
        passed = barrier.phases % 2 != parities[0]
        if passed:
            _see(cta, barrier, warps)
        else:
            cta.stalled[threads] = not barrier.may_complete()
        put(cta, np.full(cta.threads.size, passed), mask)

    return step


def _see(cta: Cta, barrier: Mbarrier, warps: Array) -> None:
    if not cta.tensor_order:
        return
    for warp in warps.tolist():
        barrier.seen[warp] = (barrier.phases, cta.tensor_order.epoch)
    cta.tensor_order.done(barrier.done, warps)

"""Asynchronous copies from global to shared memory: cp.async with its groups.

A copy reads global memory when it is issued and lands when its group is waited for. Each thread has groups of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import Array
from .errors import UnsupportedPtx
from .loadstore import HINTS, active_threads, load_global, scatter
from .operands import Operands
from .parse import Instruction
from .table import Mask, Modifiers, Step, opcode

if TYPE_CHECKING:
    from .cta import Cta


@dataclass(frozen=True)
class Copy:
    """A cp.async on its way: where it lands and what it brings."""

    threads: Array
    offsets: Array
    data: Array

    def part(self, threads: Array) -> Copy:
        """What some threads (a mask) copy of it."""
        mine = threads[self.threads]
        return Copy(self.threads[mine], self.offsets[mine], self.data[mine])


@dataclass
class Group:
    """Copies that threads (a mask) have committed together, and not waited for."""

    threads: Array
    copies: list[Copy]


@dataclass
class Pending:
    """The copies of one CTA that have not landed; groups from old to new."""

    uncommitted: list[Copy] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    def commit(self, threads: Array) -> None:
        self.groups.append(Group(threads, _parts(self.uncommitted, threads)))
        self.uncommitted = _parts(self.uncommitted, ~threads)

    def wait(self, threads: Array, left: int) -> list[Copy]:
        """The copies that land when threads wait for all of their groups but the newest `left`, oldest first."""
        landed: list[Copy] = []
        newer = np.zeros(threads.size, np.int64)
        for group in reversed(self.groups):
            landing = group.threads & threads & (newer >= left)
            newer += group.threads
            if landing.any():
                landed = _parts(group.copies, landing) + landed
                group.copies, group.threads = _parts(group.copies, ~landing), group.threads & ~landing
        self.groups = [group for group in self.groups if group.threads.any()]
        return landed


def _parts(copies: list[Copy], threads: Array) -> list[Copy]:
    parts = [copy.part(threads) for copy in copies]
    return [part for part in parts if part.threads.size]


def _mask(cta: Cta, mask: Mask) -> Array:
    return np.ones(cta.threads.size, bool) if mask is None else mask


@opcode(f"cp.async.c[ag].shared.global{HINTS}(?:.L2::(?:64|128|256)B)?")
def _cp_async(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    rest = list(instruction.operands)
    if found["hint"]:
        rest.pop()
    target, source, size, *given = rest
    width = operands.integer(size)
    if width not in (4, 8, 16) or len(given) > 1:
        raise UnsupportedPtx("copy size")
    to, of = operands.address(target), operands.address(source)
    taken = operands.source(given[0], "u32") if given else operands.constant(width, "u32")

    def step(cta: Cta, mask: Mask) -> None:
        threads, sizes = active_threads(cta, mask), taken(cta)
        if ((sizes[threads] != 0) & (sizes[threads] != width)).any():
            raise UnsupportedPtx("copy of part of a block")
        reading = np.zeros(cta.threads.size, bool)
        reading[threads] = sizes[threads] != 0
        data = np.zeros((cta.threads.size, width), np.uint8)
        if reading.any():
            data = load_global(cta, of(cta), width, reading)
        offsets = cta.shared.locate(to(cta)[threads], width, "cp.async")
        if cta.shared_order:
            cta.shared_order.start_copy(cta.warps[threads], offsets, width)
        cta.copies.uncommitted.append(Copy(threads, offsets, data[threads]))

    return step


@opcode("cp.async.commit_group")
def _commit_group(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return lambda cta, mask: cta.copies.commit(_mask(cta, mask))


@opcode("cp.async.wait_group", "cp.async.wait_all")
def _wait_group(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    everything = instruction.opcode == "cp.async.wait_all"
    left = 0 if everything else operands.integer(instruction.operands[0])

    def step(cta: Cta, mask: Mask) -> None:
        threads = _mask(cta, mask)
        if everything:
            cta.copies.commit(threads)
        for copy in cta.copies.wait(threads, left):
            width = copy.data.shape[1]
            if cta.shared_order:
                cta.shared_order.finish_copy(cta.warps[copy.threads], copy.offsets, width)
            scatter(cta.shared.rows(width), copy.offsets // width, copy.data)

    return step

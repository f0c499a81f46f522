"""One CTA: all its threads in lockstep, one instruction at a time.

Threads that diverge form groups by program counter; the group furthest behind runs until it meets
another, which reconverges them. A barrier must be reached by all living threads at one instruction.
Named barriers and clusters are not emulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from . import convert, copies, floating, integer, loadstore, mbarrier, proxy, tcgen05, tensor_core, warp, wgmma
from .dtypes import Array
from .errors import PtxError, RaceError, UnsupportedPtx
from .in_flight import InFlight
from .memory import GlobalMemory, SharedMemory
from .operands import Operands
from .parse import Address, Immediate, Instruction, Kernel, Register, Symbol, Vector, parse
from .races import CtaOrder
from .shared_order import SharedOrder
from .table import Mask, Step, build_all, is_control
from .tensor_memory import TensorMemory
from .tensor_order import TensorOrder

# They fill the table of opcodes.
FAMILIES = (convert, copies, floating, integer, loadstore, mbarrier, proxy, tcgen05, tensor_core, warp, wgmma)
WARP = 32
MAX_INSTRUCTIONS = 5_000_000


@dataclass(frozen=True)
class Program:
    """A kernel with every instruction decoded."""

    kernel: Kernel
    steps: list[Step | None]
    targets: list[int]  # of branches

    @classmethod
    def load(cls, ptx: str) -> Program:
        return _load(ptx)


@lru_cache(maxsize=64)
def _load(ptx: str) -> Program:
    kernel = parse(ptx)
    if kernel.threads % WARP:
        raise UnsupportedPtx(f"{kernel.threads} threads: not a multiple of {WARP}")
    steps = build_all(kernel, Operands(kernel))
    wgmma.check_register_accesses(kernel)
    return Program(kernel, steps, [_branch_target(kernel, i) for i in kernel.instructions])


def _branch_target(kernel: Kernel, instruction: Instruction) -> int:
    if instruction.family == "bra":
        (label,) = instruction.operands
        if not isinstance(label, Symbol) or label.name not in kernel.labels:
            raise UnsupportedPtx(f"label: {instruction.text}")
        return kernel.labels[label.name]
    if is_control(instruction) and instruction.family in ("bar", "barrier"):
        _check_barrier(instruction)
    return -1


def _check_barrier(instruction: Instruction) -> None:
    if instruction.operands != (Immediate(0),):
        raise UnsupportedPtx(f"named barrier: {instruction.text}")


class Cta:
    """Registers, memories and progress of one CTA. Instruction steps work on it."""

    def __init__(
        self,
        program: Program,
        params: Mapping[str, Array],
        memory: GlobalMemory,
        shared_size: int,
        index: int,
        position: tuple[int, int, int],
        grid: tuple[int, int, int],
        order: CtaOrder | None,
    ) -> None:
        self.program = program
        self.params = params
        self.memory = memory
        self.shared = SharedMemory(shared_size)
        self.index = index
        self.order = order
        self.shared_order = SharedOrder(self.shared.bytes.size) if order else None
        self.time = 0
        self.registers: list = [None] * len(program.kernel.registers)
        self.copies = copies.Pending()
        self.wgmma = wgmma.Pending()
        self.tensor = TensorMemory()
        self.tensor_order = TensorOrder(order.launch.tensor_fences) if order else None
        self.mbarriers: dict[int, mbarrier.Mbarrier] = {}  # by their offset in shared memory
        self.stalled = np.zeros(program.kernel.threads, bool)  # have looked at an mbarrier in vain
        self.threads = np.arange(program.kernel.threads)
        self.warps = self.threads // WARP
        self.specials = _specials(program.kernel.threads, position, grid)

    def run(self) -> None:
        """Execute until every thread has left the kernel."""
        ready: dict[int, Array] = {0: np.ones(self.threads.size, bool)}
        waiting: dict[int, Array] = {}
        with np.errstate(all="ignore"):
            while ready or waiting:
                if self.time > MAX_INSTRUCTIONS:
                    raise PtxError(f"more than {MAX_INSTRUCTIONS} instructions in one CTA")
                if not ready:
                    self._barrier(waiting)
                    ready, waiting = waiting, {}
                pc = self._next(ready)
                mask = ready.pop(pc)
                self._advance(pc, mask, ready, waiting)
        self.wgmma.check_finished()
        self.tensor.check_finished()

    def _next(self, ready: dict[int, Array]) -> int:
        """The group furthest behind of those that do not wait for an mbarrier in vain."""
        moving = [pc for pc, mask in ready.items() if not (mask & self.stalled).all(where=mask)]
        if not moving:
            raise PtxError("threads wait for a phase of an mbarrier that nobody completes")
        return min(moving)

    def _barrier(self, waiting: dict[int, Array]) -> None:
        if len(waiting) > 1:
            texts = {self.program.kernel.instructions[pc - 1].text for pc in waiting}
            raise PtxError(f"threads wait at {len(waiting)} different barriers: {texts}")
        if self.order and self.shared_order:
            self.order.barrier(self.time)
            self.shared_order.barrier()
        if self.tensor_order:
            self.tensor_order.barrier()

    def _advance(self, pc: int, mask: Array, ready: dict[int, Array], waiting: dict[int, Array]) -> None:
        """Run one group until it meets another, waits, splits or ends."""
        instructions, steps = self.program.kernel.instructions, self.program.steps
        stop = min((other for other in ready if other > pc), default=len(steps) + 1)
        everyone: Mask = None if mask.all() else mask
        while pc < stop:
            if pc >= len(steps):
                raise PtxError("ran past the end of the kernel")
            instruction, step = instructions[pc], steps[pc]
            self.time += 1
            active = everyone
            if instruction.guard is not None:
                active = self._guarded(instruction, mask)
                if active is not None and not active.any():
                    pc += 1
                    continue
            if step is None:
                self._control(pc, mask, mask if active is None else active, ready, waiting)
                return
            try:
                step(self, active)
            except PtxError as error:
                raise type(error)(f"{error}: {instruction.text}") from None
            except (AttributeError, TypeError):
                if not self._pack_garbage(instruction):
                    self._check_written(instruction)
                    raise
                step(self, active)
            pc += 1
        _join(ready, pc, mask)

    def _guarded(self, instruction: Instruction, mask: Array) -> Mask:
        value = self.registers[instruction.guard.slot]
        if value is None:
            self._check_written(instruction)
        active = mask & (~value if instruction.negated else value)
        return None if active.all() else active

    def _control(
        self,
        pc: int,
        mask: Array,
        active: Array,
        ready: dict[int, Array],
        waiting: dict[int, Array],
    ) -> None:
        family = self.program.kernel.instructions[pc].family
        rest = mask & ~active
        if rest.any():
            _join(ready, pc + 1, rest)
        if family == "bra":
            _join(ready, self.program.targets[pc], active)
        elif family in ("bar", "barrier"):
            _join(waiting, pc + 1, active)

    def _pack_garbage(self, instruction: Instruction) -> bool:
        """The compiler may pack a register that it never wrote beside one that it needs, and use that one alone later.
        Give the unwritten one a value that would be noticed if it were used."""
        if instruction.opcode != "mov.b64" or not isinstance(instruction.operands[1], Vector):
            return False
        missing = [r for r in instruction.operands[1].items if self.registers[r.slot] is None]
        for register in missing:
            self.registers[register.slot] = np.full(self.threads.size, 0xFFBADBAD, np.uint32)
        return bool(missing)

    def _check_written(self, instruction: Instruction) -> None:
        """Blame the first register that the instruction reads and no thread has written, or that is in flight."""
        for register in _registers_read(instruction):
            if self.registers[register.slot] is None:
                raise PtxError(f"{register.name} is read but was never written: {instruction.text}")
            if isinstance(self.registers[register.slot], InFlight):
                raise RaceError(f"{register.name} is read but {self.registers[register.slot]}: {instruction.text}")


def _registers_read(instruction: Instruction) -> Iterator[Register]:
    """Every register operand but the result, which comes first except in stores."""
    result, *sources = instruction.operands
    if isinstance(result, Address):
        sources.append(result.base)
    for operand in (instruction.guard, *sources):
        for item in operand.items if isinstance(operand, Vector) else (operand,):
            inner = getattr(item, "base", None) or getattr(item, "predicate", None) or item
            if isinstance(inner, Register):
                yield inner


def _join(groups: dict[int, Array], pc: int, mask: Array) -> None:
    groups[pc] = groups[pc] | mask if pc in groups else mask


def _specials(threads: int, position: tuple[int, int, int], grid: tuple[int, int, int]) -> dict[str, Array]:
    lanes = np.arange(threads, dtype=np.uint32)
    values = {"%tid.x": lanes, "%laneid": lanes % WARP, "%warpid": lanes // WARP}
    scalars = {"%tid.y": 0, "%tid.z": 0, "%ntid.x": threads}
    for axis, at, size in zip("xyz", position, grid, strict=True):
        scalars |= {f"%ctaid.{axis}": at, f"%nctaid.{axis}": size}
    return values | {name: np.full(threads, v, np.uint32) for name, v in scalars.items()}

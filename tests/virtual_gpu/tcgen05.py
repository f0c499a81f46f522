"""Matrix instructions of sm_100: tcgen05 with its tensor memory.

One thread issues a tcgen05.mma for the whole CTA. A tcgen05.commit makes a phase of an mbarrier complete when the mmas
that the thread issued before are done; here they run when somebody waits for that phase.

Instruction descriptor of kind::f16: bits 4-5 format of D (1 float32), 7-9 of A and 10-12 of B (0 float16, 1 bfloat16),
15 and 16 A or B is transposed, 17-22 N / 8, 24-28 M / 16.

tcgen05.ld and .st with shape 32x32b: lane l of warp w has lane 32 (w % 4) + l of tensor memory, and register r is
column c + r. Shape 16x32bx2: lanes 0 to 15 of the warp have 16 lanes of tensor memory, and register r is column c + r;
lanes 16 to 31 have the same 16 lanes and columns from c + an immediate on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .descriptor import K, blackwell_matrix, operand_elements, operand_rows
from .dtypes import Array, bf16_to_f32, f16_to_f32
from .errors import PtxError, UnsupportedPtx
from .in_flight import LOAD
from .loadstore import active_threads, store_shared
from .mbarrier import find, one_thread
from .operands import Operands
from .parse import Address, Instruction, Operand, Register, Vector
from .table import Mask, Modifiers, Step, opcode
from .tensor_memory import COLUMNS, Batch, Place, Tile
from .warp import WARP, warps_of, whole_warps

if TYPE_CHECKING:
    from .cta import Cta

_SIZES = (32, 64, 128, 256, 512)


@opcode("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32")
def _alloc(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """Gives the last columns, so that an address is not 0 where it need not be."""
    target, size = instruction.operands
    address, count = operands.address(target), operands.integer(size)
    if count not in _SIZES:
        raise UnsupportedPtx("number of columns")

    def step(cta: Cta, mask: Mask) -> None:
        _one_warp(cta, mask)
        if cta.tensor.allocated is not None or not cta.tensor.may_allocate:
            raise UnsupportedPtx("another allocation of tensor memory, or one after the permit was given up")
        cta.tensor.allocated = (COLUMNS - count, count)
        data = np.full((cta.threads.size, 1), COLUMNS - count, np.uint32)
        store_shared(cta, address(cta), data.view(np.uint8), mask)

    return step


@opcode("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned")
def _relinquish(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    def step(cta: Cta, mask: Mask) -> None:
        _one_warp(cta, mask)
        cta.tensor.may_allocate = False

    return step


@opcode("tcgen05.dealloc.cta_group::1.sync.aligned.b32")
def _dealloc(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    base, size = instruction.operands
    address, count = operands.source(base, "b32"), operands.integer(size)

    def step(cta: Cta, mask: Mask) -> None:
        warp = _one_warp(cta, mask)
        if cta.tensor.allocated != (int(address(cta)[warp * WARP]), count):
            raise PtxError("tensor memory is freed that was not allocated like this")
        if cta.tensor_order:
            cta.tensor_order.free(warp)
        cta.tensor.allocated = None

    return step


def _one_warp(cta: Cta, mask: Mask) -> int:
    whole_warps(mask)
    warps = warps_of(cta, mask)
    if warps.size != 1:
        raise UnsupportedPtx("an instruction for one warp, executed by several")
    return int(warps[0])


@dataclass(frozen=True)
class Transfer:
    """A tcgen05.ld or .st: its registers, and where in tensor memory each thread's are."""

    registers: tuple[Operand, ...]
    address: Callable[[Cta], Array]
    halves: bool  # 16x32bx2
    split: int

    @classmethod
    def of(cls, registers: Operand, rest: list[Operand], found: Modifiers, operands: Operands) -> Transfer:
        halves, count = found["shape"] == "16x32bx2", int(found["count"])
        if not isinstance(registers, Vector) or len(registers.items) != count or len(rest) != 1 + halves:
            raise UnsupportedPtx(f"expected {count} registers, one address and an offset if halved")
        split = operands.integer(rest[1]) if halves else 0
        return cls(registers.items, operands.address(rest[0]), halves, split)

    def place(self, cta: Cta, threads: Array) -> Place:
        addresses = self.address(cta)[threads]
        lane, column = addresses >> 16, addresses & 0xFFFF
        own, within = threads // WARP % 4 * WARP, threads % WARP
        if ((lane != own) & ~(self.halves & (lane == own + 16))).any():
            raise PtxError("a warp may only touch its own 32 lanes of tensor memory")
        if self.halves:
            column = column + np.where(within < 16, 0, self.split)
            within = within % 16
        place = (lane + within)[:, None], column[:, None] + np.arange(len(self.registers))
        cta.tensor.within(place, "access")
        return place


_SHAPE = "(?P<shape>32x32b|16x32bx2).x(?P<count>1|2|4|8|16|32|64|128).b32"


@opcode(f"tcgen05.ld.sync.aligned.{_SHAPE}")
def _ld(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    transfer = Transfer.of(instruction.operands[0], list(instruction.operands[1:]), found, operands)
    slots = [item.slot for item in transfer.registers if isinstance(item, Register) and item.bits == 32]
    if len(set(slots)) != len(transfer.registers):
        raise UnsupportedPtx("expected different 32-bit registers")

    def step(cta: Cta, mask: Mask) -> None:
        if mask is not None:
            raise UnsupportedPtx("tcgen05.ld by part of a CTA")
        place = transfer.place(cta, cta.threads)
        if cta.tensor_order:
            cta.tensor_order.load(cta.warps, place)
        values = np.ascontiguousarray(cta.tensor.read(place, "load").T)
        for slot, column in zip(slots, values, strict=True):
            cta.registers[slot] = LOAD
            cta.tensor.loads.append((slot, column))

    return step


@opcode("tcgen05.wait::ld.sync.aligned")
def _wait_ld(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    def step(cta: Cta, mask: Mask) -> None:
        if mask is not None:
            raise UnsupportedPtx("tcgen05.wait::ld by part of a CTA")
        if any(cta.registers[slot] is not LOAD for slot, _ in cta.tensor.loads):
            raise PtxError("the register of a tcgen05.ld was written before its tcgen05.wait::ld")
        for slot, column in cta.tensor.loads:
            cta.registers[slot] = column
        cta.tensor.loads = []
        if cta.tensor_order:
            cta.tensor_order.loads.wait(warps_of(cta, mask))

    return step


@opcode(f"tcgen05.st.sync.aligned.{_SHAPE}")
def _st(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    *rest, registers = instruction.operands
    transfer = Transfer.of(registers, rest, found, operands)
    sources = [operands.source(item, "b32") for item in transfer.registers]

    def step(cta: Cta, mask: Mask) -> None:
        whole_warps(mask)
        threads = active_threads(cta, mask)
        place = transfer.place(cta, threads)
        if cta.tensor_order:
            cta.tensor_order.store(cta.warps[threads], place)
        cta.tensor.write(place, np.stack([source(cta)[threads] for source in sources], 1))

    return step


@opcode("tcgen05.wait::st.sync.aligned")
def _wait_st(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    def step(cta: Cta, mask: Mask) -> None:
        whole_warps(mask)
        if cta.tensor_order:
            cta.tensor_order.stores.wait(warps_of(cta, mask))

    return step


@opcode("tcgen05.fence::(?P<side>before|after)_thread_sync")
def _fence(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    def step(cta: Cta, mask: Mask) -> None:
        if cta.tensor_order:
            cta.tensor_order.fence(warps_of(cta, mask), before=found["side"] == "before")

    return step


@dataclass(frozen=True)
class Shape:
    """What an instruction descriptor says."""

    m: int
    n: int
    widen: Callable[[Array], Array]
    transposed_a: bool
    transposed_b: bool

    @classmethod
    def of(cls, bits: int) -> Shape:
        m, n = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
        formats = {0: f16_to_f32, 1: bf16_to_f32}
        left, right, used = bits >> 7 & 7, bits >> 10 & 7, 3 << 4 | 63 << 7 | 3 << 15 | 63 << 17 | 31 << 24
        if bits & ~used or bits >> 4 & 3 != 1 or left != right or left not in formats:
            raise UnsupportedPtx(f"instruction descriptor {bits:#x}: formats or reserved bits")
        if m not in (64, 128) or not 0 < n <= 256 or n % (m // 8):
            raise UnsupportedPtx(f"instruction descriptor {bits:#x}: {m} rows, {n} columns")
        return cls(m, n, formats[left], bool(bits >> 15 & 1), bool(bits >> 16 & 1))


@opcode("tcgen05.mma.cta_group::1.kind::f16")
def _mma(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """D[M, N] = A[M, 16] B[16, N], plus D if the predicate says so. A is in tensor or in shared memory."""
    d, a, b, form, keep = instruction.operands
    target, right, what = operands.address(d), operands.source(b, "b64"), operands.source(form, "b32")
    in_tensor_memory = isinstance(a, Address)
    left = operands.address(a) if in_tensor_memory else operands.source(a, "b64")
    keeps = operands.source(keep, "pred")

    def step(cta: Cta, mask: Mask) -> None:
        thread = one_thread(mask)
        shape, adds = Shape.of(int(what(cta)[thread])), bool(keeps(cta)[thread])
        out = Tile.at(int(target(cta)[thread]), shape.m, shape.n)
        cta.tensor.within(out.place, "mma")
        batch = cta.tensor.open.setdefault(thread, Batch(thread))
        operand = None
        if in_tensor_memory:
            operand = Tile.at(int(left(cta)[thread]), shape.m, K // 2)
            cta.tensor.within(operand.place, "mma")
            fetch_left = _from_tensor_memory(cta, operand)
        else:
            fetch_left = _from_shared(cta, batch, int(left(cta)[thread]), shape.m, shape.transposed_a)
        fetch_right = _from_shared(cta, batch, int(right(cta)[thread]), shape.n, shape.transposed_b)
        if cta.tensor_order:
            cta.tensor_order.mma(batch, thread // WARP, out, operand)

        def product() -> None:
            result = shape.widen(fetch_left()) @ shape.widen(fetch_right()).T
            if adds:
                result = result + cta.tensor.read(out.place, "mma").view(np.float32)
            cta.tensor.write(out.place, result.astype(np.float32).view(np.uint32))

        batch.products.append(product)

    return step


def _from_tensor_memory(cta: Cta, tile: Tile) -> Callable[[], Array]:
    return lambda: np.ascontiguousarray(cta.tensor.read(tile.place, "mma")).view(np.uint16)


def _from_shared(cta: Cta, batch: Batch, bits: int, size: int, transposed: bool) -> Callable[[], Array]:
    matrix = blackwell_matrix(bits)
    rows = operand_rows(cta, matrix, size, transposed)
    if cta.shared_order:
        batch.readers.append(cta.shared_order.start_read([batch.thread // WARP], rows))
    return lambda: operand_elements(cta, matrix, size, transposed)


@opcode("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64")
def _commit(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    (target,) = instruction.operands
    address = operands.address(target)

    def step(cta: Cta, mask: Mask) -> None:
        thread = one_thread(mask)
        barrier = find(cta, address(cta), np.array([thread]))
        epoch = cta.tensor_order.epoch if cta.tensor_order else 0
        barrier.arrive(cta.tensor.commit(thread), thread // WARP, epoch)
        cta.stalled[:] = False

    return step

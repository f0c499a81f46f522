"""Matrix instructions of a warpgroup (sm_90): wgmma.mma_async with its fence, commit_group and wait_group.

A wgmma runs at any time between its issue and the wait_group that retires its group; here it runs at the wait. Until
then its accumulators and the registers of A hold nothing that may be used, and the shared memory that it reads may not
be stored to. Before a wgmma touches a register that something else has accessed, a wgmma.fence is needed; further
wgmmas on the very same accumulators are ordered by themselves.

All warpgroups of a CTA execute together; a wgmma of some of them is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .descriptor import Matrix, hopper_matrix, operand_elements, operand_rows
from .dtypes import Array, bf16_to_f32, f16_to_f32
from .errors import PtxError, RaceError, UnsupportedPtx
from .in_flight import WGMMA
from .operands import Operands
from .parse import Immediate, Instruction, Kernel, Operand, Register, Vector
from .shared_order import Reader
from .table import Mask, Modifiers, Step, opcode

if TYPE_CHECKING:
    from .cta import Cta

GROUP = 128  # threads of a warpgroup
M, K = 64, 16
WIDEN = {"bf16": bf16_to_f32, "f16": f16_to_f32}
Slots = tuple[int, ...]
Fetch = Callable[["Cta"], Array]  # an operand as float32 [warpgroups, M or N, K]


@dataclass(eq=False)
class Accumulator:
    """The matrices [warpgroups, 64, N] of registers that wgmmas in flight add to."""

    values: Array | None  # None until a wgmma that does not add has run
    groups: int = 0  # that are still to be waited for


@dataclass(frozen=True)
class Product:
    """One wgmma that has been issued."""

    accumulator: Accumulator
    left: Fetch
    right: Fetch
    adds: bool


@dataclass
class Group:
    """Wgmmas that are waited for together."""

    products: list[Product] = field(default_factory=list)
    accumulators: dict[Slots, Accumulator] = field(default_factory=dict)
    inputs: dict[int, Array] = field(default_factory=dict)  # registers of A with their values
    readers: list[Reader] = field(default_factory=list)


class Pending:
    """The wgmmas of one CTA that have not been waited for."""

    def __init__(self) -> None:
        self.open = Group()
        self.committed: list[Group] = []
        self.accumulators: dict[Slots, Accumulator] = {}
        self.fenced: list[object] | None = None  # the registers at the last wgmma.fence

    def input_value(self, slot: int) -> Array | None:
        """The value of a register of A that wgmmas in flight read."""
        for group in (*self.committed, self.open):
            if slot in group.inputs:
                return group.inputs[slot]
        return None

    def check_finished(self) -> None:
        if self.accumulators:
            raise PtxError("the kernel ends before a wgmma.wait_group has waited for all of its wgmmas")


def _together(cta: Cta, mask: Mask) -> None:
    if mask is not None or cta.threads.size % GROUP:
        raise UnsupportedPtx("wgmma of part of a CTA, or of a CTA that is no multiple of a warpgroup")


def _slots(operand: Operand, count: int) -> Slots:
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise UnsupportedPtx(f"expected {count} registers")
    slots = tuple(item.slot for item in operand.items if isinstance(item, Register) and item.bits == 32)
    if len(set(slots)) != count:
        raise UnsupportedPtx(f"expected {count} different 32-bit registers")
    return slots


def _agreed(values: Array, what: str) -> list[int]:
    """One number per warpgroup, the same in all of its threads."""
    table = values.reshape(-1, GROUP)
    if (table != table[:, :1]).any():
        raise PtxError(f"threads of a warpgroup have different {what}")
    return [int(value) for value in table[:, 0]]


def to_matrix(columns: Sequence[Array]) -> Array:
    """Accumulator registers as matrices [warpgroups, 64, N]: register 4j + 2h + p of lane 4g + t in warp w holds row
    16w + 8h + g and column 8j + 2t + p."""
    table = np.stack(columns).reshape(-1, 2, 2, columns[0].size // GROUP, 4, 8, 4)  # j, h, p, warpgroup, w, g, t
    return table.transpose(3, 4, 1, 5, 0, 6, 2).reshape(-1, M, 2 * len(columns))


def to_columns(matrix: Array) -> Array:
    """The inverse of `to_matrix`: [registers, threads]."""
    n = matrix.shape[2]
    table = matrix.reshape(-1, 4, 2, 8, n // 8, 4, 2)  # warpgroup, w, h, g, j, t, p
    return np.ascontiguousarray(table.transpose(4, 2, 6, 0, 1, 3, 5)).reshape(n // 2, -1)


def to_left(columns: Sequence[Array]) -> Array:
    """The four registers of A as matrices [warpgroups, 64, 16] of raw elements, two of which share a register:
    register 2j + h has row 16w + 8h + g and columns 8j + 2t and 8j + 2t + 1."""
    pairs = np.stack([column.view(np.uint16).reshape(-1, 2) for column in columns])
    table = pairs.reshape(2, 2, -1, 4, 8, 4, 2)  # j, h, warpgroup, w, g, t, parity
    return np.ascontiguousarray(table.transpose(2, 3, 1, 4, 0, 5, 6)).reshape(-1, M, K)


@opcode(
    "wgmma.mma_async.sync.aligned.m64n(?P<n>[0-9]+)k16.f32.(?P<type>bf16).bf16",
    "wgmma.mma_async.sync.aligned.m64n(?P<n>[0-9]+)k16.f32.(?P<type>f16).f16",
)
def _mma_async(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """D[64, N] = A[64, 16] B[16, N], plus D if scale-d says so."""
    n, widen = int(found["n"]), WIDEN[found["type"]]
    d, a, b, scale_d, scale_a, scale_b, *transposes = instruction.operands
    in_registers = isinstance(a, Vector)
    flipped = [bool(operands.integer(flag)) for flag in transposes]
    if n % 8 or not 8 <= n <= 256 or len(flipped) != (1 if in_registers else 2):
        raise UnsupportedPtx("shape or number of operands")
    if operands.integer(scale_a) != 1 or operands.integer(scale_b) != 1:
        raise UnsupportedPtx("negated operands")
    slots, right = _slots(d, n // 2), _shared_operand(operands, b, n, flipped[-1], widen)
    left = _register_operand(a, widen) if in_registers else _shared_operand(operands, a, M, flipped[0], widen)
    adds = _scale_d(operands, scale_d)

    def step(cta: Cta, mask: Mask) -> None:
        _together(cta, mask)
        work, added = cta.wgmma, adds(cta)
        accumulator = _accumulator(cta, slots, added)
        if slots not in work.open.accumulators:
            work.open.accumulators[slots] = accumulator
            accumulator.groups += 1
        work.open.products.append(Product(accumulator, left(cta), right(cta), added))
        for slot in slots:
            cta.registers[slot] = WGMMA

    return step


def _scale_d(operands: Operands, operand: Operand) -> Callable[[Cta], bool]:
    if isinstance(operand, Immediate):
        constant = bool(operands.integer(operand))
        return lambda cta: constant
    source = operands.source(operand, "pred")

    def agreed(cta: Cta) -> bool:
        values = source(cta)
        if values.any() != values.all():
            raise PtxError("threads have different scale-d")
        return bool(values[0])

    return agreed


def _shared_operand(
    operands: Operands, operand: Operand, size: int, transposed: bool, widen: Callable[[Array], Array]
) -> Callable[[Cta], Fetch]:
    """Checks the read at issue; what it returns reads the elements when the wgmma runs."""
    descriptors = operands.source(operand, "b64")

    def issue(cta: Cta) -> Fetch:
        matrices = [hopper_matrix(bits) for bits in _agreed(descriptors(cta), "matrix descriptors")]
        for group, matrix in enumerate(matrices):
            _start_read(cta, matrix, size, transposed, group)
        return lambda cta: widen(np.stack([operand_elements(cta, m, size, transposed) for m in matrices]))

    return issue


def _start_read(cta: Cta, matrix: Matrix, size: int, transposed: bool, group: int) -> None:
    rows = operand_rows(cta, matrix, size, transposed)
    if cta.shared_order:
        warps = range(4 * group, 4 * group + 4)
        cta.wgmma.open.readers.append(cta.shared_order.start_read(warps, rows))


def _register_operand(operand: Operand, widen: Callable[[Array], Array]) -> Callable[[Cta], Fetch]:
    slots = _slots(operand, 4)

    def issue(cta: Cta) -> Fetch:
        columns = [_input(cta, slot) for slot in slots]
        return lambda cta: widen(to_left(columns))

    return issue


def _input(cta: Cta, slot: int) -> Array:
    """The value of a register of A, which nobody else may use from now on."""
    work = cta.wgmma
    value = cta.registers[slot]
    if value is WGMMA:
        value = work.input_value(slot)
        if value is None:
            raise RaceError("wgmma of a register that another wgmma in flight writes")
    else:
        _check_fenced(cta, slot)
    work.open.inputs[slot] = value
    cta.registers[slot] = WGMMA
    return value


def _accumulator(cta: Cta, slots: Slots, added: bool) -> Accumulator:
    """The accumulator of some registers; refuses those of another wgmma in flight, and unfenced ones."""
    work = cta.wgmma
    if slots in work.accumulators:
        _check_untouched(cta, slots)
        return work.accumulators[slots]
    if any(cta.registers[slot] is WGMMA for slot in slots):
        raise RaceError("the accumulators of a wgmma overlap with registers of another one in flight")
    for slot in slots:
        if added or cta.registers[slot] is not None:
            _check_fenced(cta, slot)
    if work.fenced is None:
        raise RaceError("wgmma without a wgmma.fence before it")
    values = to_matrix([cta.registers[slot].view(np.float32) for slot in slots]) if added else None
    work.accumulators[slots] = Accumulator(values)
    return work.accumulators[slots]


def _check_fenced(cta: Cta, slot: int) -> None:
    """Each write makes a new array, so identity tells whether a register is as the last fence found it."""
    fenced = cta.wgmma.fenced
    if fenced is None:
        raise RaceError("wgmma without a wgmma.fence before it")
    if cta.registers[slot] is None:
        raise PtxError("wgmma reads a register that was never written")
    if cta.registers[slot] is not fenced[slot]:
        raise RaceError("wgmma of a register written since the last wgmma.fence")


def _check_untouched(cta: Cta, slots: Sequence[int]) -> None:
    if any(cta.registers[slot] is not WGMMA for slot in slots):
        raise RaceError("a register of a wgmma in flight was written before its wgmma.wait_group")


@opcode("wgmma.fence.sync.aligned")
def _fence(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    def step(cta: Cta, mask: Mask) -> None:
        _together(cta, mask)
        cta.wgmma.fenced = list(cta.registers)

    return step


@opcode("wgmma.commit_group.sync.aligned")
def _commit_group(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    def step(cta: Cta, mask: Mask) -> None:
        _together(cta, mask)
        cta.wgmma.committed.append(cta.wgmma.open)
        cta.wgmma.open = Group()

    return step


@opcode("wgmma.wait_group.sync.aligned")
def _wait_group(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    (count,) = instruction.operands
    left = operands.integer(count)

    def step(cta: Cta, mask: Mask) -> None:
        _together(cta, mask)
        while len(cta.wgmma.committed) > left:
            _retire(cta, cta.wgmma.committed.pop(0))

    return step


def _retire(cta: Cta, group: Group) -> None:
    """Run a group's wgmmas; give back its registers, unless younger wgmmas use them, and its shared memory."""
    work = cta.wgmma
    _check_untouched(cta, [*group.inputs, *(slot for slots in group.accumulators for slot in slots)])
    for product in group.products:
        result = product.left(cta) @ product.right(cta).transpose(0, 2, 1)
        previous = product.accumulator.values if product.adds else None
        product.accumulator.values = result if previous is None else previous + result
    for slots, accumulator in group.accumulators.items():
        accumulator.groups -= 1
        if accumulator.groups == 0:
            del work.accumulators[slots]
            for slot, column in zip(slots, to_columns(accumulator.values), strict=True):
                cta.registers[slot] = column.view(np.uint32)
    for slot, value in group.inputs.items():
        if work.input_value(slot) is None:
            cta.registers[slot] = value
    if cta.shared_order:
        for reader in group.readers:
            cta.shared_order.finish_read(reader)


def check_register_accesses(kernel: Kernel) -> None:
    """Between a wgmma.fence and a wgmma after it in the text, nothing but wgmmas may access the wgmma's registers, not
    even to read them. Reads leave no trace in the registers, so the text is looked at before it is executed."""
    since: list[Instruction] | None = None  # None before the first fence, which the first wgmma finds missing
    for instruction in kernel.instructions:
        if instruction.opcode == "wgmma.fence.sync.aligned":
            since = []
        elif since is None:
            continue
        elif instruction.opcode.startswith("wgmma.mma_async"):
            mine = set(_registers(instruction.operands[:2]))
            for other in since:
                if mine & set(_registers(other.operands)):
                    raise RaceError(f"{other.text} accesses a register after the wgmma.fence of {instruction.text}")
        elif instruction.family != "wgmma":
            since.append(instruction)


def _registers(operands: Sequence[Operand]) -> Iterator[int]:
    """Slots of the 32-bit registers among some operands."""
    for operand in operands:
        for item in operand.items if isinstance(operand, Vector) else (operand,):
            if isinstance(item, Register) and item.bits == 32:
                yield item.slot

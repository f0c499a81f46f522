"""Loads, stores, atomics and fences.

Cache operators and eviction hints only change speed, so the known ones are accepted and ignored.
Non-coherent loads (.nc) are refused: the kernels of this project must not use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .dtypes import TYPES, Array
from .errors import RaceError, UnsupportedPtx
from .memory import Access
from .operands import Operands
from .parse import Address, Instruction, Operand, Symbol, Vector
from .table import Mask, Modifiers, Step, opcode

if TYPE_CHECKING:
    from .cta import Cta

_TYPE = "(?P<type>[bus](?:8|16|32|64)|f32|f64)"
HINTS = "(?:.L1::(?:evict_first|evict_last|no_allocate))?(?P<hint>.L2::cache_hint)?"
_VECTOR = "(?:.v(?P<count>2|4|8))?"


def active_threads(cta: Cta, mask: Mask) -> Array:
    return cta.threads if mask is None else np.nonzero(mask)[0]


def _pick(values: Array, mask: Mask) -> Array:
    return values if mask is None else values[mask]


def load_global(cta: Cta, addresses: Array, width: int, mask: Mask) -> Array:
    """Bytes [threads, width]; threads outside of the mask get zeros."""
    lanes = active_threads(cta, mask)
    out = np.zeros((cta.threads.size, width), np.uint8)
    for segment, part, offsets in cta.memory.locate(_pick(addresses, mask), width, "load"):
        threads = lanes if part is None else lanes[part]
        access = Access(cta.index, cta.time, threads, offsets, width)
        if cta.order:
            cta.order.after_writes(segment, access, "load")
        segment.loads.append(access)
        out[threads] = segment.rows(width)[offsets // width]
    return out


def store_global(cta: Cta, addresses: Array, data: Array, mask: Mask) -> None:
    lanes, width = active_threads(cta, mask), data.shape[1]
    for segment, part, offsets in cta.memory.locate(_pick(addresses, mask), width, "store"):
        threads = lanes if part is None else lanes[part]
        access = Access(cta.index, cta.time, threads, offsets, width)
        if cta.order:
            cta.order.after_writes(segment, access, "store")
            cta.order.after_reads(segment, access, "store")
            cta.order.wrote(segment, access, atomic=False)
        segment.stores.append(access)
        scatter(segment.rows(width), offsets // width, data[threads])


def load_shared(cta: Cta, addresses: Array, width: int, mask: Mask) -> Array:
    lanes = active_threads(cta, mask)
    offsets = cta.shared.locate(_pick(addresses, mask), width, "shared load")
    if cta.shared_order:
        cta.shared_order.load(cta.warps[lanes], offsets, width)
    out = np.zeros((cta.threads.size, width), np.uint8)
    out[lanes] = cta.shared.rows(width)[offsets // width]
    return out


def store_shared(cta: Cta, addresses: Array, data: Array, mask: Mask) -> None:
    lanes, width = active_threads(cta, mask), data.shape[1]
    offsets = cta.shared.locate(_pick(addresses, mask), width, "shared store")
    if cta.shared_order:
        cta.shared_order.store(cta.warps[lanes], offsets, width)
    scatter(cta.shared.rows(width), offsets // width, data[lanes])


def scatter(rows: Array, index: Array, data: Array) -> None:
    rows[index] = data
    if not np.array_equal(rows[index], data):
        raise RaceError("threads store different values to one word in one instruction")


def _items(operand: Operand, count: str) -> tuple[Operand, ...]:
    """The registers of a load or store: {a, b, ...}, or a bare one for a single element."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != int(count or 1):
        raise UnsupportedPtx("vector length")
    return items


def _without_policy(instruction: Instruction, found: Modifiers) -> tuple[Operand, Operand]:
    """The two operands proper; .L2::cache_hint adds a policy that changes nothing."""
    first, second, *policy = instruction.operands
    if len(policy) != bool(found.get("hint")):
        raise UnsupportedPtx("number of operands")
    return first, second


@opcode(
    f"ld.(?P<space>global)(?:.c[agsv])?{HINTS}{_VECTOR}.{_TYPE}",
    f"ld.(?P<space>shared){_VECTOR}.{_TYPE}",
    f"ld.volatile.(?P<space>global|shared){_VECTOR}.{_TYPE}",
)
def _ld(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    results, source = _without_policy(instruction, found)
    type_name, dtype = found["type"], TYPES[found["type"]]
    items = _items(results, found["count"])
    puts = [operands.target(item, type_name, wider=True) for item in items]
    address, width = operands.address(source), dtype.itemsize * len(puts)
    load = load_global if found["space"] == "global" else load_shared

    def step(cta: Cta, mask: Mask) -> None:
        data = load(cta, address(cta), width, mask).view(dtype)
        for put, column in zip(puts, np.ascontiguousarray(data.T), strict=True):
            put(cta, column, mask)

    return step


@opcode(
    f"st.(?P<space>global)(?:.wb|.c[gs]|.wt)?{HINTS}{_VECTOR}.{_TYPE}",
    f"st.(?P<space>shared){_VECTOR}.{_TYPE}",
)
def _st(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    target, values = _without_policy(instruction, found)
    type_name = found["type"]
    items = _items(values, found["count"])
    sources = [operands.source(item, type_name, wider=True) for item in items]
    address = operands.address(target)
    store = store_global if found["space"] == "global" else store_shared

    def step(cta: Cta, mask: Mask) -> None:
        data = np.stack([source(cta) for source in sources], 1)
        store(cta, address(cta), data.view(np.uint8), mask)

    return step


@opcode(f"ld.param.{_TYPE}")
def _ld_param(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, source = instruction.operands
    if not isinstance(source, Address) or not isinstance(source.base, Symbol) or source.offset:
        raise UnsupportedPtx("parameter address")
    name, dtype = source.base.name, TYPES[found["type"]]
    declared = operands.params.get(name)
    if declared is None or TYPES[declared].itemsize != dtype.itemsize:
        raise UnsupportedPtx(f"parameter {name} as .{found['type']}")
    put = operands.target(result, found["type"], wider=True)
    return lambda cta, mask: put(cta, cta.params[name].view(dtype), mask)


_ATOMICS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, value: value,
}
_ATOMIC_OPERATION = "(?P<name>add|min|max|and|or|xor|exch).(?P<type>[bsu](?:32|64)|f32)"
_SEMANTICS = "(?:.(?P<order>relaxed|acquire|release|acq_rel))?"


@opcode(
    f"atom.global(?:.(?:gpu|sys))?{_SEMANTICS}.{_ATOMIC_OPERATION}",
    f"atom{_SEMANTICS}(?:.(?:gpu|sys))?.global.{_ATOMIC_OPERATION}",
)
def _atom(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """Lanes take turns in ascending order. Without a qualifier an atomic is relaxed."""
    result, target, value = instruction.operands
    dtype, function = TYPES[found["type"]], _ATOMICS[found["name"]]
    put, source = operands.target(result, found["type"]), operands.source(value, found["type"])
    address, width = operands.address(target), dtype.itemsize
    acquire = found["order"] in ("acquire", "acq_rel")
    release = found["order"] in ("release", "acq_rel")

    def step(cta: Cta, mask: Mask) -> None:
        addresses, values = address(cta), source(cta)
        old = np.zeros(cta.threads.size, dtype)
        for lane in active_threads(cta, mask).tolist():
            one = addresses[lane : lane + 1]
            ((segment, _, offsets),) = cta.memory.locate(one, width, "atomic")
            if cta.order:
                access = Access(cta.index, cta.time, np.array([lane]), offsets, width)
                cta.order.after_writes(segment, access, "atomic")
                cta.order.after_reads(segment, access, "atomic")
                cta.order.atomic(int(one[0]), lane, cta.time, acquire, release)
                cta.order.wrote(segment, access, atomic=True)
            word = segment.rows(width)[offsets // width].view(dtype)[0]
            old[lane] = word[0]
            word = function(word, values[lane : lane + 1]).astype(dtype)
            segment.rows(width)[offsets // width] = word.view(np.uint8)
        put(cta, old, mask)

    return step


@opcode(
    "fence.(?:acq_rel|sc).(?P<scope>cta|gpu|sys)",
    "membar.(?P<scope>cta|gl|sys)",
)
def _fence(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    if instruction.operands:
        raise UnsupportedPtx("number of operands")

    def step(cta: Cta, mask: Mask) -> None:
        if cta.order and found["scope"] != "cta":
            cta.order.fence(active_threads(cta, mask), cta.time)

    return step

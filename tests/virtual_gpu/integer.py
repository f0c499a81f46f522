"""Integer and logic instructions, shifts, bit fields, and comparisons of every type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import TYPES, Array, bf16_to_f32, bits_of
from .errors import UnsupportedPtx
from .operands import Operands
from .parse import Instruction
from .table import Mask, Modifiers, Step, opcode

if TYPE_CHECKING:
    from .cta import Cta

Function = Callable[..., Array]

_INTEGER = "(?P<type>[su](?:16|32|64))"
_SIGNED = "(?P<type>s(?:16|32|64))"
_BITS = "(?P<type>b(?:16|32|64))"
_LOGIC = "(?P<type>pred|b16|b32|b64)"


def _binary(instruction: Instruction, found: Modifiers, operands: Operands, function: Function) -> Step:
    result, left, right = instruction.operands
    put = operands.target(result, found["type"])
    a, b = operands.source(left, found["type"]), operands.source(right, found["type"])
    return lambda cta, mask: put(cta, function(a(cta), b(cta)), mask)


def _unary(instruction: Instruction, found: Modifiers, operands: Operands, function: Function) -> Step:
    result, value = instruction.operands
    put, a = operands.target(result, found["type"]), operands.source(value, found["type"])
    return lambda cta, mask: put(cta, function(a(cta)), mask)


def _divide(a: Array, b: Array) -> Array:
    """Truncating division; by zero gives all ones, as the hardware does."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = (a - np.fmod(a, safe)) // safe
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)


_OF_TWO = {  # instructions that are one function of two operands of the same type
    f"add.{_INTEGER}": np.add,
    f"sub.{_INTEGER}": np.subtract,
    f"min.{_INTEGER}": np.minimum,
    f"max.{_INTEGER}": np.maximum,
    "min.relu.(?P<type>s32)": lambda a, b: np.maximum(np.minimum(a, b), np.int32(0)),
    "max.relu.(?P<type>s32)": lambda a, b: np.maximum(np.maximum(a, b), np.int32(0)),
    f"div.{_INTEGER}": _divide,
    f"rem.{_INTEGER}": lambda a, b: a - _divide(a, b) * b,
    f"and.{_LOGIC}": np.bitwise_and,
    f"or.{_LOGIC}": np.bitwise_or,
    f"xor.{_LOGIC}": np.bitwise_xor,
}
_OF_ONE = {f"neg.{_SIGNED}": np.negative, f"abs.{_SIGNED}": np.abs, f"not.{_LOGIC}": np.invert}
for _expression, _function in _OF_TWO.items():
    opcode(_expression)(partial(_binary, function=_function))
for _expression, _function in _OF_ONE.items():
    opcode(_expression)(partial(_unary, function=_function))


def _wide(type_name: str) -> str:
    """The type of twice the width: s32 to s64."""
    return f"{type_name[0]}{2 * bits_of(type_name)}"


def _high(a: Array, b: Array, type_name: str) -> Array:
    """The upper half of a product."""
    if bits_of(type_name) == 64:
        return _high_64(a, b)
    wide = TYPES[_wide(type_name)]
    return (a.astype(wide) * b.astype(wide) >> bits_of(type_name)).astype(TYPES[type_name])


def _high_64(a: Array, b: Array) -> Array:
    """Schoolbook multiplication of 32-bit halves; a negative factor counts 2^64 too much."""
    x, y, low, shift = a.view(np.uint64), b.view(np.uint64), np.uint64(0xFFFFFFFF), np.uint64(32)
    cross = (x >> shift) * (y & low) + ((x & low) * (y & low) >> shift)
    other = (x & low) * (y >> shift) + (cross & low)
    high = (x >> shift) * (y >> shift) + (cross >> shift) + (other >> shift)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(a.dtype)


@opcode(f"mul.(?P<half>lo|hi).{_INTEGER}", "mul.(?P<half>wide).(?P<type>[su](?:16|32))")
def _mul(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    type_name = found["type"]
    if found["half"] == "lo":
        return _binary(instruction, found, operands, np.multiply)
    if found["half"] == "hi":
        return _binary(instruction, found, operands, lambda a, b: _high(a, b, type_name))
    result, left, right = instruction.operands
    wide = TYPES[_wide(type_name)]
    put = operands.target(result, _wide(type_name))
    a, b = operands.source(left, type_name), operands.source(right, type_name)
    return lambda cta, mask: put(cta, a(cta).astype(wide) * b(cta).astype(wide), mask)


@opcode(f"mad.(?P<half>lo|hi).{_INTEGER}", "mad.(?P<half>wide).(?P<type>[su](?:16|32))")
def _mad(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    type_name, half = found["type"], found["half"]
    result, left, right, addend = instruction.operands
    out = _wide(type_name) if half == "wide" else type_name
    put, c = operands.target(result, out), operands.source(addend, out)
    a, b = operands.source(left, type_name), operands.source(right, type_name)
    wide = TYPES[out]
    if half == "hi":
        return lambda cta, mask: put(cta, _high(a(cta), b(cta), type_name) + c(cta), mask)
    return lambda cta, mask: put(cta, a(cta).astype(wide) * b(cta).astype(wide) + c(cta), mask)


@opcode(f"shl.{_BITS}")
def _shl(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _shift(instruction, found["type"], operands, np.left_shift)


@opcode("shr.(?P<type>[bsu](?:16|32|64))")
def _shr(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _shift(instruction, found["type"], operands, np.right_shift)


def _shift(instruction: Instruction, type_name: str, operands: Operands, function: Function) -> Step:
    """Amounts past the width shift everything out: zeros, or copies of the sign."""
    result, value, amount = instruction.operands
    put, a = operands.target(result, type_name), operands.source(value, type_name)
    by, width, dtype = operands.source(amount, "u32"), bits_of(type_name), TYPES[type_name]

    def step(cta: Cta, mask: Mask) -> None:
        values, count = a(cta), by(cta)
        shifted = function(values, np.minimum(count, width - 1).astype(dtype))
        if type_name[0] != "s" and (count >= width).any():
            shifted = np.where(count >= width, dtype.type(0), shifted)
        put(cta, shifted, mask)

    return step


@opcode("bfe.(?P<type>[su]32)")
def _bfe(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, *sources = instruction.operands
    put = operands.target(result, found["type"])
    value, start, length = (operands.source(s, "u32") for s in sources)
    signed = found["type"] == "s32"

    def step(cta: Cta, mask: Mask) -> None:
        bits = value(cta)
        wide = bits.view(np.int32).astype(np.int64) if signed else bits.astype(np.int64)
        first = np.minimum(start(cta) & 0xFF, 63).astype(np.int64)
        size = np.minimum(length(cta) & 0xFF, 32).astype(np.int64)
        low = (wide >> first) & ((np.int64(1) << size) - 1)
        if signed:  # the sign is the field's top bit, or bit 31 where the field reaches past it
            top = np.minimum(first + size - 1, 31)
            negative = (size > 0) & ((wide >> np.maximum(top, 0)) & 1 == 1)
            low = np.where(negative, low | (np.int64(-1) << size), low)
        put(cta, low.astype(np.uint32).view(TYPES[found["type"]]), mask)

    return step


@opcode("bfi.b32")
def _bfi(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, *sources = instruction.operands
    put = operands.target(result, "b32")
    insert, into, start, length = (operands.source(s, "u32") for s in sources)

    def step(cta: Cta, mask: Mask) -> None:
        first = np.minimum(start(cta) & 0xFF, 32).astype(np.uint64)
        size = np.minimum(length(cta) & 0xFF, 32).astype(np.uint64)
        hole = ((np.uint64(1) << size) - np.uint64(1)) << first
        value = (into(cta) & ~hole) | ((insert(cta).astype(np.uint64) << first) & hole)
        put(cta, value.astype(np.uint32), mask)

    return step


@opcode("prmt.b32")
def _prmt(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, *sources = instruction.operands
    put = operands.target(result, "b32")
    low, high, selector = (operands.source(s, "b32") for s in sources)

    def step(cta: Cta, mask: Mask) -> None:
        bytes_ = np.stack([low(cta), high(cta)], 1).view(np.uint8)
        out = np.zeros((len(bytes_), 4), np.uint8)
        for place in range(4):
            control = (selector(cta) >> np.uint32(4 * place)) & np.uint32(0xF)
            chosen = np.take_along_axis(bytes_, (control & 7).astype(np.int64)[:, None], 1)[:, 0]
            sign = (chosen.view(np.int8) >> 7).view(np.uint8)
            out[:, place] = np.where(control & 8, sign, chosen)
        put(cta, out.view(np.uint32)[:, 0], mask)

    return step


@opcode("lop3.b32")
def _lop3(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, *sources, table = instruction.operands
    put = operands.target(result, "b32")
    a, b, c = (operands.source(s, "b32") for s in sources)
    truth = operands.integer(table)

    def step(cta: Cta, mask: Mask) -> None:
        x, y, z = a(cta), b(cta), c(cta)
        out = np.zeros_like(x)
        for row in range(8):
            if truth >> row & 1:
                term = x if row & 4 else ~x
                out |= term & (y if row & 2 else ~y) & (z if row & 1 else ~z)
        put(cta, out, mask)

    return step


@opcode("popc.(?P<type>b32|b64)")
def _popc(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, value = instruction.operands
    put, a = operands.target(result, "u32"), operands.source(value, found["type"])
    return lambda cta, mask: put(cta, np.bitwise_count(a(cta)).astype(np.uint32), mask)


@opcode("clz.(?P<type>b32|b64)")
def _clz(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, value = instruction.operands
    put, a = operands.target(result, "u32"), operands.source(value, found["type"])
    width = bits_of(found["type"])

    def leading_zeros(values: Array) -> Array:
        for shift in (1, 2, 4, 8, 16, 32):  # smear the top bit downwards
            if shift < width:
                values = values | values >> values.dtype.type(shift)
        return (width - np.bitwise_count(values)).astype(np.uint32)

    return lambda cta, mask: put(cta, leading_zeros(a(cta)), mask)


_ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMBINE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def _comparison(name: str, type_name: str) -> Function:
    """The numpy function of a PTX comparison. Plain ones are false on NaN, `-u` ones true."""
    if type_name == "bf16":
        wide = _comparison(name, "f32")
        return lambda a, b: wide(bf16_to_f32(a), bf16_to_f32(b))
    if type_name[0] != "f":
        return _ORDERED[_UNSIGNED_NAMES.get(name, name)]
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name.endswith("u"):
        plain = _ORDERED[name[:-1]]
        return lambda a, b: plain(a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne":
        return lambda a, b: (a < b) | (a > b)
    return _ORDERED[name]


@opcode(
    "setp.(?P<name>eq|ne)(?:.(?P<combine>and|or|xor))?.(?P<type>b(?:16|32|64))",
    "setp.(?P<name>eq|ne|lt|le|gt|ge)(?:.(?P<combine>and|or|xor))?.(?P<type>[su](?:16|32|64))",
    "setp.(?P<name>lo|ls|hi|hs)(?:.(?P<combine>and|or|xor))?.(?P<type>u(?:16|32|64))",
    "setp.(?P<name>eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)"
    "(?:.(?P<combine>and|or|xor))?.(?P<type>bf16|f(?:16|32|64))",
)
def _setp(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, left, right, *extra = instruction.operands
    if len(extra) != bool(found["combine"]):
        raise UnsupportedPtx("number of operands")
    put = operands.target(result, "pred")
    a, b = operands.source(left, found["type"]), operands.source(right, found["type"])
    compare = _comparison(found["name"], found["type"])
    if not extra:
        return lambda cta, mask: put(cta, compare(a(cta), b(cta)), mask)
    other, combine = operands.source(extra[0], "pred"), _COMBINE[found["combine"]]
    return lambda cta, mask: put(cta, combine(compare(a(cta), b(cta)), other(cta)), mask)

"""Moves, selections and conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import TYPES, Array, bf16_to_f32, bits_of, f32_to_bf16, flush
from .errors import UnsupportedPtx
from .operands import Operands
from .parse import Decimal, Instruction, Operand, Vector
from .table import Mask, Modifiers, Step, opcode

if TYPE_CHECKING:
    from .cta import Cta


@opcode("mov.(?P<type>pred|[bus](?:16|32|64)|f32|f64)")
def _mov(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, value = instruction.operands
    type_name = found["type"]
    if isinstance(value, Vector):
        return _pack(result, value, type_name, operands)
    if isinstance(result, Vector):
        return _unpack(result, value, type_name, operands)
    put, a = operands.target(result, type_name), operands.source(value, type_name)
    return lambda cta, mask: put(cta, a(cta), mask)


def _part(vector: Vector, type_name: str) -> str:
    """The type of a vector's elements when together they fill `type_name`."""
    part = f"b{bits_of(type_name) // len(vector.items)}"
    if type_name[0] != "b" or part not in ("b8", "b16", "b32"):
        raise UnsupportedPtx(f"{len(vector.items)} elements in a .{type_name}")
    return part


def _pack(result: Operand, value: Vector, type_name: str, operands: Operands) -> Step:
    put = operands.target(result, type_name)
    parts = [operands.source(item, _part(value, type_name)) for item in value.items]
    dtype = TYPES[type_name]
    return lambda cta, mask: put(cta, np.stack([part(cta) for part in parts], 1).view(dtype)[:, 0], mask)


def _unpack(result: Vector, value: Operand, type_name: str, operands: Operands) -> Step:
    part = _part(result, type_name)
    puts = [operands.target(item, part) for item in result.items]
    a, dtype = operands.source(value, type_name), TYPES[part]

    def step(cta: Cta, mask: Mask) -> None:
        parts = np.ascontiguousarray(a(cta).view(dtype).reshape(-1, len(puts)).T)
        for put, column in zip(puts, parts, strict=True):
            put(cta, column, mask)

    return step


@opcode("selp.(?P<type>[bsu](?:16|32|64)|f32|f64)")
def _selp(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, yes, no, condition = instruction.operands
    put = operands.target(result, found["type"])
    a, b = operands.source(yes, found["type"]), operands.source(no, found["type"])
    which = operands.source(condition, "pred")
    return lambda cta, mask: put(cta, np.where(which(cta), a(cta), b(cta)), mask)


@opcode("cvta.to.global.u64", "cvta.global.u64")
def _cvta(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, value = instruction.operands
    put, a = operands.target(result, "u64"), operands.source(value, "u64")
    return lambda cta, mask: put(cta, a(cta), mask)


@opcode("createpolicy.fractional.L2::(?:evict_first|evict_last).b64")
def _createpolicy(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """Cache policies change speed only; the handle is an arbitrary number."""
    result, fraction = instruction.operands
    if not isinstance(fraction, Decimal):
        raise UnsupportedPtx("policy fraction")
    put, handle = operands.target(result, "b64"), operands.constant(0x12F0, "b64")
    return lambda cta, mask: put(cta, handle(cta), mask)


def _convert(
    instruction: Instruction,
    out: str,
    given: str,
    operands: Operands,
    function: Callable[[Array], Array],
) -> Step:
    result, value = instruction.operands
    put = operands.target(result, out, wider=True)
    a = operands.source(value, given, wider=True)
    return lambda cta, mask: put(cta, function(a(cta)), mask)


@opcode("cvt.(?P<to>[su](?:8|16|32|64)).(?P<of>[su](?:8|16|32|64))")
def _integers(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    dtype = TYPES[found["to"]]
    return _convert(instruction, found["to"], found["of"], operands, lambda a: a.astype(dtype))


@opcode("cvt.rn.(?P<to>f32|f64).(?P<of>[su](?:8|16|32|64))")
def _integer_to_float(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    dtype = TYPES[found["to"]]
    return _convert(instruction, found["to"], found["of"], operands, lambda a: a.astype(dtype))


_ROUNDINGS = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


@opcode("cvt.(?P<round>rzi|rni|rmi|rpi).(?P<to>[su](?:16|32)).(?P<of>f32|f64)")
def _float_to_integer(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """Out-of-range values saturate and NaN becomes 0."""
    dtype, rounding = TYPES[found["to"]], _ROUNDINGS[found["round"]]
    limits = np.iinfo(dtype)

    def convert(values: Array) -> Array:
        rounded = np.clip(rounding(values.astype(np.float64)), limits.min, limits.max)
        return np.where(np.isnan(rounded), 0, rounded).astype(np.int64).astype(dtype)

    return _convert(instruction, found["to"], found["of"], operands, convert)


@opcode("cvt.(?P<round>rzi|rni|rmi|rpi)(?P<ftz>.ftz)?.f32.f32")
def _round(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    rounding = _ROUNDINGS[found["round"]]
    if found["ftz"]:
        return _convert(instruction, "f32", "f32", operands, lambda a: rounding(flush(a)))
    return _convert(instruction, "f32", "f32", operands, rounding)


@opcode("cvt.(?P<to>f32|f64).(?P<of>f16|f32)", "cvt.rn.(?P<to>f16|f32).(?P<of>f32|f64)")
def _floats(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    dtype = TYPES[found["to"]]
    return _convert(instruction, found["to"], found["of"], operands, lambda a: a.astype(dtype))


@opcode("cvt.f32.bf16")
def _from_bf16(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _convert(instruction, "f32", "bf16", operands, bf16_to_f32)


@opcode("cvt.rn.bf16.f32")
def _to_bf16(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _convert(instruction, "bf16", "f32", operands, f32_to_bf16)


def _f32_to_f16_bits(values: Array) -> Array:
    return values.astype(np.float16).view(np.uint16)


@opcode("cvt.rn.(?P<to>bf16x2|f16x2).f32")
def _to_pair(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """The first source becomes the upper half."""
    result, upper, lower = instruction.operands
    put = operands.target(result, "b32")
    high, low = operands.source(upper, "f32"), operands.source(lower, "f32")
    narrow = f32_to_bf16 if found["to"] == "bf16x2" else _f32_to_f16_bits
    return lambda cta, mask: put(cta, np.stack([narrow(low(cta)), narrow(high(cta))], 1).view(np.uint32)[:, 0], mask)

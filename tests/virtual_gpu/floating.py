"""Floating-point instructions.

Additions, multiplications and fused multiply-adds are rounded exactly as IEEE says. The hardware's
approximations (ex2, lg2, rcp, rsqrt, sqrt, div.full) are computed to the last bit instead, so a
kernel that depends on their exact bits is not proven by the emulator.

A `Format` says how an instruction reads and writes its operands: f32 and f64 as they are, f16 and
bf16 computed in a wider type and rounded once, f32x2, f16x2 and bf16x2 as pairs in a register.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from .dtypes import Array, bf16_to_f32, f32_to_bf16, flush
from .errors import UnsupportedPtx
from .operands import Operands
from .parse import Instruction
from .table import Modifiers, Step, opcode


@dataclass(frozen=True)
class Format:
    register: str  # type of the register
    read: Callable[[Array], Array]
    write: Callable[[Array], Array]


def _same(values: Array) -> Array:
    return values


def _rounded_to_odd(exact: Array, lost: Array) -> Array:
    """A float64 or float32 sum with its lowest bit set if `lost`, what rounding dropped, is not 0.

    Rounding the result once more, to a format at least two bits narrower, then rounds the exact
    value.
    """
    bits = exact.view(np.dtype(f"i{exact.itemsize}"))
    inexact = (lost != 0) & np.isfinite(exact) & (bits & 1 == 0)
    towards = np.where((lost > 0) == (exact > 0), 1, -1).astype(bits.dtype)
    return np.where(inexact, bits + towards, bits).view(exact.dtype)


def _f64_to_bf16(values: Array) -> Array:
    single = values.astype(np.float32)
    return f32_to_bf16(_rounded_to_odd(single, values - single))


FORMATS = {
    "f32": Format("f32", _same, _same),
    "f64": Format("f64", _same, _same),
    "f16": Format("f16", lambda a: a.astype(np.float64), lambda a: a.astype(np.float16)),
    "bf16": Format("bf16", lambda a: bf16_to_f32(a).astype(np.float64), _f64_to_bf16),
    "f16x2": Format(
        "b32",
        lambda a: a.view(np.float16).astype(np.float64),
        lambda a: a.astype(np.float16).view(np.uint32),
    ),
    "bf16x2": Format(
        "b32",
        lambda a: bf16_to_f32(a.view(np.uint16)).astype(np.float64),
        lambda a: _f64_to_bf16(a).view(np.uint32),
    ),
    "f32x2": Format("b64", lambda a: a.view(np.float32), lambda a: a.view(np.uint64)),
    "ftz": Format("f32", flush, flush),
}


def _apply(
    instruction: Instruction,
    found: Modifiers,
    operands: Operands,
    function: Callable[..., Array],
    *counts: int,
) -> Step:
    """A step that applies a numpy function to all source operands, of which there are `counts`."""
    result, *items = instruction.operands
    if len(items) not in counts:
        raise UnsupportedPtx("number of operands")
    form = FORMATS["ftz" if found.get("ftz") else found["type"]]
    put = operands.target(result, form.register)
    sources = [operands.source(item, form.register) for item in items]
    if form.read is _same and len(sources) == 2:
        a, b = sources
        return lambda cta, mask: put(cta, function(a(cta), b(cta)), mask)
    return lambda cta, mask: put(cta, form.write(function(*[form.read(s(cta)) for s in sources])), mask)


_TWO = ".(?P<type>f64|f32x2|f16|bf16|f16x2|bf16x2)"


@opcode("add(?:.rn)?(?P<ftz>.ftz)?.(?P<type>f32)", f"add(?:.rn)?{_TWO}")
def _add(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _apply(instruction, found, operands, np.add, 2)


@opcode("sub(?:.rn)?(?P<ftz>.ftz)?.(?P<type>f32)", f"sub(?:.rn)?{_TWO}")
def _sub(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _apply(instruction, found, operands, np.subtract, 2)


@opcode("mul(?:.rn)?(?P<ftz>.ftz)?.(?P<type>f32)", f"mul(?:.rn)?{_TWO}")
def _mul(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _apply(instruction, found, operands, np.multiply, 2)


@opcode("add.rn.f32.(?P<type>f16|bf16)", "sub.rn.f32.(?P<type>f16|bf16)")
def _mixed(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """A 16-bit operand with a float32 one (since sm_100)."""
    result, narrow, wide = instruction.operands
    function = np.add if instruction.family == "add" else np.subtract
    put = operands.target(result, "f32")
    a, b = operands.source(narrow, found["type"]), operands.source(wide, "f32")
    widen = bf16_to_f32 if found["type"] == "bf16" else lambda v: v.astype(np.float32)
    return lambda cta, mask: put(cta, function(widen(a(cta)), b(cta)), mask)


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded to odd in float64. The product of two float32 is exact there."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    back = total - product
    return _rounded_to_odd(total, (product - (total - back)) + (addend - back))


def _fma_f32(a: Array, b: Array, c: Array) -> Array:
    return fused_multiply_add(a, b, c).astype(np.float32)


@opcode("fma.rn(?P<ftz>.ftz)?.(?P<type>f32)", "fma.rn.(?P<type>f32x2|f16|bf16|f16x2|bf16x2)")
def _fma(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    narrow = "f16" in found["type"]
    return _apply(instruction, found, operands, fused_multiply_add if narrow else _fma_f32, 3)


@opcode("fma.rn.f32.(?P<type>f16|bf16)")
def _mixed_fma(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, left, right, addend = instruction.operands
    put, c = operands.target(result, "f32"), operands.source(addend, "f32")
    a, b = operands.source(left, found["type"]), operands.source(right, found["type"])
    widen = FORMATS[found["type"]].read
    return lambda cta, mask: put(cta, _fma_f32(widen(a(cta)), widen(b(cta)), c(cta)), mask)


def _signed_zeros(name: str, function: np.ufunc) -> Callable[[Array, Array], Array]:
    """Make min and max order -0 below +0, which numpy leaves open."""
    merge = np.bitwise_and if name == "max" else np.bitwise_or

    def combine(a: Array, b: Array) -> Array:
        chosen = function(a, b)
        if chosen.all():  # no zeros
            return chosen
        raw = np.dtype(f"u{chosen.dtype.itemsize}")
        tie = (a == 0) & (b == 0)
        return np.where(tie, merge(a.view(raw), b.view(raw)).view(chosen.dtype), chosen)

    return combine


_EXTREMES = {
    ("min", ""): _signed_zeros("min", np.fmin),
    ("max", ""): _signed_zeros("max", np.fmax),
    ("min", ".NaN"): _signed_zeros("min", np.minimum),
    ("max", ".NaN"): _signed_zeros("max", np.maximum),
}


@opcode(
    "min(?P<ftz>.ftz)?(?P<nan>.NaN)?.(?P<type>f32)",
    "max(?P<ftz>.ftz)?(?P<nan>.NaN)?.(?P<type>f32)",
)
def _extreme(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """Two inputs, or three since sm_100."""
    function = _EXTREMES[instruction.family, found["nan"]]
    if len(instruction.operands) == 3:
        return _apply(instruction, found, operands, function, 2)
    return _apply(instruction, found, operands, lambda *values: reduce(function, values), 3)


@opcode("min(?P<nan>.NaN)?.(?P<type>f16|bf16)", "max(?P<nan>.NaN)?.(?P<type>f16|bf16)")
def _narrow_extreme(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    function = _EXTREMES[instruction.family, found["nan"]]
    return _apply(instruction, found, operands, function, 2)


@opcode("neg(?P<ftz>.ftz)?.(?P<type>f32)", "neg.(?P<type>f64|f16|bf16)")
def _neg(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _apply(instruction, found, operands, np.negative, 1)


@opcode("abs(?P<ftz>.ftz)?.(?P<type>f32)", "abs.(?P<type>f64|f16|bf16)")
def _abs(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _apply(instruction, found, operands, np.abs, 1)


@opcode(
    "div.full(?P<ftz>.ftz)?.(?P<type>f32)",
    "div.approx(?P<ftz>.ftz)?.(?P<type>f32)",
    "div.rn(?P<ftz>.ftz)?.(?P<type>f32)",
    "div.rn.(?P<type>f64)",
)
def _div(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _apply(instruction, found, operands, np.divide, 2)


def _in_double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Evaluate in float64 and round once."""
    return lambda values: function(values.astype(np.float64)).astype(values.dtype)


_FUNCTIONS = {
    "ex2": _in_double(np.exp2),
    "lg2": _in_double(np.log2),
    "rcp": _in_double(np.reciprocal),
    "sqrt": _in_double(np.sqrt),
    "rsqrt": _in_double(lambda values: 1 / np.sqrt(values)),
}


@opcode(
    "ex2.approx(?P<ftz>.ftz)?.(?P<type>f32)",
    "lg2.approx(?P<ftz>.ftz)?.(?P<type>f32)",
    "rcp.(?:approx|rn)(?P<ftz>.ftz)?.(?P<type>f32)",
    "sqrt.(?:approx|rn)(?P<ftz>.ftz)?.(?P<type>f32)",
    "rsqrt.approx(?P<ftz>.ftz)?.(?P<type>f32)",
)
def _function(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    return _apply(instruction, found, operands, _FUNCTIONS[instruction.family], 1)

"""Integer, floating-point and conversion instructions against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import same
from tests.virtual_gpu.dtypes import bf16_to_f32, f32_to_bf16
from tests.virtual_gpu_tests.snippets import evaluate
from tests.virtual_gpu_tests.values import fused, high, high_nan, low, low_nan, numbers


def named(cases: list[tuple]) -> list:
    """Parameters with the instruction as their name."""
    return [pytest.param(*case, id=case[0].split(" %out")[0]) for case in cases]


def wrap(function, dtype: str):
    """Exact integer arithmetic on Python integers, reduced to the type's width."""
    bits = 8 * np.dtype(dtype).itemsize

    def apply(*arrays: np.ndarray) -> np.ndarray:
        rows = zip(*(a.tolist() for a in arrays), strict=True)
        wrapped = [int(function(*row)) % (1 << bits) for row in rows]
        return np.array(wrapped, np.dtype(f"u{bits // 8}")).view(dtype)

    return apply


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGERS = [
    ("add.s32 %out, %a, %b;", "ii", "i4", lambda a, b: a + b),
    ("add.s64 %out, %a, %b;", "qq", "i8", lambda a, b: a + b),
    ("add.u16 %out, %a, %b;", "HH", "u2", lambda a, b: a + b),
    ("sub.s32 %out, %a, %b;", "ii", "i4", lambda a, b: a - b),
    ("mul.lo.s32 %out, %a, %b;", "ii", "i4", lambda a, b: a * b),
    ("mul.lo.s64 %out, %a, %b;", "qq", "i8", lambda a, b: a * b),
    ("mul.hi.s32 %out, %a, %b;", "ii", "i4", lambda a, b: a * b >> 32),
    ("mul.hi.u32 %out, %a, %b;", "II", "u4", lambda a, b: a * b >> 32),
    ("mul.hi.s64 %out, %a, %b;", "qq", "i8", lambda a, b: a * b >> 64),
    ("mul.hi.u64 %out, %a, %b;", "QQ", "u8", lambda a, b: a * b >> 64),
    (
        "mul.hi.s64 %out, %a, 4835703278458516699;",
        "q",
        "i8",
        lambda a: a * 4835703278458516699 >> 64,
    ),
    ("mul.wide.s32 %out, %a, %b;", "ii", "i8", lambda a, b: a * b),
    ("mul.wide.u32 %out, %a, %b;", "II", "u8", lambda a, b: a * b),
    ("mul.wide.u16 %out, %a, %b;", "HH", "u4", lambda a, b: a * b),
    ("mad.lo.s32 %out, %a, %b, %c;", "iii", "i4", lambda a, b, c: a * b + c),
    ("mad.lo.s64 %out, %a, %b, %c;", "qqq", "i8", lambda a, b, c: a * b + c),
    ("mad.wide.s32 %out, %a, %b, %c;", "iiq", "i8", lambda a, b, c: a * b + c),
    ("mad.wide.u32 %out, %a, 12, %b;", "IQ", "u8", lambda a, b: a * 12 + b),
    ("mad.hi.u32 %out, %a, %b, %c;", "III", "u4", lambda a, b, c: (a * b >> 32) + c),
    ("min.s32 %out, %a, %b;", "ii", "i4", min),
    ("max.u32 %out, %a, %b;", "II", "u4", max),
    ("min.s64 %out, %a, %b;", "qq", "i8", min),
    ("min.relu.s32 %out, %a, %b;", "ii", "i4", lambda a, b: max(min(a, b), 0)),
    ("max.relu.s32 %out, %a, %b;", "ii", "i4", lambda a, b: max(a, b, 0)),
    ("neg.s32 %out, %a;", "i", "i4", lambda a: -a),
    ("abs.s32 %out, %a;", "i", "i4", abs),
    ("and.b32 %out, %a, %b;", "II", "u4", lambda a, b: a & b),
    ("or.b16 %out, %a, %b;", "HH", "u2", lambda a, b: a | b),
    ("xor.b64 %out, %a, %b;", "QQ", "u8", lambda a, b: a ^ b),
    ("not.b32 %out, %a;", "I", "u4", lambda a: ~a),
    ("and.b32 %out, %a, -8192;", "I", "u4", lambda a: a & -8192),
    ("shl.b32 %out, %a, %b;", "II", "u4", lambda a, b: a << min(b, 99)),
    ("shl.b64 %out, %a, %b;", "QI", "u8", lambda a, b: a << min(b, 99)),
    ("shl.b16 %out, %a, 3;", "H", "u2", lambda a: a << 3),
    ("shr.u32 %out, %a, %b;", "II", "u4", lambda a, b: a >> min(b, 99)),
    ("shr.s32 %out, %a, %b;", "iI", "i4", lambda a, b: a >> min(b, 99)),
    ("bfe.u32 %out, %a, 4, 3;", "I", "u4", lambda a: a >> 4 & 7),
    ("bfe.s32 %out, %a, 5, 1;", "i", "i4", lambda a: -(a >> 5 & 1)),
    ("bfe.s32 %out, %a, 28, 8;", "i", "i4", lambda a: a >> 28),
    ("bfe.u32 %out, %a, 40, 8;", "I", "u4", lambda a: 0),
    ("bfe.s32 %out, %a, 3, 0;", "i", "i4", lambda a: 0),
    ("bfi.b32 %out, %a, %b, 8, 4;", "II", "u4", lambda a, b: b & ~0xF00 | (a & 15) << 8),
    ("lop3.b32 %out, %a, %b, %c, 0x96;", "III", "u4", lambda a, b, c: a ^ b ^ c),
    ("lop3.b32 %out, %a, %b, %c, 0xEA;", "III", "u4", lambda a, b, c: a & b | c),
    ("prmt.b32 %out, %a, %b, 0x5410;", "II", "u4", lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16),
    (
        "prmt.b32 %out, %a, 0, 0x0123;",
        "I",
        "u4",
        lambda a: int.from_bytes(a.to_bytes(4, "big"), "little"),
    ),
    ("popc.b32 %out, %a;", "I", "u4", lambda a: a.bit_count()),
    ("clz.b32 %out, %a;", "I", "u4", lambda a: 32 - a.bit_length()),
]


@pytest.mark.parametrize(("body", "given", "out", "function"), named(INTEGERS))
def test_integer(body, given, out, function):
    inputs = [numbers(dtype, seed) for seed, dtype in enumerate(given)]
    same(evaluate(body, *inputs, out=out), wrap(function, out)(*inputs))


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8"])
def test_division_truncates(dtype):
    name = dtype[0].replace("i", "s") + str(8 * int(dtype[1]))
    a, b = numbers(dtype, 0), numbers(dtype, 1)
    b[b == 0] = 7
    b[:32] = np.arange(1, 33)
    same(evaluate(f"div.{name} %out, %a, %b;", a, b, out=dtype), wrap(truncated, dtype)(a, b))
    remainder = wrap(lambda x, y: x - truncated(x, y) * y, dtype)
    same(evaluate(f"rem.{name} %out, %a, %b;", a, b, out=dtype), remainder(a, b))


PREDICATES = [("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)]


@pytest.mark.parametrize(("name", "function"), PREDICATES, ids=["and", "or", "xor"])
def test_predicate_logic(name, function):
    a, b = numbers("u4", 0) % 2 == 0, numbers("u4", 1) % 3 == 0
    same(evaluate(f"{name}.pred %out, %a, %b;", a, b, out="?"), function(a, b))
    same(evaluate(f"{name}.pred %out, %a, !%b;", a, b, out="?"), function(a, ~b))


FLOATS = [
    ("add.f32 %out, %a, %b;", "ff", np.add),
    ("add.rn.f32 %out, %a, 0f3F800000;", "f", lambda a: a + np.float32(1)),
    ("sub.f32 %out, %a, %b;", "ff", np.subtract),
    ("mul.f32 %out, %a, %b;", "ff", np.multiply),
    ("fma.rn.f32 %out, %a, %b, %c;", "fff", fused),
    ("div.full.f32 %out, %a, %b;", "ff", np.divide),
    ("div.rn.f32 %out, %a, %b;", "ff", np.divide),
    ("min.f32 %out, %a, %b;", "ff", low),
    ("max.f32 %out, %a, %b;", "ff", high),
    ("min.NaN.f32 %out, %a, %b;", "ff", low_nan),
    ("max.NaN.f32 %out, %a, %b;", "ff", high_nan),
    ("max.f32 %out, %a, %b, %c;", "fff", lambda a, b, c: high(high(a, b), c)),
    ("max.NaN.f32 %out, %a, %b, %c;", "fff", lambda a, b, c: high_nan(high_nan(a, b), c)),
    ("neg.f32 %out, %a;", "f", np.negative),
    ("abs.f32 %out, %a;", "f", np.abs),
    ("ex2.approx.f32 %out, %a;", "f", lambda a: np.exp2(a.astype("d")).astype("f")),
    ("lg2.approx.f32 %out, %a;", "f", lambda a: np.log2(a.astype("d")).astype("f")),
    ("rcp.approx.f32 %out, %a;", "f", lambda a: (1 / a.astype("d")).astype("f")),
    ("sqrt.rn.f32 %out, %a;", "f", np.sqrt),
    ("add.f64 %out, %a, %b;", "dd", np.add),
    ("selp.f32 %out, %a, %b, %c;", "ff?", lambda a, b, c: np.where(c, a, b)),
    ("mov.f32 %out, 0fFF800000;", "f", lambda a: np.full_like(a, -np.inf)),
]


@pytest.mark.parametrize(("body", "given", "function"), named(FLOATS))
def test_float(body, given, function):
    inputs = [numbers("u4", 9) % 2 == 0 if dtype == "?" else numbers(dtype, seed) for seed, dtype in enumerate(given)]
    with np.errstate(all="ignore"):
        expected = function(*inputs)
    same(evaluate(body, *inputs, out=given[0]), expected)


def test_ftz_flushes_subnormals_of_both_sides():
    values = np.tile(np.array([1e-40, -1e-40, 2.0**-126, 1.0], "f"), 8)
    expected = np.tile(np.array([0.0, -0.0, 2.0**-126, 1.0], "f"), 8)
    same(evaluate("mul.ftz.f32 %out, %a, 0f3F800000;", values, out="f"), expected)
    tiny = np.full(32, -130, "f")
    same(evaluate("ex2.approx.ftz.f32 %out, %a;", tiny, out="f"), np.zeros(32, "f"))


@pytest.mark.parametrize(("name", "function"), [("add", np.add), ("mul", np.multiply)], ids=["add", "mul"])
def test_packed_pairs(name, function):
    a, b = (np.stack([numbers("f", s), numbers("f", s + 5)], 1) for s in (0, 1))
    with np.errstate(all="ignore"):
        expected = function(a, b)
    got = evaluate(f"{name}.f32x2 %out, %a, %b;", a.view("u8")[:, 0], b.view("u8")[:, 0], out="u8")
    same(got.view("f"), expected.reshape(-1))


def test_packed_fma():
    a, b, c = (np.stack([numbers("f", s), numbers("f", s + 5)], 1) for s in (0, 1, 2))
    with np.errstate(all="ignore"):
        expected = fused(a, b, c).reshape(-1)
    packed = [x.view("u8")[:, 0] for x in (a, b, c)]
    same(evaluate("fma.rn.f32x2 %out, %a, %b, %c;", *packed, out="u8").view("f"), expected)


def test_fma_rounds_once():
    """The exact sum lies 2^-70 below a tie. Rounding it to float64 first would make it the tie."""
    a = np.full(32, 2.0**-24 * (1 + 2.0**-23), "f")
    b = np.full(32, 1 - 2.0**-23, "f")
    c = np.full(32, 1 + 2.0**-23, "f")
    same(evaluate("fma.rn.f32 %out, %a, %b, %c;", a, b, c, out="f"), c)


COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_float_comparison(name):
    a, b = numbers("f", 0), numbers("f", 1)
    b[::3] = a[::3]
    same(evaluate(f"setp.{name}.f32 %out, %a, %b;", a, b, out="?"), COMPARISONS[name](a, b))


@pytest.mark.parametrize(("type_name", "dtype"), [("s32", "i4"), ("u32", "u4"), ("s64", "i8")])
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_integer_comparison(name, type_name, dtype):
    a, b = numbers(dtype, 0), numbers(dtype, 1)
    b[::3] = a[::3]
    expected = COMPARISONS[name](a, b)
    same(evaluate(f"setp.{name}.{type_name} %out, %a, %b;", a, b, out="?"), expected)


def test_comparison_combined_with_a_predicate():
    a, b, c = numbers("i4", 0), numbers("i4", 1), numbers("u4", 2) % 2 == 0
    same(evaluate("setp.lt.and.s32 %out, %a, %b, %c;", a, b, c, out="?"), (a < b) & c)
    same(evaluate("setp.lt.or.s32 %out, %a, %b, !%c;", a, b, c, out="?"), (a < b) | ~c)


def clipped(rounding, dtype):
    limits = np.iinfo(dtype)

    def apply(a):
        whole = np.nan_to_num(rounding(a.astype("d")), nan=0, posinf=2.0**40, neginf=-(2.0**40))
        return np.clip(whole, limits.min, limits.max).astype("i8").astype(dtype)

    return apply


CONVERSIONS = [
    ("cvt.s64.s32 %out, %a;", "i4", "i8", lambda a: a.astype("i8")),
    ("cvt.u64.u32 %out, %a;", "u4", "u8", lambda a: a.astype("u8")),
    ("cvt.u32.u64 %out, %a;", "u8", "u4", lambda a: a.astype("u4")),
    ("cvt.s32.s8 %out, %a;", "i4", "i4", lambda a: a.astype("i1").astype("i4")),
    ("cvt.u16.u32 %out, %a;", "u4", "u2", lambda a: a.astype("u2")),
    ("cvt.rn.f32.s32 %out, %a;", "i4", "f4", lambda a: a.astype("f4")),
    ("cvt.rn.f32.u64 %out, %a;", "u8", "f4", lambda a: a.astype("f4")),
    ("cvt.rzi.s32.f32 %out, %a;", "f4", "i4", clipped(np.trunc, "i4")),
    ("cvt.rni.u32.f32 %out, %a;", "f4", "u4", clipped(np.rint, "u4")),
    ("cvt.rmi.f32.f32 %out, %a;", "f4", "f4", np.floor),
    ("cvt.f32.f16 %out, %a;", "f2", "f4", lambda a: a.astype("f4")),
    ("cvt.rn.f16.f32 %out, %a;", "f4", "f2", lambda a: a.astype("f2")),
    ("cvt.f64.f32 %out, %a;", "f4", "f8", lambda a: a.astype("f8")),
    ("cvt.rn.f32.f64 %out, %a;", "f8", "f4", lambda a: a.astype("f4")),
    ("cvt.f32.bf16 %out, %a;", "u2", "f4", bf16_to_f32),
    ("cvt.rn.bf16.f32 %out, %a;", "f4", "u2", f32_to_bf16),
    ("mov.u32 %out, 0xffffffffffffffff;", "u4", "u4", lambda a: np.full_like(a, 0xFFFFFFFF)),
    ("mov.u64 %out, 0xffffffffffffffff;", "u8", "u8", lambda a: np.full_like(a, 2**64 - 1)),
    ("mov.b32 %out, %a;", "u4", "u4", lambda a: a),
    ("mov.b64 {%r9, %r8}, %a; mov.b64 %out, {%r8, %r9};", "u8", "u8", lambda a: a >> 32 | a << 32),
    (
        "mov.b32 {%rs1, %rs2}, %a; mov.b32 %out, {%rs2, %rs1};",
        "u4",
        "u4",
        lambda a: a >> 16 | a << 16,
    ),
]


@pytest.mark.parametrize(("body", "given", "out", "function"), named(CONVERSIONS))
def test_conversion(body, given, out, function):
    values = numbers(given, 3)
    with np.errstate(all="ignore"):
        expected = function(values)
    same(evaluate(body, values, out=out), expected)


@pytest.mark.parametrize("kind", ["bf16x2", "f16x2"])
def test_conversion_to_pairs_puts_the_first_source_on_top(kind):
    a, b = numbers("f4", 0), numbers("f4", 1)
    narrow = f32_to_bf16 if kind == "bf16x2" else lambda v: v.astype("f2").view("u2")
    with np.errstate(all="ignore"):
        expected = np.stack([narrow(b), narrow(a)], 1).view("u4")[:, 0]
    same(evaluate(f"cvt.rn.{kind}.f32 %out, %a, %b;", a, b, out="u4"), expected)


def test_bf16_rounds_to_nearest_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F80FFFF], "u4")
    expected = np.array([0x3F80, 0x3F82, 0x3F81, 0x3F81], "u2")
    np.testing.assert_array_equal(f32_to_bf16(bits.view("f4")), expected)

"""Arithmetic on f16 and bf16, alone, in pairs, and mixed with float32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import same
from tests.virtual_gpu.dtypes import bf16_to_f32, f32_to_bf16
from tests.virtual_gpu_tests.snippets import evaluate
from tests.virtual_gpu_tests.values import fused, high, low, numbers

FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": high, "min": low}


def operand(dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Moderate 16-bit values, raw and as the float64 numbers that they stand for."""
    values = numbers("f4", seed)
    values = np.where(np.abs(values) < 1e4, values, np.float32(seed + 1))
    if dtype == "f16":
        half = values.astype("f2")
        return half.view("u2"), half.astype("d")
    raw = f32_to_bf16(values)
    return raw, bf16_to_f32(raw).astype("d")


def rounded(exact: np.ndarray, dtype: str) -> np.ndarray:
    """Bits of the nearest 16-bit value, ties to even, found among its neighbours in float64."""
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return exact.astype("f2").view("u2")
    below = (exact.astype("f4").view("u4") >> 16).astype("u2")
    candidates = np.stack([below - 1, below, below + 1]).astype("u2")
    distance = np.nan_to_num(np.abs(bf16_to_f32(candidates).astype("d") - exact), nan=np.inf)
    ties = np.where(distance == distance.min(0), candidates % 2, 2)
    return np.take_along_axis(candidates, ties.argmin(0)[None], 0)[0]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_operands(name, dtype):
    (a, x), (b, y) = operand(dtype, 0), operand(dtype, 1)
    expected = rounded(FUNCTIONS[name](x, y), dtype)
    same(evaluate(f"{name}.{dtype} %out, %a, %b;", a, b, out="u2"), expected)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_pairs(name, dtype):
    (a, x), (b, y) = operand(dtype, 0), operand(dtype, 1)
    got = evaluate(f"{name}.{dtype}x2 %out, %a, %b;", a.view("u4"), b.view("u4"), out="u4")
    same(got.view("u2"), rounded(FUNCTIONS[name](x, y), dtype))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_fma(dtype):
    (a, x), (b, y), (c, z) = (operand(dtype, seed) for seed in range(3))
    expected = rounded(x * y + z, dtype)
    same(evaluate(f"fma.rn.{dtype} %out, %a, %b, %c;", a, b, c, out="u2"), expected)
    packed = [v.view("u4") for v in (a, b, c)]
    same(evaluate(f"fma.rn.{dtype}x2 %out, %a, %b, %c;", *packed, out="u4").view("u2"), expected)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_mixed_with_float32(dtype):
    (a, x), (b, y), wide = operand(dtype, 0), operand(dtype, 1), numbers("f4", 7)
    with np.errstate(all="ignore"):
        total, difference = x.astype("f4") + wide, x.astype("f4") - wide
        product = fused(x.astype("f4"), y.astype("f4"), wide)
    same(evaluate(f"add.rn.f32.{dtype} %out, %a, %b;", a, wide, out="f"), total)
    same(evaluate(f"sub.rn.f32.{dtype} %out, %a, %b;", a, wide, out="f"), difference)
    same(evaluate(f"fma.rn.f32.{dtype} %out, %a, %b, %c;", a, b, wide, out="f"), product)


def test_comparison():
    (a, x), (b, y) = operand("bf16", 0), operand("bf16", 1)
    same(evaluate("setp.le.bf16 %out, %a, %b;", a, b, out="?"), x <= y)
    c, d = numbers("f2", 0), numbers("f2", 1)
    same(evaluate("setp.gtu.f16 %out, %a, %b;", c, d, out="?"), ~(c <= d))


def test_sign():
    a, x = operand("bf16", 0)
    same(evaluate("neg.bf16 %out, %a;", a, out="u2"), rounded(-x, "bf16"))
    same(evaluate("abs.bf16 %out, %a;", a, out="u2"), rounded(np.abs(x), "bf16"))

"""PTX types as numpy types, and the 16-bit float formats that numpy lacks.

Registers hold raw bits (unsigned integers, or bool for predicates); an instruction views them in
its own type. bf16 is always carried as uint16 and converted where it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

RAW = {1: np.dtype(bool), 8: np.dtype(np.uint8), 16: np.dtype(np.uint16)}
RAW |= {32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}

TYPES: dict[str, np.dtype] = {"pred": RAW[1], "bf16": RAW[16]}
for _bits in (8, 16, 32, 64):
    TYPES[f"b{_bits}"] = TYPES[f"u{_bits}"] = RAW[_bits]
    TYPES[f"s{_bits}"] = np.dtype(f"int{_bits}")
for _bits in (16, 32, 64):
    TYPES[f"f{_bits}"] = np.dtype(f"float{_bits}")


def bits_of(type_name: str) -> int:
    """Width in bits of a PTX type; predicates count as one bit."""
    return 1 if type_name == "pred" else 8 * TYPES[type_name].itemsize


def bf16_to_f32(raw: Array) -> Array:
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f16_to_f32(raw: Array) -> Array:
    return raw.view(np.float16).astype(np.float32)


def f32_to_bf16(values: Array) -> Array:
    """Round to nearest, ties to even; every NaN becomes the canonical 0x7FFF."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    lowest = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits.astype(np.uint64) + np.uint64(0x7FFF) + lowest) >> np.uint64(16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded.astype(np.uint16))


_SMALLEST_NORMAL = np.float32(2.0**-126)


def flush(values: Array) -> Array:
    """.ftz: float32 subnormals become zeros of the same sign."""
    return np.where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)

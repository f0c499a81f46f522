"""Matrix descriptors: how wgmma and tcgen05.mma find their operands in shared memory.

A descriptor has the start address, two strides and the swizzle. An operand has `size` rows (of M or N) and 16 columns
(of K), elements of 16 bits. Shared memory is divided into lines of as many bytes as the swizzle says:

- K-major: 8 rows are 8 lines one after the other, the next 8 rows lie `stride` bytes further.
- Transposed (MN-major): a line has the elements of one k; 8 of them follow each other, the next 8 lie `stride` bytes
  further, and the rows beyond a line `leading` bytes further.

Then the 16-byte pieces of a line trade places: bits 4 and up of the *absolute* address are xored with the bits from 7
on, 3 of them for lines of 128 bytes, 2 for 64 and 1 for 32. So a step along K is an addition to the start address.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import Array
from .errors import AccessError, UnsupportedPtx
from .memory import SHARED_BASE

if TYPE_CHECKING:
    from .cta import Cta

K = 16  # columns of a 16-bit operand
_FIELD = 0x3FFF  # 14 bits of an address, in units of 16 bytes
_STRIDES = _FIELD | _FIELD << 16 | _FIELD << 32
_HOPPER = {1: 128, 2: 64, 3: 32}  # bits 62 and 63: bytes of a swizzled line
_BLACKWELL = {2: 128, 4: 64, 6: 32}  # bits 61 to 63
_VERSION = 1 << 46  # bits 46 to 48 of a Blackwell descriptor


@dataclass(frozen=True)
class Matrix:
    """Addresses and strides in bytes."""

    start: int
    leading: int
    stride: int
    line: int


def hopper_matrix(bits: int) -> Matrix:
    """The operand of a wgmma."""
    return _matrix(bits, bits >> 62, _HOPPER, _STRIDES | 3 << 62)


def blackwell_matrix(bits: int) -> Matrix:
    """The operand of a tcgen05.mma."""
    if bits >> 46 & 7 != 1:
        raise UnsupportedPtx(f"matrix descriptor {bits:#x} of another version")
    return _matrix(bits, bits >> 61, _BLACKWELL, _STRIDES | _VERSION | 7 << 61)


def _matrix(bits: int, swizzle: int, lines: dict[int, int], used: int) -> Matrix:
    if swizzle not in lines or bits & ~used:
        raise UnsupportedPtx(f"matrix descriptor {bits:#x}: swizzle or reserved bits")
    start, leading, stride = ((bits >> shift & _FIELD) << 4 for shift in (0, 16, 32))
    return Matrix(start, leading, stride, lines[swizzle])


@lru_cache(maxsize=8192)
def places(matrix: Matrix, size: int, transposed: bool) -> tuple[Array, Array]:
    """Shared offsets [size, 16] of an operand's elements, and the 16-byte rows of shared memory that they lie in."""
    i, k = np.arange(size)[:, None], np.arange(K)[None, :]
    if transposed:
        wide = matrix.line // 2
        at = 2 * (i % wide) + i // wide * matrix.leading + k % 8 * matrix.line + k // 8 * matrix.stride
    else:
        at = i % 8 * matrix.line + i // 8 * matrix.stride + 2 * k
    at = at + matrix.start
    at ^= (at >> 7 & (matrix.line // 16 - 1)) << 4
    at -= SHARED_BASE
    at.flags.writeable = False
    return at, np.unique(at // 16)


def operand_rows(cta: Cta, matrix: Matrix, size: int, transposed: bool) -> Array:
    """The 16-byte rows that a matrix instruction reads, within bounds."""
    offsets, rows = places(matrix, size, transposed)
    if offsets.min() < 0 or offsets.max() + 2 > cta.shared.size:
        raise AccessError(f"a matrix descriptor leads out of shared memory ({cta.shared.size} bytes): {matrix}")
    return rows


def operand_elements(cta: Cta, matrix: Matrix, size: int, transposed: bool) -> Array:
    """The raw elements [size, 16]."""
    return cta.shared.rows(2).view(np.uint16).reshape(-1)[places(matrix, size, transposed)[0] // 2]

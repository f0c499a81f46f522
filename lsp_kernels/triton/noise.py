"""Device functions: the noise of the logits of a tile, made from the table of a `Noise` as the reference defines it.

One call of Philox gives the words of four consecutive ids. A tile is a row of ids, or rows in one dimension and ids in
the other: then seeds and places have the shape [rows, 1].
"""

from __future__ import annotations

import triton
import triton.language as tl

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter knows no assembly
LN2 = tl.constexpr(0.6931471805599453)
UPPER = tl.constexpr(0x80000000)  # the first integer of the upper half
WORD = tl.constexpr(0xFFFFFFFF)
MOST_NOISE = tl.constexpr(22.9)  # more than the noise of any id at temperature 1


@triton.jit
def noise_at(noise_ptr, row):
    """Seed, place (position + 2^32 pass) and temperature of rows of a table."""
    p_row = noise_ptr + row.to(tl.int64) * 3
    temperature = tl.load(p_row + 2).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.load(p_row), tl.load(p_row + 1), temperature


@triton.jit
def random_words(seed, place, begin, IDS: tl.constexpr, DIMS: tl.constexpr, GROUPED: tl.constexpr):
    """The 32-bit integers of the ids from `begin` on, [IDS] or (DIMS 2) [rows, IDS].

    GROUPED: `begin` is a multiple of 4. Else there is a call of Philox for every id, which takes four times as long.
    """
    first = begin.to(tl.uint32)
    group = first >> 2
    if GROUPED:
        w0, w1, w2, w3 = words_of_groups(seed, place, group + along(IDS // 4, DIMS))
        words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    else:
        o = (first & 3) + along(IDS, DIMS)
        w0, w1, w2, w3 = words_of_groups(seed, place, group + (o >> 2))
        words = tl.where((o & 2) != 0, tl.where((o & 1) != 0, w3, w2), tl.where((o & 1) != 0, w1, w0))
    return words


@triton.jit
def along(SIZE: tl.constexpr, DIMS: tl.constexpr):
    """0, 1, ... along the last dimension."""
    o = tl.arange(0, SIZE).to(tl.uint32)
    if DIMS == 2:
        o = o[None, :]
    return o


@triton.jit
def words_of_groups(seed, place, group):
    """The words of Philox 4x32-10 for groups of four ids."""
    position, number = place.to(tl.uint32), (place >> 32).to(tl.uint32)
    return tl.philox(seed, group, position, number, position * 0)


@triton.jit
def log2(x, FAST: tl.constexpr):
    """FAST: by NVIDIA's own instruction, whose error near 1 is relative to 1. Triton's log2 is a dozen instructions."""
    if FAST and COMPILED:
        y = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        y = tl.log2(x)
    return y


@triton.jit
def gumbel(words, FAST: tl.constexpr):
    """-log E, E exponential, from 32-bit integers; at most 2e-6 from the exact value. FAST: for NVIDIA.

    In the upper half E is small, so that 1 - u would lose it: there it is u times a polynomial for -log(1 - u) / u.
    """
    lower = words < UPPER
    u = (tl.where(lower, words, WORD - words).to(tl.float32) + 0.5) * 2.0**-32  # at most 1/2, and relatively exact
    p = u * 1.1849269 - 1.0815314
    p = p * u + 0.7854244
    p = p * u + 0.03802054
    p = p * u + 0.27225006
    p = p * u + 0.33186266
    p = p * u + 0.50003654
    p = p * u + 0.9999999
    return log2(tl.where(lower, log2(u, FAST) * -LN2, u * p), FAST) * -LN2

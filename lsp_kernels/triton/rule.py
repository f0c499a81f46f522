"""Device functions: the selection rule for one sequence, in the steps and under the names of ``lsp_kernels/rule.py``.

`select` reads the rows once, chunk by chunk, and collects what the steps need; then it takes the steps one by one.
Other programs of the same launch may have written the rows, so loads go past the first-level cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

BIG = tl.constexpr(0x7FFFFFFF)
INDEX = tl.constexpr(0xFFFFFFFF)
MILLION = tl.constexpr(1_000_000)
DELIMITER = tl.constexpr(1)
STOP = tl.constexpr(2)


@triton.jit
def lowest(n, alpha, HAS_FLOOR: tl.constexpr):
    if HAS_FLOOR:
        return n * 0 + 1
    return tl.maximum((n.to(tl.int64) * alpha + MILLION - 1) // MILLION, 1).to(tl.int32)


@triton.jit
def highest(n, alpha, beta, HAS_FLOOR: tl.constexpr):
    share = (n.to(tl.int64) * beta // MILLION).to(tl.int32)
    return tl.minimum(n, tl.maximum(lowest(n, alpha, HAS_FLOOR), share))


@triton.jit
def scored_rows(n, alpha, beta, min_length, HAS_FLOOR: tl.constexpr):
    seen = highest(n, alpha, beta, HAS_FLOOR)
    if not HAS_FLOOR:
        seen = tl.minimum(seen, BIG - 1) + 1
    return tl.minimum(n, tl.maximum(seen, min_length))


@triton.jit
def has_flag(flags_ptr, token, vocabulary, flag, mask):
    """Which tokens have a flag. An id outside the vocabulary has none."""
    known = mask & (token >= 0) & (token < vocabulary)
    return (tl.load(flags_ptr + token, mask=known, other=0) & flag) != 0


@triton.jit
def ordered_bits(x):
    """Integers in the order of the floats; -0.0 and 0.0 give the same one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & BIG)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def reachable_lengths(margin, j, m, lo, hi, least):
    """Which lengths j in [lo, hi] are reachable, and the prefix minimum after these rows as ordered bits.

    Length j is reachable exactly if the margin of row j is a new minimum; `least` is the minimum of the rows before
    this chunk. A key has the margin's ordered bits above the row's index, so the minimum of keys also tells in which
    row it was first reached.
    """
    key = (ordered_bits(margin).to(tl.int64) << 32) | j.to(tl.int64)
    prefix_min = tl.associative_scan(key, 0, smaller)
    new_minimum = ((prefix_min & INDEX) == j) & ((prefix_min >> 32) < least)
    reachable = m & new_minimum & (j >= lo) & (j <= hi)
    return reachable, prefix_min


@triton.jit
def stable_length(run, longest, hi, n, HAS_FLOOR: tl.constexpr):
    """The candidate, from `run` (rows before the first margin below the floor) or `longest` (reachable length)."""
    if HAS_FLOOR:
        length = tl.minimum(hi, tl.maximum(run, 1))
    else:
        length = tl.where((longest == 0) | (hi == n), hi, longest)
    return length


@triton.jit
def snap_to_delimiter(
    p_token,
    s_token,
    length,
    flags_ptr,
    vocabulary,
    min_length,
    window,
    SNAP: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The length that ends with the last delimiter in the window; without one, the candidate (KEEP) or min_length."""
    if SNAP:
        last = tl.full((), 0, tl.int32)
        for j0 in range(tl.maximum(length - window, 1), length + 1, ROWS):
            j = j0 + tl.arange(0, ROWS)
            m = j <= length
            token = tl.load(p_token + (j - 1).to(tl.int64) * s_token, mask=m, other=-1, cache_modifier=".cg")
            delimiter = has_flag(flags_ptr, token, vocabulary, DELIMITER, m)
            last = tl.maximum(last, tl.max(tl.where(delimiter, j, 0), 0))
        otherwise = length if KEEP else min_length
        length = tl.where(last > 0, last, otherwise)
    return length


@triton.jit
def cut_at_stop(length, stop):
    """The length that ends with the first stop, if it is committed, and whether it is; `stop` is that length."""
    finished = stop <= length
    length = tl.minimum(length, stop)
    return length, finished


@triton.jit
def select(
    p_margin,
    p_token,
    s_margin,
    s_token,
    n,
    scored,
    flags_ptr,
    vocabulary,
    alpha,
    beta,
    min_length,
    window,
    floor,
    HAS_FLOOR: tl.constexpr,
    SNAP: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Commit length and finished of a sequence with n active positions, of which the first `scored` rows are given."""
    lo = lowest(n, alpha, HAS_FLOOR)
    hi = highest(n, alpha, beta, HAS_FLOOR)
    o = tl.arange(0, ROWS)  # [ROWS]
    nan = tl.full((), 0, tl.int32)
    stop = tl.full((), BIG, tl.int32)  # the length that ends with the first stop
    run = tl.full((), BIG, tl.int32)  # rows before the first margin below the floor
    longest = tl.full((), 0, tl.int32)  # the longest reachable length in [lo, hi]
    least = tl.full((), BIG, tl.int64)  # the prefix minimum so far, as ordered bits
    for j0 in range(0, scored, ROWS):
        j = j0 + o
        m = j < scored
        margin = tl.load(p_margin + j.to(tl.int64) * s_margin, mask=m, other=float("inf"), cache_modifier=".cg")
        nan = tl.maximum(nan, tl.max((margin != margin).to(tl.int32), 0))
        if flags_ptr is not None:
            token = tl.load(p_token + j.to(tl.int64) * s_token, mask=m, other=-1, cache_modifier=".cg")
            stopped = has_flag(flags_ptr, token, vocabulary, STOP, m)
            stop = tl.minimum(stop, tl.min(tl.where(stopped, j + 1, BIG), 0))
        if HAS_FLOOR:
            run = tl.minimum(run, tl.min(tl.where(margin < floor, j, BIG), 0))
        else:
            reachable, prefix_min = reachable_lengths(margin, j, m, lo, hi, least)
            longest = tl.maximum(longest, tl.max(tl.where(reachable, j, 0), 0))
            least = tl.minimum(least, tl.min(prefix_min, 0) >> 32)
    length = stable_length(run, longest, hi, n, HAS_FLOOR)
    length = snap_to_delimiter(p_token, s_token, length, flags_ptr, vocabulary, min_length, window, SNAP, KEEP, ROWS)
    length = tl.minimum(tl.maximum(length, min_length), n)
    length, finished = cut_at_stop(length, stop)
    nothing = (nan != 0) | (n == 0)
    return tl.where(nothing, 0, length), (finished & (nan == 0) & (n > 0)).to(tl.int8)

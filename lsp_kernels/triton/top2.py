"""Device functions: the two largest logits of a row, found by any number of programs.

A lane keeps its best value, the id of it, and its second best. For the log-odds (REST) it also keeps the weight of all
values but the best: an online sum of exponentials relative to the second best. Relative to the best it would lose its
precision where the margin is large.
"""

from __future__ import annotations

import triton
import triton.language as tl

BIG = tl.constexpr(0x7FFFFFFF)
LOG2E = tl.constexpr(1.4426950408889634)
SUPPRESSED = tl.constexpr(4)  # flags of a vocabulary: the id is suppressed
SUPPRESSED_NEAR = tl.constexpr(8)  # ... or any id of its span is


@triton.jit
def weight(low, high):
    """e^(low - high), and 1 where they are equal, infinite or not."""
    return tl.exp2(tl.where(low == high, 0.0, low - high) * LOG2E)


@triton.jit
def update(v1, i1, v2, s, x, tile, REST: tl.constexpr):
    """Adds a tile to what the lanes hold. A NaN stays in v2 and never enters v1."""
    loser = tl.minimum(v1, x, propagate_nan=tl.PropagateNan.ALL)
    second = tl.maximum(v2, loser, propagate_nan=tl.PropagateNan.ALL)
    if REST:
        e = weight(tl.minimum(v2, loser), second)
        s = tl.where(loser > v2, s * e + 1.0, s + e)
    i1 = tl.where(x > v1, tile, i1)
    v1 = tl.maximum(v1, x)
    return v1, i1, second, s


@triton.jit
def hide(x, flags):
    """Suppressed ids as -inf."""
    return tl.where((flags & SUPPRESSED) != 0, float("-inf"), x)


@triton.jit
def tile_at(pointer, start, ALIGNED: tl.constexpr):
    """Where a tile begins; if ALIGNED, the compiler learns that this is a multiple of 16 bytes and makes wide loads."""
    pointer += start
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)  # a hint for the sum; one for a function's argument is ignored
    return pointer


@triton.jit
def scan_row(
    p_row,
    split,
    tiles,
    vocabulary,
    flags_ptr,
    HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One split of a row, `tiles` blocks of ids: best, its id, second best, and the others' weight relative to it.

    ALIGNED: rows and flags begin at multiples of 16 bytes, and the number of ids is divisible by 16.
    """
    begin = split * tiles * BLOCK  # not clamped: the compiler must see that it is a multiple of BLOCK
    end = tl.maximum(begin, tl.minimum(begin + tiles * BLOCK, vocabulary))
    if ALIGNED:
        end = tl.multiple_of(end, 16)
    o = tl.arange(0, BLOCK)  # [BLOCK]
    v1 = tl.full((BLOCK,), float("-inf"), tl.float32)
    v2 = v1
    s = tl.zeros((BLOCK,), tl.float32)
    i1 = tl.zeros((BLOCK,), tl.int32) + begin
    whole = begin + (end - begin) // (4 * BLOCK) * (4 * BLOCK)
    for st in range(begin, whole, 4 * BLOCK):  # no masks, and four loads are issued before the first is used
        p = tile_at(p_row, st, ALIGNED) + o
        a = tl.load(p, eviction_policy="evict_first").to(tl.float32)
        b = tl.load(p + BLOCK, eviction_policy="evict_first").to(tl.float32)
        c = tl.load(p + 2 * BLOCK, eviction_policy="evict_first").to(tl.float32)
        d = tl.load(p + 3 * BLOCK, eviction_policy="evict_first").to(tl.float32)
        if HIDDEN:
            near = tl.load(flags_ptr + st) | tl.load(flags_ptr + st + 4 * BLOCK - 1)
            if (near & SUPPRESSED_NEAR) != 0:
                p_flags = tile_at(flags_ptr, st, ALIGNED) + o
                a = hide(a, tl.load(p_flags))
                b = hide(b, tl.load(p_flags + BLOCK))
                c = hide(c, tl.load(p_flags + 2 * BLOCK))
                d = hide(d, tl.load(p_flags + 3 * BLOCK))
        v1, i1, v2, s = update(v1, i1, v2, s, a, st, REST)
        v1, i1, v2, s = update(v1, i1, v2, s, b, st + BLOCK, REST)
        v1, i1, v2, s = update(v1, i1, v2, s, c, st + 2 * BLOCK, REST)
        v1, i1, v2, s = update(v1, i1, v2, s, d, st + 3 * BLOCK, REST)
    for st in range(whole, end, BLOCK):
        m = st + o < end
        p = tile_at(p_row, st, ALIGNED) + o
        x = tl.load(p, mask=m, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
        if HIDDEN:
            x = hide(x, tl.load(tile_at(flags_ptr, st, ALIGNED) + o, mask=m, other=0))
        v1, i1, v2, s = update(v1, i1, v2, s, x, st, REST)
    return merge(v1, i1 + o, v2, s, 0, REST)


@triton.jit
def merge(v1, i1, v2, s, AXIS: tl.constexpr, REST: tl.constexpr):
    """Joins lanes or splits along an axis: of equal values the lowest id wins, and all others add to the weight."""
    first = tl.max(v1, AXIS, keep_dims=True)
    token = tl.min(tl.where(v1 == first, i1, BIG), AXIS, keep_dims=True)
    won = i1 == token
    second = tl.max(tl.where(won, v2, v1), AXIS, keep_dims=True)
    nan = tl.max((v2 != v2).to(tl.int32), AXIS) != 0
    total = tl.max(s, AXIS)
    if REST:
        total = tl.sum(s * weight(v2, second) + tl.where(won, 0.0, weight(v1, second)), AXIS)
    return tl.max(v1, AXIS), tl.min(token, AXIS), tl.where(nan, float("nan"), tl.max(second, AXIS)), total

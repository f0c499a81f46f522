"""Device functions: the two largest logits of a row, found by any number of programs.

A lane keeps its best value, the id of it, and its second best. For the log-odds (REST) it also keeps the weight of all
values but the best: an online sum of exponentials relative to the largest of them, which is the second best. Relative
to the best it would lose its precision where the margin is large. For the entropy (ENTROPY) it keeps the same sum with
each term times its logit, relative to the same value.

With noise (NOISE), best and second best are noisy. Weights belong to the logits without noise, so that a lane then also
keeps the clean logit of its best, and the largest clean logit of the others, which need not be the second best.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .noise import MOST_NOISE, gumbel, random_words

BIG = tl.constexpr(0x7FFFFFFF)
LOG2E = tl.constexpr(1.4426950408889634)
LEAST_DISTANCE = tl.constexpr(-1000.0)  # e to the power of it is 0, and so is that times it
SUPPRESSED = tl.constexpr(4)  # flags of a vocabulary: the id is suppressed
SUPPRESSED_NEAR = tl.constexpr(8)  # ... or any id of its span is


@triton.jit
def weight(low, high):
    """e^(low - high), and 1 where they are equal, infinite or not."""
    return tl.exp2(tl.where(low == high, 0.0, low - high) * LOG2E)


@triton.jit
def distance(low, high):
    """low - high, finite where their weight is 0, and 0 where they are equal, infinite or not."""
    return tl.maximum(tl.where(low == high, 0.0, low - high), LEAST_DISTANCE)


@triton.jit
def add_weight(r, s, t, high, x, ENTROPY: tl.constexpr):
    """Adds x to weights s and t, relative to r, of some values; they become relative to `high`, the larger of both."""
    low = tl.minimum(r, x)
    e = weight(low, high)
    if ENTROPY:
        d = distance(low, high)
        t = tl.where(x > r, (t + d * s) * e, t + d * e)
    s = tl.where(x > r, s * e + 1.0, s + e)
    return s, t


@triton.jit
def update(lanes, x, tile, REST: tl.constexpr, ENTROPY: tl.constexpr):
    """Adds a tile to what the lanes hold. A NaN stays in v2 and never enters v1."""
    v1, i1, v2, clean, r, s, t = lanes
    loser = tl.minimum(v1, x, propagate_nan=tl.PropagateNan.ALL)
    second = tl.maximum(v2, loser, propagate_nan=tl.PropagateNan.ALL)
    if REST:
        s, t = add_weight(v2, s, t, second, loser, ENTROPY)
    i1 = tl.where(x > v1, tile, i1)
    v1 = tl.maximum(v1, x)
    return v1, i1, second, clean, r, s, t


@triton.jit
def update_noisy(lanes, x, y, tile, REST: tl.constexpr, ENTROPY: tl.constexpr):
    """The same for a tile x whose noisy logits are y. The clean logit of a best that is displaced joins the others."""
    won = y > lanes[0]
    clean = lanes[3]
    if REST:
        lanes = join(lanes, tl.where(won, clean, x), ENTROPY)
    v1, i1, v2, _clean, r, s, t = update(lanes, y, tile, False, False)
    return v1, i1, v2, tl.where(won, x, clean), r, s, t


@triton.jit
def join(lanes, x, ENTROPY: tl.constexpr):
    """Adds clean logits to those of the ids that are not the best."""
    v1, i1, v2, clean, r, s, t = lanes
    high = tl.maximum(r, x)
    s, t = add_weight(r, s, t, high, x, ENTROPY)
    return v1, i1, v2, clean, high, s, t


@triton.jit
def add_noise(x, tile, draw, GROUPED: tl.constexpr, FAST: tl.constexpr, BLOCK: tl.constexpr):
    """The noisy logits of a tile; `draw` is seed, place and temperature of its row, and the first id of the row."""
    seed, place, temperature, id_offset = draw
    return x + temperature * gumbel(random_words(seed, place, id_offset + tile, BLOCK, 1, GROUPED), FAST)


@triton.jit
def can_rise(x, temperature, floor):
    """Whether noise can lift any value of a tile above `floor`. A NaN, which must be seen, counts as one."""
    most = tl.max(tl.where(x == x, x, float("inf")), 0)
    return most + temperature * MOST_NOISE > floor


@triton.jit
def second_of(lanes):
    """At most the second best of all lanes: what is not above it cannot change the two best."""
    v1, _i1, v2, _clean, _r, _s, _t = lanes
    return tl.max(tl.where(v1 == tl.max(v1, 0), v2, v1), 0)


@triton.jit
def add_tiles(
    lanes,
    floor,
    xs,
    st,
    draw,
    N: tl.constexpr,
    GROUPED: tl.constexpr,
    FAST: tl.constexpr,
    REST: tl.constexpr,
    ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds N tiles, the first of which begins at `st`, to what the lanes hold. Without noise, `floor` is not used."""
    if draw is None:
        for k in tl.static_range(N):
            lanes = update(lanes, xs[k], st + k * BLOCK, REST, ENTROPY)
    else:
        highest = xs[0]
        for k in tl.static_range(1, N):
            highest = tl.maximum(highest, xs[k], propagate_nan=tl.PropagateNan.ALL)
        if can_rise(highest, draw[2], floor):
            for k in tl.static_range(N):
                y = add_noise(xs[k], st + k * BLOCK, draw, GROUPED, FAST, BLOCK)
                lanes = update_noisy(lanes, xs[k], y, st + k * BLOCK, REST, ENTROPY)
            floor = second_of(lanes)
        elif REST:
            for k in tl.static_range(N):
                lanes = join(lanes, xs[k], ENTROPY)
    return lanes, floor


@triton.jit
def hide(x, flags):
    """Suppressed ids as -inf."""
    return tl.where((flags & SUPPRESSED) != 0, float("-inf"), x)


@triton.jit
def load_tiles(p, N: tl.constexpr, BLOCK: tl.constexpr):
    """N tiles from pointers to the first one on."""
    xs = (tl.load(p, eviction_policy="evict_first").to(tl.float32),)
    for k in tl.static_range(1, N):
        xs = xs + (tl.load(p + k * BLOCK, eviction_policy="evict_first").to(tl.float32),)  # type: ignore[assignment]
    return xs


@triton.jit
def hide_tiles(xs, p_flags, N: tl.constexpr, BLOCK: tl.constexpr):
    hidden = (hide(xs[0], tl.load(p_flags)),)
    for k in tl.static_range(1, N):
        hidden = hidden + (hide(xs[k], tl.load(p_flags + k * BLOCK)),)  # type: ignore[assignment]
    return hidden


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
    draw,
    HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    GROUPED: tl.constexpr,
    FAST: tl.constexpr,
    REST: tl.constexpr,
    ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One split of a row, `tiles` blocks of ids: what `merge` returns of it. `draw` is that of `add_noise`, or None.

    ALIGNED: rows and flags begin at multiples of 16 bytes, and the number of ids is divisible by 16. GROUPED: the first
    id of the row is a multiple of 4. With noise, tiles that cannot change the two best get none.
    """
    begin = split * tiles * BLOCK  # not clamped: the compiler must see that it is a multiple of BLOCK
    end = tl.maximum(begin, tl.minimum(begin + tiles * BLOCK, vocabulary))
    if ALIGNED:
        end = tl.multiple_of(end, 16)
    o = tl.arange(0, BLOCK)  # [BLOCK]
    nothing = tl.full((BLOCK,), float("-inf"), tl.float32)
    zero = tl.zeros((BLOCK,), tl.float32)
    lanes = nothing, tl.zeros((BLOCK,), tl.int32) + begin, nothing, nothing, nothing, zero, zero
    floor = tl.full((), float("-inf"), tl.float32)
    # Loads that are issued before the first is used. Noise takes registers: on AMD two tiles of it would spill scalars.
    N: tl.constexpr = 4 if draw is None else 2 if FAST else 1
    whole = begin + (end - begin) // (N * BLOCK) * (N * BLOCK)
    for st in range(begin, whole, N * BLOCK):  # no masks
        xs = load_tiles(tile_at(p_row, st, ALIGNED) + o, N, BLOCK)
        if HIDDEN:
            near = tl.load(flags_ptr + st) | tl.load(flags_ptr + st + N * BLOCK - 1)
            if (near & SUPPRESSED_NEAR) != 0:
                xs = hide_tiles(xs, tile_at(flags_ptr, st, ALIGNED) + o, N, BLOCK)
        lanes, floor = add_tiles(lanes, floor, xs, st, draw, N, GROUPED, FAST, REST, ENTROPY, BLOCK)
    for st in range(whole, end, BLOCK):
        m = st + o < end
        p = tile_at(p_row, st, ALIGNED) + o
        x = tl.load(p, mask=m, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
        if HIDDEN:
            x = hide(x, tl.load(tile_at(flags_ptr, st, ALIGNED) + o, mask=m, other=0))
        lanes, floor = add_tiles(lanes, floor, (x,), st, draw, 1, GROUPED, FAST, REST, ENTROPY, BLOCK)
    v1, i1, v2, clean, r, s, t = lanes
    return merge((v1, i1 + o, v2, clean, r, s, t), 0, draw is not None, REST, ENTROPY)


@triton.jit
def merge(lanes, AXIS: tl.constexpr, NOISE: tl.constexpr, REST: tl.constexpr, ENTROPY: tl.constexpr):
    """Joins lanes or splits along an axis: of equal values the lowest id wins, and all others add to the weight.

    Returns best, its id, second best, clean logit of the best, largest clean logit of the others, and their two weights
    relative to it. Without noise the best and the second best are these clean logits.
    """
    v1, i1, v2, clean, r, s, t = lanes
    first = tl.max(v1, AXIS, keep_dims=True)
    token = tl.min(tl.where(v1 == first, i1, BIG), AXIS, keep_dims=True)
    won = i1 == token
    second = tl.max(tl.where(won, v2, v1), AXIS, keep_dims=True)
    nan = tl.max((v2 != v2).to(tl.int32), AXIS) != 0
    high = second
    if NOISE:
        high = tl.max(tl.where(won, r, tl.maximum(r, clean)), AXIS, keep_dims=True)
    else:
        clean, r = v1, v2
    total, spread = tl.max(s, AXIS), tl.max(t, AXIS)
    if REST:
        total = tl.sum(s * weight(r, high) + tl.where(won, 0.0, weight(clean, high)), AXIS)
    if ENTROPY:
        spread = (t + distance(r, high) * s) * weight(r, high)
        spread = tl.sum(spread + tl.where(won, 0.0, distance(clean, high) * weight(clean, high)), AXIS)
    top, second = tl.max(v1, AXIS), tl.where(nan, float("nan"), tl.max(second, AXIS))
    if NOISE:
        clean, high = tl.max(tl.where(won, clean, float("-inf")), AXIS), tl.max(high, AXIS)
    else:
        clean, high = top, second
    return top, tl.min(token, AXIS), second, clean, high, total, spread

"""Device functions of the head: which rows and ids a program has, and the best of its products.

A tile has scored rows and no others: they are numbered through all sequences, and tile t has those from t * BM on.
Programs with the same tile divide the vocabulary into ranges. What is kept of a row is what `top2.merge` returns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .noise import gumbel, random_words
from .rows import sequence_at, sequence_of
from .rule import scored_rows
from .top2 import BIG, distance, hide, merge, weight

STEP = tl.constexpr(16)  # ranges begin at multiples of this
UNIT = tl.constexpr(16)  # strides of aligned tensors are given in so many elements, so that the compiler knows


@triton.jit
def scored_at(b, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR: tl.constexpr):
    """First row, N and number of scored rows of sequences. Past the last sequence there are none."""
    first, given, n = sequence_at(tl.minimum(b, batch - 1), cu_ptr, active_ptr, starts_ptr, length, rows)
    wanted = scored_rows(n, alpha, beta, min_length, HAS_FLOOR)
    n = tl.where(given < wanted, given, n)
    return first, n, tl.where(b < batch, tl.minimum(given, wanted), 0)


@triton.jit
def count_scored(
    cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """How many rows of all sequences are scored: none if the borders decrease anywhere."""
    total = tl.full((), 0, tl.int64)
    for b0 in range(0, batch, CHUNK):
        _, _, scored = scored_at(
            b0 + tl.arange(0, CHUNK), cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length,
            HAS_FLOOR,
        )  # fmt: skip
        total += tl.sum(scored.to(tl.int64), 0)
    if cu_ptr is not None:
        decreasing = sequence_of(tl.full((), -1, tl.int32), cu_ptr, length, batch, CHUNK) == batch
        total = tl.where(decreasing, 0, total)
    return total.to(tl.int32)


@triton.jit
def sequences_of_scored(
    q, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The sequences of scored rows number q [M], and how many rows are scored before these sequences."""
    b = q * 0
    before = q * 0
    seen = tl.full((), 0, tl.int32)
    for b0 in range(0, batch, CHUNK):
        o_b = b0 + tl.arange(0, CHUNK)
        _, _, scored = scored_at(
            o_b, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR
        )
        end = seen + tl.cumsum(scored, 0)
        passed = (end[None, :] <= q[:, None]) & (o_b < batch)[None, :]  # [M, CHUNK]
        b += tl.sum(passed.to(tl.int32), 1)
        before += tl.sum(tl.where(passed, scored[None, :], 0), 1)
        seen += tl.sum(scored, 0)
    return b, before


@triton.jit
def sequences_of(row, cu_ptr, length, batch, CHUNK: tl.constexpr):
    """The sequences of rows [M] if the borders do not decrease; `batch` for rows after the last border."""
    if cu_ptr is None:
        b = row // length
    else:
        b = row * 0
        for b0 in range(0, batch, CHUNK):
            o_b = b0 + tl.arange(0, CHUNK)
            border = tl.load(cu_ptr + 1 + o_b, mask=o_b < batch, other=BIG)
            b += tl.sum((border[None, :] <= row[:, None]).to(tl.int32), 1)
    return b


@triton.jit
def hidden_at(h_ptr, s_batch, s_row, b, row, length, cu_ptr, ALIGNED: tl.constexpr):
    """Where the hidden states of rows begin, [M, 1]; `b` is which sequence of a batch each belongs to."""
    if ALIGNED:
        s_batch *= UNIT
        s_row *= UNIT
    o_h = row.to(tl.int64) * s_row
    if cu_ptr is None:
        o_h += b.to(tl.int64) * (s_batch - length.to(tl.int64) * s_row)
    return h_ptr + o_h[:, None]


@triton.jit
def work_of(i_p, programs, tiles, vocabulary, BV: tl.constexpr):
    """Tile and range of a program, ids of a range, and how many ranges there are.

    Programs that are left over have a tile or a range past the last.
    """
    ranges = programs // tiles
    share = tl.maximum((vocabulary - 1) // ranges // STEP * STEP + STEP, BV)
    if ranges == 1:
        share = vocabulary  # rounded up it might not fit 32 bits
    return i_p // ranges, i_p % ranges, share, (vocabulary - 1) // share + 1


@triton.jit
def products(
    p_h, m_m, p_w, s_w, m_v, D: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Hidden states times the weights of BV ids, accumulated in float32."""
    o_k = tl.arange(0, BK)
    p_h = p_h + o_k[None, :]  # [BM, BK]
    p_w = p_w + tl.arange(0, BV).to(tl.int64)[None, :] * s_w + o_k[:, None]  # [BK, BV]
    x = tl.zeros((BM, BV), tl.float32)
    for k0 in range(0, D, BK):
        m_h = m_m[:, None]
        m_w = m_v[None, :]
        if D % BK != 0:
            m_k = k0 + o_k < D
            m_h = m_h & m_k[None, :]
            m_w = m_w & m_k[:, None]
        h = tl.load(p_h + k0, mask=m_h, other=0.0, eviction_policy="evict_last")
        w = tl.load(p_w + k0, mask=m_w, other=0.0, eviction_policy="evict_first")
        x = tl.dot(h, w, x, input_precision="ieee")
    return x


@triton.jit
def pinned(x):
    """The same values, of which nothing is read before the wait for them.

    On sm_100 they come from tensor memory. Triton 3.7.1 lets the compiler move copies of their registers before the
    `tcgen05.wait::ld`, but not an instruction that counts as having effects.
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], tl.float32, False, 1)


@triton.jit
def best_of_tile(x, y, ids, NOISE: tl.constexpr, REST: tl.constexpr, ENTROPY: tl.constexpr):
    """What `merge` returns of rows of logits x [M, N] whose noisy logits are y; without noise these are the same.

    A maximum is that of the numbers; where there is none, the best is NaN, which `both` overlooks.
    """
    nan = tl.max((x != x).to(tl.int32), 1) != 0
    top = tl.max(y, 1)
    token = tl.min(tl.where(y == top[:, None], ids, BIG), 1)
    won = ids == token[:, None]
    others = tl.where(won, float("-inf"), y)
    second = tl.max(others, 1)
    clean, high = top, second
    if NOISE:
        clean = tl.max(tl.where(won, x, float("-inf")), 1)
        others = tl.where(won, float("-inf"), x)
        high = tl.max(others, 1)
    total = top * 0.0
    spread = total
    if REST:
        e = tl.where(won, 0.0, weight(others, high[:, None]))
        total = tl.sum(e, 1)
        if ENTROPY:
            spread = tl.sum(e * distance(others, high[:, None]), 1)
    return top, token, tl.where(nan, float("nan"), second), clean, high, total, spread


@triton.jit
def nothing_yet(BM: tl.constexpr):
    """What is known of BM rows before the first id."""
    none = tl.full((BM,), float("-inf"), tl.float32)
    zero = tl.zeros((BM,), tl.float32)
    return none, tl.full((BM,), BIG, tl.int32), none, none, none, zero, zero


@triton.jit
def both(a, b, NOISE: tl.constexpr, REST: tl.constexpr, ENTROPY: tl.constexpr):
    """`merge` of two parts of the vocabulary, for rows [M]; the ids of b come after those of a.

    `merge` itself would need the two in a dimension of 2, which not every layout of tensor cores has.
    """
    a_top, a_id, a_second, a_clean, a_high, a_total, a_spread = a
    b_top, b_id, b_second, b_clean, b_high, b_total, b_spread = b
    won = b_top > a_top
    loser = tl.minimum(a_top, b_top)
    second = tl.maximum(a_second, b_second, propagate_nan=tl.PropagateNan.ALL)
    second = tl.maximum(second, loser, propagate_nan=tl.PropagateNan.ALL)
    top = tl.maximum(a_top, b_top)
    clean, high = top, second
    if NOISE:
        loser, clean = tl.where(won, a_clean, b_clean), tl.where(won, b_clean, a_clean)
        high = tl.maximum(tl.maximum(a_high, b_high), loser)
    total, spread = a_total, a_spread
    if REST:
        total = a_total * weight(a_high, high) + b_total * weight(b_high, high) + weight(loser, high)
    if ENTROPY:
        a_spread = (a_spread + distance(a_high, high) * a_total) * weight(a_high, high)
        b_spread = (b_spread + distance(b_high, high) * b_total) * weight(b_high, high)
        spread = a_spread + b_spread + distance(loser, high) * weight(loser, high)
    return top, tl.where(won, b_id, a_id), second, clean, high, total, spread


@triton.jit
def best_of_range(
    p_h, m_m, w_ptr, s_w, bias_ptr, flags_ptr, draw, begin, count, D: tl.constexpr, HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr, GROUPED: tl.constexpr, FAST: tl.constexpr, REST: tl.constexpr, ENTROPY: tl.constexpr,
    BM: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr, PIN: tl.constexpr,
):  # fmt: skip
    """What is known of a tile of rows from `count` ids. `p_h` [BM, 1] are the rows' hidden states, `m_m` which exist.

    `draw` is None without noise, else seeds, places and temperatures [BM, 1], and the first id of the vocabulary.
    GROUPED: that is a multiple of 4.
    """
    if ALIGNED:
        s_w *= UNIT
    o_v = tl.arange(0, BV)
    found = nothing_yet(BM)
    for i_v in range(0, (count - 1) // BV + 1):
        v0 = begin + i_v * BV
        m_v = o_v < count - i_v * BV
        x = products(p_h, m_m, w_ptr + v0.to(tl.int64) * s_w, s_w, m_v, D, BM, BV, BK)
        if PIN:
            x = pinned(x)
            # With 8 warps Triton 3.7.1 clears tensor memory for the next tile in another layout than it was read in,
            # so that a fast warp would clear what a slow one has yet to read.
            tl.debug_barrier()
        if bias_ptr is not None:
            x += tl.load(bias_ptr + v0 + o_v, mask=m_v, other=0.0).to(tl.float32)[None, :]
        if HIDDEN:
            x = hide(x, tl.load(flags_ptr + v0 + o_v, mask=m_v, other=0).to(tl.int32)[None, :])
        x = tl.where(m_v[None, :], x, float("-inf"))
        y = x
        if draw is not None:
            seed, place, temperature, id_offset = draw
            y = x + temperature * gumbel(random_words(seed, place, id_offset + v0, BV, 2, GROUPED), FAST)
        best = best_of_tile(x, y, (v0 + o_v)[None, :], draw is not None, REST, ENTROPY)
        found = both(found, best, draw is not None, REST, ENTROPY)
    return found


@triton.jit
def merge_ranges(
    p_value, plane, used, NOISE: tl.constexpr, REST: tl.constexpr, ENTROPY: tl.constexpr,
    BM: tl.constexpr, MERGED: tl.constexpr,
):  # fmt: skip
    """Joins what the `used` programs of a tile have published, MERGED of them at once: planes [BM, used]."""
    o_m = tl.arange(0, BM)
    found = nothing_yet(BM)
    for r0 in range(0, used, MERGED):
        o_r = r0 + tl.arange(0, MERGED)
        m = (o_m[:, None] >= 0) & (o_r < used)[None, :]
        q = o_m[:, None] * used + o_r[None, :]
        v1 = tl.load(p_value + q, mask=m, other=float("-inf"), cache_modifier=".cg")  # [BM, MERGED]
        v2 = tl.load(p_value + plane + q, mask=m, other=float("-inf"), cache_modifier=".cg")
        i1 = tl.load(p_value + 2 * plane + q, mask=m, other=0.0, cache_modifier=".cg").to(tl.int32, bitcast=True)
        clean, r, s, t = v1, v2, v1, v1
        if REST:
            s = tl.load(p_value + 3 * plane + q, mask=m, other=0.0, cache_modifier=".cg")
            if NOISE:
                clean = tl.load(p_value + 4 * plane + q, mask=m, other=float("-inf"), cache_modifier=".cg")
                r = tl.load(p_value + 5 * plane + q, mask=m, other=float("-inf"), cache_modifier=".cg")
        if ENTROPY:
            t = tl.load(p_value + (6 if NOISE else 4) * plane + q, mask=m, other=0.0, cache_modifier=".cg")
        found = both(found, merge((v1, i1, v2, clean, r, s, t), 1, NOISE, REST, ENTROPY), NOISE, REST, ENTROPY)
    return found

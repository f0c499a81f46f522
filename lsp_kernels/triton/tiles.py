"""Device functions of the head: which rows and ids a program has, and the two largest logits of its tile of products.

A tile has rows that are scored and no others: they are numbered through all sequences, and tile t has those from t * BM
on. Programs with the same tile divide the vocabulary into ranges.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import sequence_at, sequence_of
from .rule import scored_rows
from .top2 import BIG, hide, merge, weight

STEP = tl.constexpr(16)  # ranges begin at multiples of this


@triton.jit
def scored_at(
    b, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR: tl.constexpr
):  # fmt: skip
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
        o_b = b0 + tl.arange(0, CHUNK)
        _, _, scored = scored_at(
            o_b, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR
        )  # fmt: skip
        total += tl.sum(scored.to(tl.int64), 0)
    if cu_ptr is not None:
        decreasing = sequence_of(tl.full((), -1, tl.int32), cu_ptr, length, batch, CHUNK) == batch
        total = tl.where(decreasing, 0, total)
    return total.to(tl.int32)


@triton.jit
def sequence_of_scored(
    q, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Sequences of scored rows number q [M], and how many rows are scored before these sequences."""
    b = q * 0
    before = q * 0
    seen = tl.full((), 0, tl.int32)
    for b0 in range(0, batch, CHUNK):
        o_b = b0 + tl.arange(0, CHUNK)
        _, _, scored = scored_at(
            o_b, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR
        )  # fmt: skip
        end = seen + tl.cumsum(scored, 0)
        passed = (end[None, :] <= q[:, None]) & (o_b < batch)[None, :]  # [M, CHUNK]
        b += tl.sum(passed.to(tl.int32), 1)
        before += tl.sum(tl.where(passed, scored[None, :], 0), 1)
        seen += tl.sum(scored, 0)
    return b, before


@triton.jit
def work_of(i_p, programs, tiles, vocabulary, BV: tl.constexpr):
    """Tile and range of a program, ids of a range, and how many ranges there are.

    Programs that are left over have a tile past the last, or a range past the last.
    """
    ranges = programs // tiles
    share = tl.maximum((vocabulary - 1) // ranges // STEP * STEP + STEP, BV)
    if ranges == 1:
        share = vocabulary  # which rounded up might not fit 32 bits
    return i_p // ranges, i_p % ranges, share, (vocabulary - 1) // share + 1


@triton.jit
def join(a1, ai, a2, a_s, b1, bi, b2, b_s, REST: tl.constexpr):
    """Two results for the same rows as one; the ids of b come after those of a. A NaN stays in the second best."""
    loser = tl.minimum(a1, b1)
    second = tl.maximum(
        tl.maximum(a2, b2, propagate_nan=tl.PropagateNan.ALL), loser, propagate_nan=tl.PropagateNan.ALL
    )
    s = a_s
    if REST:
        s = a_s * weight(a2, second) + b_s * weight(b2, second) + weight(loser, second)
    return tl.maximum(a1, b1), tl.where(b1 > a1, bi, ai), second, s


@triton.jit
def best_of_tile(x, ids, REST: tl.constexpr):
    """Best, its id, second best and the others' weight, of every row of logits [M, N]."""
    nan = tl.max((x != x).to(tl.int32), 1) != 0
    x = tl.where(x != x, float("-inf"), x)
    best = tl.max(x, 1)
    token = tl.min(tl.where(x == best[:, None], ids[None, :], BIG), 1)
    x = tl.where(ids[None, :] == token[:, None], float("-inf"), x)
    second = tl.max(x, 1)
    total = best * 0.0
    if REST:
        total = tl.sum(tl.where(ids[None, :] == token[:, None], 0.0, weight(x, second[:, None])), 1)
    return best, token, tl.where(nan, float("nan"), second), total


@triton.jit
def best_of_range(
    p_h, m_m, w_ptr, s_w, bias_ptr, flags_ptr, begin, end, D: tl.constexpr, HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr, REST: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The ids [begin, end) of a tile of rows: best, its id, second best and the others' weight relative to it, [BM].

    `p_h` [BM, 1] are the rows' hidden states; rows that `m_m` leaves out are not read.
    """
    o_v = tl.arange(0, BV)
    o_k = tl.arange(0, BK)
    v1 = tl.full((BM,), float("-inf"), tl.float32)
    i1 = tl.full((BM,), BIG, tl.int32)
    v2 = v1
    s = tl.zeros((BM,), tl.float32)
    if ALIGNED:
        s_w *= 16
    for v0 in range(begin, end, BV):
        m_v = o_v < end - v0
        p_w = w_ptr + (begin * 0 + v0).to(tl.int64) * s_w
        x = products(p_h, m_m, p_w, s_w, m_v, o_v, o_k, D, BM, BV, BK)
        ids = v0 + o_v
        if bias_ptr is not None:
            x += tl.load(bias_ptr + ids, mask=m_v, other=0.0).to(tl.float32)[None, :]
        if HIDDEN:
            x = hide(x, tl.load(flags_ptr + ids, mask=m_v, other=0)[None, :])
        x = tl.where(m_v[None, :], x, float("-inf"))
        t1, ti, t2, ts = best_of_tile(x, ids, REST)
        v1, i1, v2, s = join(v1, i1, v2, s, t1, ti, t2, ts, REST)
    return v1, i1, v2, s


@triton.jit
def products(
    p_h, m_m, p_w, s_w, m_v, o_v, o_k, D: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Hidden states times the weights of BV ids, accumulated in float32."""
    p_w = p_w + o_v[None, :] * s_w + o_k[:, None]  # [BK, BV]
    p_h = p_h + o_k[None, :]  # [BM, BK]
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
def merge_ranges(p_value, p_id, plane, m_m, used, REST: tl.constexpr, BM: tl.constexpr, MERGED: tl.constexpr):
    """Joins what the programs of a tile have published, as planes [BM, used]: best, second, id, weight."""
    o_m = tl.arange(0, BM)
    v1 = tl.full((BM,), float("-inf"), tl.float32)
    i1 = tl.full((BM,), BIG, tl.int32)
    v2 = v1
    s = tl.zeros((BM,), tl.float32)
    for r0 in range(0, used, MERGED):
        o_r = r0 + tl.arange(0, MERGED)
        m = m_m[:, None] & (o_r < used)[None, :]
        q = o_m[:, None] * used + o_r[None, :]
        b1 = tl.load(p_value + q, mask=m, other=float("-inf"), cache_modifier=".cg")  # [BM, MERGED]
        b2 = tl.load(p_value + plane + q, mask=m, other=float("-inf"), cache_modifier=".cg")
        bi = tl.load(p_id + 2 * plane + q, mask=m, other=BIG, cache_modifier=".cg")
        bs = b1
        if REST:
            bs = tl.load(p_value + 3 * plane + q, mask=m, other=0.0, cache_modifier=".cg")
        r1, ri, r2, rs = merge(b1, bi, b2, bs, 1, REST)
        v1, i1, v2, s = join(v1, i1, v2, s, r1, ri, r2, rs, REST)
    return v1, i1, v2, s


@triton.jit
def sequences_of(row, cu_ptr, length, batch, CHUNK: tl.constexpr):
    """The sequences of rows [M] of borders that do not decrease; `batch` for rows after the last border."""
    if cu_ptr is None:
        b = row // length
    else:
        b = row * 0
        for b0 in range(0, batch, CHUNK):
            o_b = b0 + tl.arange(0, CHUNK)
            border = tl.load(cu_ptr + 1 + o_b, mask=o_b < batch, other=BIG)
            b += tl.sum((border[None, :] <= row[:, None]).to(tl.int32), 1)
    return b

"""Device functions: which sequence a row belongs to, which rows a sequence has, and merging the splits of a row."""

from __future__ import annotations

import triton
import triton.language as tl

from .top2 import merge

BIG = tl.constexpr(0x7FFFFFFF)


@triton.jit
def sequence_at(b, cu_ptr, active_ptr, starts_ptr, length, rows):
    """First active row of sequence b among all rows, rows given from there on, and N; all clamped to the tensor."""
    if cu_ptr is not None:
        begin = tl.minimum(tl.maximum(tl.load(cu_ptr + b), 0), rows)
        end = tl.minimum(tl.maximum(tl.load(cu_ptr + b + 1), begin), rows)
    else:
        begin = b * length
        end = begin + length
    first = begin
    if starts_ptr is not None:
        first += tl.minimum(tl.maximum(tl.load(starts_ptr + b), 0), end - begin)
    given = end - first
    n = given
    if active_ptr is not None:
        n = tl.maximum(tl.load(active_ptr + b), 0)
    return first, given, n


@triton.jit
def sequence_of(row, cu_ptr, length, batch, CHUNK: tl.constexpr):
    """The sequence of a row; `batch` for a row after the last border.

    It is `batch` for every row if the borders decrease anywhere: then no sequence has rows, nothing is committed, and
    every ticket stays zero.
    """
    if cu_ptr is None:
        b = row // length
    else:
        before = tl.full((), 0, tl.int64)  # number of borders up to the row, plus 2^32 times how many decrease
        for b0 in range(0, batch, CHUNK):
            o_b = b0 + tl.arange(0, CHUNK)
            m_b = o_b < batch
            border = tl.load(cu_ptr + 1 + o_b, mask=m_b, other=BIG)
            decreases = border < tl.load(cu_ptr + o_b, mask=m_b, other=0)
            before += tl.sum((border <= row).to(tl.int64) + (decreases.to(tl.int64) << 32), 0)
        b = tl.where(before > BIG, batch, before.to(tl.int32))
    return b


@triton.jit
def publish_split(found, i_p, value_ptr, plane, NOISE: tl.constexpr, REST: tl.constexpr, ENTROPY: tl.constexpr):
    """Stores what a program found of its split, in planes: best, second, id, and what is kept of the others.

    Of the id its bits. The last are `planes` of `configs.commit`: weight, two clean logits if there is noise, weight
    for the entropy.
    """
    v1, i1, v2, clean, r, s, t = found
    tl.store(value_ptr + i_p, v1)
    tl.store(value_ptr + plane + i_p, v2)
    tl.store(value_ptr + 2 * plane + i_p, i1.to(tl.float32, bitcast=True))
    if REST:
        tl.store(value_ptr + 3 * plane + i_p, s)
        if NOISE:
            tl.store(value_ptr + 4 * plane + i_p, clean)
            tl.store(value_ptr + 5 * plane + i_p, r)
    if ENTROPY:
        tl.store(value_ptr + (6 if NOISE else 4) * plane + i_p, t)


@triton.jit
def merge_splits(
    row,
    value_ptr,
    plane,
    NOISE: tl.constexpr,
    REST: tl.constexpr,
    ENTROPY: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Joins the splits of a row that other programs have published."""
    q = row.to(tl.int64) * SPLITS + tl.arange(0, SPLITS)  # [SPLITS]
    v1 = tl.load(value_ptr + q, cache_modifier=".cg")
    v2 = tl.load(value_ptr + plane + q, cache_modifier=".cg")
    i1 = tl.load(value_ptr + 2 * plane + q, cache_modifier=".cg").to(tl.int32, bitcast=True)
    clean, r, s, t = v1, v2, v1, v1
    if REST:
        s = tl.load(value_ptr + 3 * plane + q, cache_modifier=".cg")
        if NOISE:
            clean = tl.load(value_ptr + 4 * plane + q, cache_modifier=".cg")
            r = tl.load(value_ptr + 5 * plane + q, cache_modifier=".cg")
    if ENTROPY:
        t = tl.load(value_ptr + (6 if NOISE else 4) * plane + q, cache_modifier=".cg")
    return merge((v1, i1, v2, clean, r, s, t), 0, NOISE, REST, ENTROPY)

"""Suffix attention in one launch: attend, share long prefixes between programs, merge, and append to the cache.

A row is one query head of one token. The heads that share a K/V head are packed, so a tile of rows reads each key once.
A program has one tile of rows, one K/V head and one split of the keys. Splits of a tile publish their sums and take its
tickets; the program that takes the last ticket merges. Nobody waits for anybody. The grid depends on shapes alone; who
has which split follows from the lengths, which are clamped on the device, so wrong ones never lead out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._checks import FLOATS
from .._operands import check_suffix_attention, check_suffix_attention_into
from .configs import attention as configs
from .ticket import publish, shared_memory

APPEND = tl.constexpr(16)  # tokens that a program copies to the cache at once
DOUBLINGS = tl.constexpr(16)  # lengths of a split that are tried: the shortest one times 1, 2, 4, ...
LOG2E = math.log2(math.e)
LN2 = tl.constexpr(math.log(2.0))


@triton.jit
def clamp(x, low, high):
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def finite(largest):
    """What is subtracted from scores: their maximum, or 0 as long as all are -inf, because -inf - -inf is NaN."""
    return tl.where(largest == float("-inf"), 0.0, largest)


@triton.jit
def sequence_at(i_b, cu_ptr, prefix_ptr, batch, length, capacity):
    """First token, number of tokens and frozen prefix of sequences, clamped. Past the last sequence there are none."""
    m_b = i_b < batch
    if cu_ptr is None:
        begin = i_b * 0
        n = tl.where(m_b, length, 0)
    else:
        begin = clamp(tl.load(cu_ptr + i_b, mask=m_b, other=0), 0, length)
        n = clamp(tl.load(cu_ptr + i_b + 1, mask=m_b, other=0), begin, length) - begin
    prefix = clamp(tl.load(prefix_ptr + i_b, mask=m_b, other=0), 0, capacity)
    return begin, n, prefix


@triton.jit
def chunks_of(n, prefix, BN: tl.constexpr):
    """How many chunks of keys a sequence has: those of the prefix, then those of the pass."""
    return tl.cdiv(prefix, BN) + tl.cdiv(n, BN)


@triton.jit
def splits_of(n, prefix, doublings, most, least, BN: tl.constexpr):
    """How many programs share the keys of a tile: each has about `least` chunks of keys, doubled so many times."""
    shortest = tl.cdiv(chunks_of(n, prefix, BN), least)
    return tl.minimum((shortest + (1 << doublings) - 1) >> doublings, most)


@triton.jit
def plan_splits(
    cu_ptr, prefix_ptr, batch, length, capacity, tiles, extra, most, least,
    G: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """How often `least` is doubled, and the most splits of a tile, so that one program per tile and `extra` suffice.

    Every program finds the same answer: the smallest splits for which the grid is large enough. One split per tile
    always fits, except with decreasing borders; then nothing is divided, so that no ticket is left behind.
    """
    o_k = tl.arange(0, DOUBLINGS)
    needed = tl.zeros((DOUBLINGS,), tl.float32)  # exact as far as it is compared, and cannot overflow
    given = tl.full((), 0, tl.int64)
    for b0 in range(0, batch, CHUNK):
        _, n, prefix = sequence_at(b0 + tl.arange(0, CHUNK), cu_ptr, prefix_ptr, batch, length, capacity)
        b_tiles = tl.cdiv(n * G, BM)
        others = splits_of(n[:, None], prefix[:, None], o_k[None, :], most, least, BN) - 1  # [CHUNK, DOUBLINGS]
        needed += tl.sum(b_tiles.to(tl.float32)[:, None] * others.to(tl.float32), 0)
        given += tl.sum(b_tiles.to(tl.int64), 0)
    doublings = tl.sum((needed > extra).to(tl.int32), 0)
    return doublings, tl.where((doublings < DOUBLINGS) & (given <= tiles), most, 1)


@triton.jit
def work_at(
    i_p, cu_ptr, prefix_ptr, batch, length, capacity, doublings, most, least,
    G: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sequence of a program, the program's number within it, and how many programs share tiles before the sequence.

    The programs of a sequence are those of its first tile, one per split, then those of its second tile, and so on. A
    program without work has the sequence past the last.
    """
    i_b = tl.full((), 0, tl.int32)
    number = i_p
    place = tl.full((), 0, tl.int32)
    before = tl.full((), 0, tl.int32)
    for b0 in range(0, batch, CHUNK):
        o_b = b0 + tl.arange(0, CHUNK)
        _, n, prefix = sequence_at(o_b, cu_ptr, prefix_ptr, batch, length, capacity)
        splits = splits_of(n, prefix, doublings, most, least, BN)
        programs = tl.cdiv(n * G, BM) * splits
        passed = (before + tl.cumsum(programs, 0) <= i_p) & (o_b < batch)
        before += tl.sum(programs, 0)
        i_b += tl.sum(passed.to(tl.int32), 0)
        number -= tl.sum(tl.where(passed, programs, 0), 0)
        place += tl.sum(tl.where(passed & (splits > 1), programs, 0), 0)
    return i_b, number, place


@triton.jit
def append_tokens(
    p_k, p_v, p_kc, p_vc, s_k, s_v, s_kc, s_vc, worker, workers, prefix, append,
    D: tl.constexpr, DP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Copies this program's share of the appended tokens to the slots after the prefix, which no program reads."""
    o_d = tl.arange(0, DP)
    o_j = tl.arange(0, APPEND)
    if WIDE:
        o_j = o_j.to(tl.int64)
    for j0 in range(worker * APPEND, append, workers * APPEND):
        token = tl.full((), 0, tl.int64) + j0
        m = (j0 + o_j < append)[:, None] & (o_d < D)[None, :]
        b_k = tl.load(p_k + token * s_k + o_j[:, None] * s_k + o_d[None, :], mask=m)  # [APPEND, DP]
        b_v = tl.load(p_v + token * s_v + o_j[:, None] * s_v + o_d[None, :], mask=m)
        slot = prefix + token
        tl.store(p_kc + slot * s_kc + o_j[:, None] * s_kc + o_d[None, :], b_k, mask=m)
        tl.store(p_vc + slot * s_vc + o_j[:, None] * s_vc + o_d[None, :], b_v, mask=m)


@triton.jit
def attend(
    b_q, p_k, p_v, p_kc, p_vc, s_k, s_v, s_kc, s_vc, first, last, prefix, n, scale,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Softmax over the chunks [first, last) of the keys; the chunks of the prefix come before those of the pass.

    Returns, per row, the weighted sum of the values, the largest score (to base 2) and the sum of the weights.
    """
    o_d = tl.arange(0, DP)
    o_n = tl.arange(0, BN)
    if WIDE:
        o_n = o_n.to(tl.int64)
    chunks = tl.cdiv(prefix, BN)
    b_o = tl.zeros((BM, DP), tl.float32)
    b_max = tl.full((BM,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BM,), tl.float32)
    for i_c in range(first, last):
        frozen = i_c < chunks
        key = tl.where(frozen, i_c, i_c - chunks) * BN
        end = tl.where(frozen, prefix, n)
        s_key = tl.where(frozen, s_kc, s_k)
        s_value = tl.where(frozen, s_vc, s_v)
        p_key = tl.where(frozen, p_kc, p_k) + key.to(tl.int64) * s_key
        p_value = tl.where(frozen, p_vc, p_v) + key.to(tl.int64) * s_value
        m_n = key + o_n < end
        m_k = m_n[None, :]
        m_v = m_n[:, None]
        if D != DP:
            m_k = m_k & (o_d < D)[:, None]
            m_v = m_v & (o_d < D)[None, :]
        b_k = tl.load(p_key + o_n[None, :] * s_key + o_d[:, None], mask=m_k, other=0.0)  # [DP, BN]
        b_v = tl.load(p_value + o_n[:, None] * s_value + o_d[None, :], mask=m_v, other=0.0)  # [BN, DP]
        b_s = tl.dot(b_q, b_k, input_precision="ieee") * scale
        b_s = tl.where(m_n[None, :], b_s, float("-inf"))
        b_new = tl.maximum(b_max, tl.max(b_s, 1))
        base = finite(b_new)
        b_p = tl.exp2(b_s - base[:, None])
        rescale = tl.exp2(b_max - base)
        b_sum = b_sum * rescale + tl.sum(b_p, 1)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * rescale[:, None], input_precision="ieee")
        b_max = b_new
    return b_o, b_max, b_sum


@triton.jit
def merge_splits(p_o, p_max, active, BM: tl.constexpr, DP: tl.constexpr):
    """Joins what the splits of a tile have published, in their order, so the result is the same whoever merges."""
    o_m = tl.arange(0, BM)
    o_o = o_m[:, None] * DP + tl.arange(0, DP)[None, :]
    b_o = tl.zeros((BM, DP), tl.float32)
    b_max = tl.full((BM,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BM,), tl.float32)
    for _ in range(0, active):
        b_m = tl.load(p_max + o_m, cache_modifier=".cg")
        b_l = tl.load(p_max + BM + o_m, cache_modifier=".cg")
        b_new = tl.maximum(b_max, b_m)
        base = finite(b_new)
        mine = tl.exp2(b_max - base)
        other = tl.exp2(b_m - base)
        b_o = b_o * mine[:, None] + tl.load(p_o + o_o, cache_modifier=".cg") * other[:, None]
        b_sum = b_sum * mine + b_l * other
        b_max = b_new
        p_o += BM * DP
        p_max += 2 * BM
    return b_o, b_max, b_sum


@triton.jit
def write_rows(
    out_ptr, lse_ptr, first, row, rows, b_o, b_max, b_sum,
    G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Stores the rows of a tile, and the log-sum-exp of their scores if there is a place for it.

    `first` is the token of row 0. Where all scores are -inf the sum is 0, the output is 0 and the log-sum-exp is -inf.
    """
    o_m = tl.arange(0, BM)
    o_d = tl.arange(0, DP)
    heads = tl.num_programs(1) * G
    token = row // G
    start = (first + token) * heads + tl.program_id(1) * G
    o_r = ((row + o_m) // G - token) * heads + (row + o_m) % G
    m_r = row + o_m < rows
    total = tl.where(b_sum == 0.0, 1.0, b_sum)
    p_out = out_ptr + start * D + o_r[:, None] * D + o_d[None, :]
    tl.store(p_out, (b_o / total[:, None]).to(out_ptr.dtype.element_ty), mask=m_r[:, None] & (o_d < D)[None, :])
    if lse_ptr is not None:
        tl.store(lse_ptr + start + o_r, (b_max + tl.log2(total)) * LN2, mask=m_r)


@triton.jit
def write_unused(
    out_ptr, lse_ptr, cu_ptr, batch, length, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr
):
    """Writes the rows past the last border, which see nothing: 0, and -inf as their log-sum-exp.

    There are more programs than tiles of such rows, so each program has one of them at most. It is the last programs
    that do, because most of them have no other work.
    """
    end = clamp(tl.load(cu_ptr + batch), 0, length)
    rows = (length - end) * G
    i_r = tl.num_programs(0) - 1 - tl.program_id(0)
    if i_r < tl.cdiv(rows, BM):
        b_none = tl.zeros((BM,), tl.float32)
        write_rows(
            out_ptr, lse_ptr, end.to(tl.int64), i_r * BM, rows, tl.zeros((BM, DP), tl.float32),
            b_none + float("-inf"), b_none, G, D, DP, BM,
        )  # fmt: skip


# Whether these are divisible by 16 makes no difference, so that a view of them needs no kernel of its own.
INDICES = ["lse_ptr", "cu_ptr", "prefix_ptr", "append_ptr", "slots_ptr", "ticket_ptr"]
COUNTS = ["batch", "length", "cache_rows", "capacity", "tiles", "extra", "places", "most", "least"]


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=INDICES)
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    kc_ptr,
    vc_ptr,
    out_ptr,
    lse_ptr,
    cu_ptr,
    prefix_ptr,
    append_ptr,
    slots_ptr,
    partial_ptr,
    ticket_ptr,
    s_qb,
    s_qt,
    s_qh,
    s_kb,
    s_kt,
    s_kh,
    s_vb,
    s_vt,
    s_vh,
    s_kcb,
    s_kch,
    s_kcs,
    s_vcb,
    s_vch,
    s_vcs,
    batch,
    length,
    cache_rows,
    capacity,
    tiles,
    extra,
    places,
    most,
    least,
    scale,
    G: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
    WAIT: tl.constexpr,
    CHUNK: tl.constexpr,
):
    i_p = tl.program_id(0)
    i_h = tl.program_id(1)
    if cu_ptr is not None:
        write_unused(out_ptr, lse_ptr, cu_ptr, batch, length, G, D, DP, BM)
    doublings = 0
    if SPLIT:
        doublings, most = plan_splits(
            cu_ptr, prefix_ptr, batch, length, capacity, tiles, extra, most, least, G, BM, BN, CHUNK
        )
    i_b, number, place = work_at(
        i_p, cu_ptr, prefix_ptr, batch, length, capacity, doublings, most, least, G, BM, BN, CHUNK
    )
    begin, n, prefix = sequence_at(i_b, cu_ptr, prefix_ptr, batch, length, capacity)
    splits = 1
    if SPLIT:
        splits = tl.maximum(splits_of(n, prefix, doublings, most, least, BN), 1)
    i_s = number % splits
    i_t = number // splits
    rows = n * G
    if (number < 0) | (i_t >= tl.cdiv(rows, BM)):  # nothing is left to do, or wrong borders made the sums overflow
        return
    row = i_t * BM
    b64 = i_b.to(tl.int64)
    h64 = i_h.to(tl.int64)
    t64 = begin.to(tl.int64)
    c64 = b64
    if slots_ptr is not None:
        c64 = clamp(tl.load(slots_ptr + i_b), 0, cache_rows - 1).to(tl.int64)
    p_k = k_ptr + b64 * s_kb + t64 * s_kt + h64 * s_kh
    p_v = v_ptr + b64 * s_vb + t64 * s_vt + h64 * s_vh
    p_kc = kc_ptr + c64 * s_kcb + h64 * s_kch
    p_vc = vc_ptr + c64 * s_vcb + h64 * s_vch

    if append_ptr is not None:
        append = clamp(tl.load(append_ptr + i_b), 0, tl.minimum(n, capacity - prefix))
        append_tokens(
            p_k, p_v, p_kc, p_vc, s_kt, s_vt, s_kcs, s_vcs, number, tl.cdiv(rows, BM) * splits, prefix, append,
            D, DP, WIDE,
        )  # fmt: skip

    chunks = chunks_of(n, prefix, BN)
    share = tl.cdiv(chunks, splits)
    active = tl.cdiv(chunks, share)
    if i_s < active:  # a split without keys takes no ticket
        o_m = tl.arange(0, BM)
        o_d = tl.arange(0, DP)
        token = row // G
        o_t = (row + o_m) // G - token
        o_h = (row + o_m) % G
        m_q = (row + o_m < rows)[:, None] & (o_d < D)[None, :]
        p_q = q_ptr + b64 * s_qb + (t64 + token) * s_qt + h64 * G * s_qh
        if WIDE:
            o_q = o_t.to(tl.int64) * s_qt + o_h.to(tl.int64) * s_qh
        else:
            o_q = o_t * s_qt + o_h * s_qh
        b_q = tl.load(p_q + o_q[:, None] + o_d[None, :], mask=m_q, other=0.0)  # [BM, DP]
        b_o, b_max, b_sum = attend(
            b_q, p_k, p_v, p_kc, p_vc, s_kt, s_vt, s_kcs, s_vcs, i_s * share, tl.minimum((i_s + 1) * share, chunks),
            prefix, n, scale, D, DP, BM, BN, WIDE,
        )  # fmt: skip
        if cu_ptr is None:
            t64 += b64 * length
        if active == 1:
            write_rows(out_ptr, lse_ptr, t64, row, rows, b_o, b_max, b_sum, G, D, DP, BM)
        elif SPLIT:
            i_tile = i_h * places + place + number - i_s  # the place of the tile's first split
            p_o = partial_ptr + i_tile.to(tl.int64) * (BM * DP)
            p_max = partial_ptr + tl.num_programs(1).to(tl.int64) * places * (BM * DP) + i_tile.to(tl.int64) * (2 * BM)
            tl.store(p_o + i_s * (BM * DP) + o_m[:, None] * DP + o_d[None, :], b_o)
            tl.store(p_max + i_s * (2 * BM) + o_m, b_max)
            tl.store(p_max + i_s * (2 * BM) + BM + o_m, b_sum)
            publish(WAIT)
            if tl.atomic_add(ticket_ptr + i_tile, 1, sem="acq_rel", scope="gpu") == active - 1:
                b_all, b_top, b_total = merge_splits(p_o, p_max, active, BM, DP)
                write_rows(out_ptr, lse_ptr, t64, row, rows, b_all, b_top, b_total, G, D, DP, BM)
                tl.store(ticket_ptr + i_tile, 0)


def suffix_attention(
    *operands: Any, splits: int | None = None, config: configs.AttentionConfig | None = None
) -> Tensor:
    """The operator ``suffix_attention``; `splits` and `config` are chosen from the shapes unless they are given."""
    check_suffix_attention(*operands, floats=FLOATS)
    q: Tensor = operands[0]
    out = q.new_empty(q.shape)
    launch(operands, out, None, splits, config)
    return out


def suffix_attention_into(
    *operands: Any, splits: int | None = None, config: configs.AttentionConfig | None = None
) -> None:
    """The operator ``suffix_attention_into``."""
    check_suffix_attention_into(*operands, floats=FLOATS)
    *before, out, lse = operands
    launch(before, out, lse, splits, config)


def warmup(*operands: Any) -> None:
    """Compiles every kernel that the operator ``suffix_attention_into`` may choose for operands like these."""
    for config in configs.tiles_of(operands[0]):
        for splits in (1, 2):
            suffix_attention_into(*operands, splits=splits, config=config)


def launch(
    operands: Sequence[Any],
    out: Tensor,
    lse: Tensor | None,
    splits: int | None,
    config: configs.AttentionConfig | None,
) -> None:
    """Launches the kernel on checked operands of ``suffix_attention``."""
    q, k, v, k_cache, v_cache, cu_seqlens, prefix_lens, append_lens, slots, scale, partials, tickets = operands
    if out.numel() == 0:
        return
    batch = prefix_lens.size(0)
    if batch == 0:  # all rows belong to nobody
        out.zero_()
        if lse is not None:
            lse.fill_(-math.inf)
        return
    plan = configs.launch_of(q, k_cache, batch, splits, config)
    shared: tuple[Tensor | None, Tensor | None] = None, None
    if plan.extra:
        partials, tickets = shared_memory(partials, tickets, plan.partials, plan.tickets, q.device)
        shared = partials.view(torch.float32), tickets
    strides = [s for x in (q, k, v) for s in (x.stride(0) if x.dim() == 4 else 0, x.stride(-3), x.stride(-2))]
    strides += [s for x in (k_cache, v_cache) for s in x.stride()[:3]]
    tile = plan.config
    attention_kernel[(plan.tiles + plan.extra, k_cache.size(1))](
        q,
        k,
        v,
        k_cache,
        v_cache,
        out,
        lse,
        cu_seqlens,
        prefix_lens,
        append_lens,
        slots,
        *shared,
        *strides,
        batch,
        q.size(-3),
        k_cache.size(0),
        k_cache.size(2),
        plan.tiles,
        plan.extra,
        plan.places,
        plan.splits,
        plan.least,
        scale * LOG2E,
        G=plan.group,
        D=q.size(-1),
        DP=plan.padded,
        BM=tile.rows,
        BN=tile.keys,
        SPLIT=plan.extra > 0,
        WIDE=is_wide(q, k, v, k_cache, v_cache),
        WAIT=tile.wait,
        CHUNK=configs.BORDERS,
        **tile.options,
    )


def is_wide(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether offsets within a tile may need 64 bits. The start of a tile always has 64."""
    within = (q.stride(-3), q.stride(-2), k.stride(-3), v.stride(-3), k_cache.stride(2), v_cache.stride(2))
    return (configs.MOST_ROWS + q.size(-2) // k.size(-2)) * max(within) >= 1 << 31

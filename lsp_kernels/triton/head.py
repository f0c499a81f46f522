"""The LM head fused with the statistics and with the commit, in one launch each: logits exist in registers only.

A program has one tile of scored rows and one range of the vocabulary. It multiplies them tile by tile, keeps the two
largest logits of every row, publishes these and takes a ticket of its rows. The program that takes the last ticket
merges the ranges and stores the results; for the commit it then takes a ticket of each sequence that has rows in the
tile, and where that is the sequence's last one, it applies the rule. Nobody waits for anybody. The grid depends on
shapes and the rule alone; which rows are scored is found on the device, and the vocabulary is divided accordingly.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_linear_commit_prefix, check_linear_token_stats
from .._shapes import batch_of
from .configs import head as configs
from .configs.commit import planes
from .launch import check_flags, new_lengths, rows_of, rule_of, rule_options
from .noise import noise_at
from .odds import entropy_of, log_odds_of
from .rows import publish_split
from .rule import select
from .ticket import publish, shared_memory
from .tiles import (
    UNIT,
    best_of_range,
    count_scored,
    hidden_at,
    merge_ranges,
    scored_at,
    sequences_of,
    sequences_of_scored,
    work_of,
)


@triton.jit(
    do_not_specialize=[
        "bias_ptr", "s_batch", "s_row", "s_w", "flags_ptr", "noise_ptr", "token_ptr", "top1_ptr", "top2_ptr",
        "log_odds_ptr", "entropy_ptr", "clean_ptr", "value_ptr", "ticket_ptr", "rows", "length",
        "vocabulary", "lowest", "others", "id_offset",
    ]
)  # fmt: skip
def head_stats_kernel(
    h_ptr,
    w_ptr,
    bias_ptr,
    s_batch: tl.int64,
    s_row: tl.int64,
    s_w: tl.int64,
    flags_ptr,
    noise_ptr,
    token_ptr,
    top1_ptr,
    top2_ptr,
    log_odds_ptr,
    entropy_ptr,
    clean_ptr,
    value_ptr,
    ticket_ptr,
    rows,
    length,
    vocabulary,
    lowest,
    others,
    id_offset,
    D: tl.constexpr,
    HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    GROUPED: tl.constexpr,
    FAST: tl.constexpr,
    BM: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    MERGED: tl.constexpr,
    PIN: tl.constexpr,
    WAIT: tl.constexpr,
):
    """All rows are scored. `others`: as in `odds`. GROUPED: `id_offset` is a multiple of 4. Tickets: one per tile."""
    NOISE: tl.constexpr = noise_ptr is not None
    ENTROPY: tl.constexpr = entropy_ptr is not None
    programs = tl.num_programs(0)
    i_t, i_r, share, used = work_of(tl.program_id(0), programs, (rows - 1) // BM + 1, vocabulary, BV)
    q0 = i_t * BM
    if (q0 < rows) & (i_r < used):
        row = q0 + tl.arange(0, BM)
        m_m = row < rows
        draw = None
        if NOISE:
            seed, place, temperature = noise_at(noise_ptr, tl.where(m_m, row, q0)[:, None])
            draw = seed, place, temperature, id_offset
        begin = i_r * share
        found = best_of_range(
            hidden_at(h_ptr, s_batch, s_row, row // length, row, length, None, ALIGNED), m_m, w_ptr, s_w, bias_ptr,
            flags_ptr, draw, begin, tl.minimum(share, vocabulary - begin), D, HIDDEN, ALIGNED, GROUPED, FAST, True,
            ENTROPY, BM, BV, BK, PIN,
        )  # fmt: skip
        plane = programs.to(tl.int64) * BM
        p_value = value_ptr + q0.to(tl.int64) * used
        publish_split(found, tl.arange(0, BM) * used + i_r, p_value, plane, NOISE, True, ENTROPY)
        publish(WAIT)
        if tl.atomic_add(ticket_ptr + i_t, 1, sem="acq_rel", scope="gpu") == used - 1:
            top, token, second, clean, high, total, spread = merge_ranges(
                p_value, plane, used, NOISE, True, ENTROPY, BM, MERGED
            )
            tl.store(ticket_ptr + i_t, 0)
            tl.store(token_ptr + row, tl.where(top == float("-inf"), lowest, token).to(tl.int64) + id_offset, mask=m_m)
            tl.store(top1_ptr + row, top + 0.0, mask=m_m)
            tl.store(top2_ptr + row, second + 0.0, mask=m_m)
            tl.store(log_odds_ptr + row, log_odds_of(clean, high, second, total, others), mask=m_m)
            if ENTROPY:
                tl.store(entropy_ptr + row, entropy_of(clean, high, second, total, spread, others), mask=m_m)
            if NOISE:
                tl.store(clean_ptr + row, clean + 0.0, mask=m_m)


@triton.jit(
    do_not_specialize=[
        "bias_ptr", "s_batch", "s_row", "s_w", "cu_ptr", "active_ptr", "starts_ptr", "flags_ptr", "noise_ptr",
        "length_ptr", "finished_ptr", "token_ptr", "margin_ptr", "top1_ptr", "log_odds_ptr", "value_ptr",
        "ticket_ptr", "batch", "rows", "length", "vocabulary", "lowest", "others", "alpha", "beta", "min_length",
        "window",
    ]
)  # fmt: skip
def head_commit_kernel(
    h_ptr,
    w_ptr,
    bias_ptr,
    s_batch: tl.int64,
    s_row: tl.int64,
    s_w: tl.int64,
    cu_ptr,
    active_ptr,
    starts_ptr,
    flags_ptr,
    noise_ptr,
    length_ptr,
    finished_ptr,
    token_ptr,
    margin_ptr,
    top1_ptr,
    log_odds_ptr,
    value_ptr,
    ticket_ptr,
    batch,
    rows,
    length,
    vocabulary,
    lowest,
    others,
    alpha,
    beta,
    min_length,
    window,
    floor,
    D: tl.constexpr,
    HAS_FLOOR: tl.constexpr,
    SNAP: tl.constexpr,
    KEEP: tl.constexpr,
    HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    FAST: tl.constexpr,
    BM: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    MERGED: tl.constexpr,
    PIN: tl.constexpr,
    CHUNK: tl.constexpr,
    WAIT: tl.constexpr,
):
    """Tickets: one per sequence, then one per tile. `others`: as in `odds`."""
    NOISE: tl.constexpr = noise_ptr is not None
    REST: tl.constexpr = log_odds_ptr is not None
    programs = tl.num_programs(0)
    scored = count_scored(
        cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR, CHUNK
    )
    clear_unscored(
        token_ptr, margin_ptr, top1_ptr, log_odds_ptr, length_ptr, finished_ptr, scored, cu_ptr, active_ptr,
        starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR, CHUNK,
    )  # fmt: skip
    i_t, i_r, share, used = work_of(tl.program_id(0), programs, tl.maximum(scored - 1, 0) // BM + 1, vocabulary, BV)
    q0 = i_t * BM
    if (q0 < scored) & (i_r < used):
        q = q0 + tl.arange(0, BM)
        m_m = q < scored
        b, before = sequences_of_scored(
            q, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR, CHUNK
        )
        first, _, _ = scored_at(
            b, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR
        )
        row = tl.where(m_m, first + (q - before), 0)
        draw = None
        if NOISE:
            seed, place, temperature = noise_at(noise_ptr, row[:, None])
            draw = seed, place, temperature, tl.full((), 0, tl.int64)
        begin = i_r * share
        found = best_of_range(
            hidden_at(h_ptr, s_batch, s_row, b, row, length, cu_ptr, ALIGNED), m_m, w_ptr, s_w, bias_ptr, flags_ptr,
            draw, begin, tl.minimum(share, vocabulary - begin), D, HIDDEN, ALIGNED, True, FAST, REST, False, BM, BV, BK,
            PIN,
        )  # fmt: skip
        plane = programs.to(tl.int64) * BM
        p_value = value_ptr + q0.to(tl.int64) * used
        publish_split(found, tl.arange(0, BM) * used + i_r, p_value, plane, NOISE, REST, False)
        publish(WAIT)
        if tl.atomic_add(ticket_ptr + batch + i_t, 1, sem="acq_rel", scope="gpu") == used - 1:
            v1, i1, v2, clean, high, total, _spread = merge_ranges(p_value, plane, used, NOISE, REST, False, BM, MERGED)
            tl.store(ticket_ptr + batch + i_t, 0)
            tl.store(token_ptr + row, tl.where(v1 == float("-inf"), lowest, i1).to(tl.int64), mask=m_m)
            tl.store(margin_ptr + row, tl.where(v1 == v2, 0.0, v1 - v2), mask=m_m)
            tl.store(top1_ptr + row, v1 + 0.0, mask=m_m)
            if REST:
                tl.store(log_odds_ptr + row, log_odds_of(clean, high, v2, total, others), mask=m_m)
            select_complete(
                b, m_m, ticket_ptr, token_ptr, margin_ptr, length_ptr, finished_ptr, flags_ptr, cu_ptr, active_ptr,
                starts_ptr, batch, length, rows, vocabulary, alpha, beta, min_length, window, floor, HAS_FLOOR, SNAP,
                KEEP, CHUNK, WAIT,
            )  # fmt: skip


@triton.jit
def select_complete(
    b, m_m, ticket_ptr, token_ptr, margin_ptr, length_ptr, finished_ptr, flags_ptr, cu_ptr, active_ptr, starts_ptr,
    batch, length, rows, vocabulary, alpha, beta, min_length, window, floor, HAS_FLOOR: tl.constexpr,
    SNAP: tl.constexpr, KEEP: tl.constexpr, CHUNK: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Takes the tickets of the sequences `b` of a tile's rows, and applies the rule to those that are complete."""
    for i_b in range(tl.min(b, 0), tl.max(tl.where(m_m, b, 0), 0) + 1):
        here = tl.sum((m_m & (b == i_b)).to(tl.int32), 0)
        if here > 0:  # there may be sequences without scored rows in between
            first, n, scored = scored_at(
                i_b, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR
            )
            publish(WAIT)
            if tl.atomic_add(ticket_ptr + i_b, here, sem="acq_rel", scope="gpu") == scored - here:
                chosen, finished = select(
                    margin_ptr + first, token_ptr + first, 1, 1, n, scored, flags_ptr, vocabulary, alpha, beta,
                    min_length, window, floor, HAS_FLOOR, SNAP, KEEP, CHUNK,
                )  # fmt: skip
                tl.store(length_ptr + i_b, chosen)
                tl.store(finished_ptr + i_b, finished)
                tl.store(ticket_ptr + i_b, 0)


@triton.jit
def clear_unscored(
    token_ptr, margin_ptr, top1_ptr, log_odds_ptr, length_ptr, finished_ptr, scored, cu_ptr, active_ptr, starts_ptr,
    batch, length, rows, alpha, beta, min_length, HAS_FLOOR: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """This program's share of what nobody scores: rows get token -1 and else -inf, sequences without rows length 0."""
    o = tl.arange(0, CHUNK)
    stride = tl.num_programs(0) * CHUNK
    for r0 in range(tl.program_id(0) * CHUNK, rows, stride):
        row = r0 + o
        b = sequences_of(row, cu_ptr, length, batch, CHUNK)
        first, _, count = scored_at(
            b, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR
        )
        m = (row < rows) & ((row < first) | (row - first >= count) | (scored == 0))
        tl.store(token_ptr + row, tl.full((CHUNK,), -1, tl.int64), mask=m)
        nothing = tl.full((CHUNK,), float("-inf"), tl.float32)
        tl.store(margin_ptr + row, nothing, mask=m)
        tl.store(top1_ptr + row, nothing, mask=m)
        if log_odds_ptr is not None:
            tl.store(log_odds_ptr + row, nothing, mask=m)
    for b0 in range(tl.program_id(0) * CHUNK, batch, stride):
        _, _, count = scored_at(
            b0 + o, cu_ptr, active_ptr, starts_ptr, batch, length, rows, alpha, beta, min_length, HAS_FLOOR
        )
        m = (b0 + o < batch) & ((count == 0) | (scored == 0))
        tl.store(length_ptr + b0 + o, tl.zeros((CHUNK,), tl.int32), mask=m)
        tl.store(finished_ptr + b0 + o, tl.zeros((CHUNK,), tl.int8), mask=m)


def linear_token_stats(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    flags: Tensor | None,
    suppressed: Tensor | None,
    lowest: int,
    id_offset: int,
    noise: Tensor | None,
    entropy: bool,
    partials: Tensor | None,
    tickets: Tensor | None,
    programs: int | None = None,
    config: configs.HeadConfig | None = None,
) -> tuple[Tensor, ...]:
    """The operator ``linear_token_stats``; `programs` and `config` are chosen from the shapes unless they are given."""
    check_linear_token_stats(hidden, weight, bias, flags, suppressed, lowest, id_offset, noise, entropy)
    check_flags(flags, suppressed is not None)
    rows, length, s_batch = rows_of(hidden, hidden.dim() - 1)
    tokens = hidden.new_empty(hidden.shape[:-1], dtype=torch.int64)
    top1, top2, log_odds = (hidden.new_empty(hidden.shape[:-1], dtype=torch.float32) for _ in range(3))
    asked = (hidden.shape[:-1] if there else (0,) for there in (entropy, noise is not None))
    h, clean = (hidden.new_empty(shape, dtype=torch.float32) for shape in asked)
    results = tokens, top1, top2, log_odds, h, clean
    if rows == 0:
        return results
    plan = configs.stats_launch(hidden, weight, noise is not None, programs, config)
    room = plan.room(planes(noise is not None, True, entropy))
    partials, tickets = shared_memory(partials, tickets, *room, hidden.device)
    operands, options = _products(hidden, weight, bias, s_batch, plan.config)
    head_stats_kernel[(plan.programs,)](
        *operands,
        flags,
        noise,
        tokens,
        top1,
        top2,
        log_odds,
        h if entropy else None,
        None if noise is None else clean,
        partials.view(torch.float32),
        tickets,
        rows,
        length,
        weight.size(0),
        lowest,
        weight.size(0) - 1 - (0 if suppressed is None else suppressed.numel()),
        id_offset,
        HIDDEN=suppressed is not None,
        GROUPED=noise is None or id_offset % 4 == 0,
        **options,
    )
    return results


def linear_commit_prefix(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    suppressed: Tensor | None,
    lowest: int,
    *rule_and_workspace: Any,
    programs: int | None = None,
    config: configs.HeadConfig | None = None,
) -> tuple[Tensor, ...]:
    """The operator ``linear_commit_prefix``; `programs` and `config` are chosen from the shapes and the rule unless
    they are given."""
    *rule, noise, log_odds, partials, tickets = rule_and_workspace
    sequences = (cu_rows, n_active, starts)
    check_linear_commit_prefix(hidden, weight, bias, *sequences, flags, suppressed, lowest, *rule, noise)
    check_flags(flags, suppressed is not None or rule[5])
    rows, length, s_batch = rows_of(hidden, hidden.dim() - 1)
    batch = batch_of(hidden, hidden.dim() - 1, cu_rows)
    tokens = hidden.new_empty(hidden.shape[:-1], dtype=torch.int64)
    margins = hidden.new_empty(hidden.shape[:-1], dtype=torch.float32)
    top1, odds = torch.empty_like(margins), torch.empty_like(margins) if log_odds else margins.new_empty(0)
    lengths, finished = new_lengths(hidden, batch)
    results = lengths, finished.view(torch.bool), tokens, margins, top1, odds
    if batch == 0:  # there may be rows, but they belong to no sequence
        tokens.fill_(-1)
        for column in (margins, top1, odds):
            column.fill_(-torch.inf)
        return results
    shape = (hidden, weight, cu_rows, n_active, rule_of(*rule), noise is not None)
    plan = configs.commit_launch(*shape, programs, config)
    room = plan.room(planes(noise is not None, log_odds, False), batch)
    partials, tickets = shared_memory(partials, tickets, *room, hidden.device)
    operands, options = _products(hidden, weight, bias, s_batch, plan.config)
    numbers, flags_of_rule = rule_options(*rule)
    head_commit_kernel[(plan.programs,)](
        *operands,
        *sequences,
        flags,
        noise,
        lengths,
        finished,
        tokens,
        margins,
        top1,
        odds if log_odds else None,
        partials.view(torch.float32),
        tickets,
        batch,
        rows,
        length,
        weight.size(0),
        lowest,
        weight.size(0) - 1 - (0 if suppressed is None else suppressed.numel()),
        *numbers,
        **flags_of_rule,
        HIDDEN=suppressed is not None,
        CHUNK=configs.CHUNK,
        **options,
    )
    return results


def _products(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, s_batch: int, tile: configs.HeadConfig
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of both kernels that say what is multiplied, and the constants of the tile."""
    aligned = is_aligned(hidden, weight)
    unit = UNIT.value if aligned else 1
    strides = (s_batch // unit, hidden.stride(-2) // unit, weight.stride(0) // unit)
    constants = {
        "D": hidden.size(-1), "ALIGNED": aligned, "BM": tile.rows, "BV": tile.ids, "BK": tile.depth,
        "MERGED": tile.merged, "PIN": tile.pin, "FAST": tile.fast, "WAIT": tile.wait,
    }  # fmt: skip
    return (hidden, weight, bias, *strides), {**constants, **tile.options}


def is_aligned(hidden: Tensor, weight: Tensor) -> bool:
    """Whether rows begin at multiples of `UNIT` elements. Of the first row Triton itself finds out."""
    return not any(stride % UNIT.value for x in (hidden, weight) for stride in x.stride()[:-1])

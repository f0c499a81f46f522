"""The commit operations in one launch each: many programs score rows, and the last one of a sequence selects.

A program has one row and one split of the vocabulary. It publishes its top-2 and takes a ticket of its row. The program
that takes a row's last ticket merges the splits, stores token and margin, and takes a ticket of its sequence; the
program that takes a sequence's last ticket applies the rule. Nobody waits for anybody. A row that is not split has no
ticket of its own. The grid depends on shapes and the rule alone; which rows are scored is found on the device.
`token_stats`, of the same family, is in `stats`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_commit_prefix, check_select_prefix
from .._shapes import batch_of
from .configs.commit import COMMIT, SELECT, commit_slots, planes
from .configs.device import device_of
from .launch import Launch, check_flags, new_lengths, rows_of, rule_of, rule_options
from .noise import noise_at
from .odds import log_odds_of
from .rows import merge_splits, publish_split, sequence_at, sequence_of
from .rule import scored_rows, select
from .stats import stats_kernel, token_stats
from .ticket import publish
from .top2 import scan_row

__all__ = ["commit_kernel", "commit_prefix", "select_kernel", "select_prefix", "stats_kernel", "token_stats"]


@triton.jit(
    do_not_specialize=[
        "x_ptr", "s_batch", "s_row", "cu_ptr", "active_ptr", "starts_ptr", "flags_ptr", "noise_ptr", "length_ptr",
        "finished_ptr", "token_ptr", "margin_ptr", "top1_ptr", "log_odds_ptr", "value_ptr", "ticket_ptr",
        "batch", "rows", "length", "per_sequence", "slots", "vocabulary", "tiles", "lowest", "others", "alpha", "beta",
        "min_length", "window",
    ]
)  # fmt: skip
def commit_kernel(
    x_ptr,
    s_batch: tl.int64,
    s_row: tl.int64,
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
    per_sequence,
    slots,
    vocabulary,
    tiles,
    lowest,
    others,
    alpha,
    beta,
    min_length,
    window,
    floor,
    HAS_FLOOR: tl.constexpr,
    SNAP: tl.constexpr,
    KEEP: tl.constexpr,
    HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    FAST: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WAIT: tl.constexpr,
):
    """A slot is a row that may be scored: a row of packed sequences, or one of the first of each sequence of a batch.

    Tickets: one per sequence, then one per slot. `others`: as in `odds`.
    """
    NOISE: tl.constexpr = noise_ptr is not None
    REST: tl.constexpr = log_odds_ptr is not None
    i_p = tl.program_id(0)
    if i_p >= slots * SPLITS:  # one more program per sequence, for what belongs to no slot
        b = i_p - slots * SPLITS
        first, given, n = sequence_at(b, cu_ptr, active_ptr, starts_ptr, length, rows)
        scored = tl.minimum(given, scored_rows(n, alpha, beta, min_length, HAS_FLOOR))
        decreasing = False
        if cu_ptr is not None:
            decreasing = sequence_of(tl.full((), -1, tl.int32), cu_ptr, length, batch, ROWS) == batch
        else:
            clear_unscored(token_ptr, margin_ptr, top1_ptr, log_odds_ptr, b * length, length, first, scored, ROWS)
        if decreasing | (scored == 0):
            tl.store(length_ptr + b, 0)
            tl.store(finished_ptr + b, 0)
    else:
        slot = i_p // SPLITS
        split = i_p % SPLITS
        if cu_ptr is None:
            b = slot // per_sequence
            first, given, n = sequence_at(b, cu_ptr, active_ptr, starts_ptr, length, rows)
            j = slot % per_sequence
        else:
            b = sequence_of(slot, cu_ptr, length, batch, ROWS)
            known = tl.minimum(b, batch - 1)  # rows after the last border belong to no sequence
            first, given, n = sequence_at(known, cu_ptr, active_ptr, starts_ptr, length, rows)
            j = slot - first
        wanted = scored_rows(n, alpha, beta, min_length, HAS_FLOOR)
        n = tl.where(given < wanted, given, n)
        scored = tl.minimum(given, wanted)
        row = first + j
        if (b < batch) & (j >= 0) & (j < scored):
            o_row = row.to(tl.int64) * s_row
            if cu_ptr is None:
                o_row += b.to(tl.int64) * (s_batch - length.to(tl.int64) * s_row)
            draw = None
            if NOISE:
                seed, place, temperature = noise_at(noise_ptr, row)
                draw = seed, place, temperature, tl.full((), 0, tl.int64)
            p_row = x_ptr + o_row
            found = scan_row(
                p_row, split, tiles, vocabulary, flags_ptr, draw, HIDDEN, ALIGNED, True, FAST, REST, False, BLOCK
            )
            last = True
            if SPLITS > 1:
                plane = slots.to(tl.int64) * SPLITS
                publish_split(found, i_p, value_ptr, plane, NOISE, REST, False)
                publish(WAIT)
                last = tl.atomic_add(ticket_ptr + batch + slot, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
            if last:
                if SPLITS > 1:
                    found = merge_splits(slot, value_ptr, plane, NOISE, REST, False, SPLITS)
                    tl.store(ticket_ptr + batch + slot, 0)
                v1, i1, v2, clean, high, total, _spread = found
                tl.store(token_ptr + row, tl.where(v1 == float("-inf"), lowest, i1).to(tl.int64))
                tl.store(margin_ptr + row, tl.where(v1 == v2, 0.0, v1 - v2))
                tl.store(top1_ptr + row, v1 + 0.0)
                if REST:
                    tl.store(log_odds_ptr + row, log_odds_of(clean, high, v2, total, others))
                publish(WAIT)
                if tl.atomic_add(ticket_ptr + b, 1, sem="acq_rel", scope="gpu") == scored - 1:
                    chosen, finished = select(
                        margin_ptr + first,
                        token_ptr + first,
                        1,
                        1,
                        n,
                        scored,
                        flags_ptr,
                        vocabulary,
                        alpha,
                        beta,
                        min_length,
                        window,
                        floor,
                        HAS_FLOOR,
                        SNAP,
                        KEEP,
                        ROWS,
                    )
                    tl.store(length_ptr + b, chosen)
                    tl.store(finished_ptr + b, finished)
                    tl.store(ticket_ptr + b, 0)
        elif (split == 0) & (cu_ptr is not None):
            tl.store(token_ptr + slot, -1)
            tl.store(margin_ptr + slot, float("-inf"))
            tl.store(top1_ptr + slot, float("-inf"))
            if REST:
                tl.store(log_odds_ptr + slot, float("-inf"))


@triton.jit
def clear_unscored(token_ptr, margin_ptr, top1_ptr, log_odds_ptr, begin, length, first, scored, ROWS: tl.constexpr):
    """Token -1 and all else -inf for every row of a sequence of a batch that is not scored."""
    for j0 in range(0, length, ROWS):
        o_r = begin + j0 + tl.arange(0, ROWS)
        m_r = (o_r < begin + length) & ((o_r < first) | (o_r >= first + scored))
        tl.store(token_ptr + o_r, tl.full((ROWS,), -1, tl.int64), mask=m_r)
        nothing = tl.full((ROWS,), float("-inf"), tl.float32)
        tl.store(margin_ptr + o_r, nothing, mask=m_r)
        tl.store(top1_ptr + o_r, nothing, mask=m_r)
        if log_odds_ptr is not None:
            tl.store(log_odds_ptr + o_r, nothing, mask=m_r)


@triton.jit(
    do_not_specialize=[
        "margin_ptr", "token_ptr", "s_margin_batch", "s_margin", "s_token_batch", "s_token", "cu_ptr", "active_ptr",
        "starts_ptr", "flags_ptr", "length_ptr", "finished_ptr", "rows", "length", "vocabulary", "alpha", "beta",
        "min_length", "window",
    ]
)  # fmt: skip
def select_kernel(
    margin_ptr,
    token_ptr,
    s_margin_batch: tl.int64,
    s_margin: tl.int64,
    s_token_batch: tl.int64,
    s_token: tl.int64,
    cu_ptr,
    active_ptr,
    starts_ptr,
    flags_ptr,
    length_ptr,
    finished_ptr,
    rows,
    length,
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
    b = tl.program_id(0)
    first, given, n = sequence_at(b, cu_ptr, active_ptr, starts_ptr, length, rows)
    wanted = scored_rows(n, alpha, beta, min_length, HAS_FLOOR)
    n = tl.where(given < wanted, given, n)
    p_margin = margin_ptr + first.to(tl.int64) * s_margin
    p_token = token_ptr + first.to(tl.int64) * s_token
    if cu_ptr is None:
        p_margin += b.to(tl.int64) * (s_margin_batch - length.to(tl.int64) * s_margin)
        p_token += b.to(tl.int64) * (s_token_batch - length.to(tl.int64) * s_token)
    chosen, finished = select(
        p_margin,
        p_token,
        s_margin,
        s_token,
        n,
        tl.minimum(given, wanted),
        flags_ptr,
        vocabulary,
        alpha,
        beta,
        min_length,
        window,
        floor,
        HAS_FLOOR,
        SNAP,
        KEEP,
        ROWS,
    )
    tl.store(length_ptr + b, chosen)
    tl.store(finished_ptr + b, finished)


def select_prefix(
    margins: Tensor,
    tokens: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    *rule: Any,
) -> tuple[Tensor, Tensor]:
    """The operator ``select_prefix``."""
    check_select_prefix(margins, tokens, cu_rows, n_active, starts, flags, *rule)
    rows, length, s_margin = rows_of(margins, margins.dim())
    batch = batch_of(margins, margins.dim(), cu_rows)
    lengths, finished = new_lengths(margins, batch)
    if batch:
        config = SELECT[device_of(margins.device).architecture]
        numbers, options = rule_options(*rule)
        select_kernel[(batch,)](
            margins,
            tokens,
            s_margin,
            margins.stride(-1),
            tokens.stride(0) if tokens.dim() == 2 else 0,
            tokens.stride(-1),
            cu_rows,
            n_active,
            starts,
            flags,
            lengths,
            finished,
            rows,
            length,
            0 if flags is None else flags.numel(),
            *numbers,
            **options,
            ROWS=config.rows,
            **config.options(),
        )
    return lengths, finished.view(torch.bool)


def commit_prefix(
    logits: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    suppressed: Tensor | None,
    lowest: int,
    *rule_and_workspace: Any,
    splits: int | None = None,
) -> tuple[Tensor, ...]:
    """The operator ``commit_prefix``; `splits` is chosen from the shape and the rule unless it is given."""
    *rule, noise, log_odds, partials, tickets = rule_and_workspace
    check_commit_prefix(logits, cu_rows, n_active, starts, flags, suppressed, lowest, *rule, noise)
    check_flags(flags, suppressed is not None or rule[5])
    rows, length, s_batch = rows_of(logits, logits.dim() - 1)
    batch = batch_of(logits, logits.dim() - 1, cu_rows)
    tokens = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    margins = logits.new_empty(logits.shape[:-1], dtype=torch.float32)
    top1, odds = torch.empty_like(margins), torch.empty_like(margins) if log_odds else margins.new_empty(0)
    lengths, finished = new_lengths(logits, batch)
    if batch == 0:  # there may be rows, but they belong to no sequence
        for column in (margins, top1, odds):
            column.fill_(-torch.inf)
        return lengths, finished.view(torch.bool), tokens.fill_(-1), margins, top1, odds
    slots = commit_slots(logits, cu_rows, n_active, rule_of(*rule))
    launch = Launch(COMMIT, logits, flags, slots.likely, splits, noise is not None or log_odds)
    needed = planes(noise is not None, log_odds, False)
    values, tickets = launch.workspace(partials, tickets, slots.count, needed, batch)
    numbers, options = rule_options(*rule)
    commit_kernel[(slots.count * launch.splits + batch,)](
        logits,
        s_batch,
        logits.stride(-2),
        cu_rows,
        n_active,
        starts,
        flags,
        noise,
        lengths,
        finished,
        tokens,
        margins,
        top1,
        odds if log_odds else None,
        values,
        tickets,
        batch,
        rows,
        length,
        slots.per_sequence,
        slots.count,
        logits.size(-1),
        launch.tiles,
        lowest,
        logits.size(-1) - 1 - (0 if suppressed is None else suppressed.numel()),
        *numbers,
        **options,
        HIDDEN=suppressed is not None,
        ROWS=launch.config.rows,
        **launch.options,
    )
    return lengths, finished.view(torch.bool), tokens, margins, top1, odds

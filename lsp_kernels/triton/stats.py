"""token_stats in one launch: every (row, split of the vocabulary) is one program, and the last of a row merges.

The launcher is used through `commit`, which has all three operations of the family.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_token_stats
from .configs.commit import STATS, STATS_PLANES
from .launch import Launch, check_flags, rows_of
from .rows import merge_splits
from .ticket import publish
from .top2 import scan_row

LN2 = tl.constexpr(0.6931471805599453)
HIGHEST_LOG_ODDS = tl.constexpr(80.0)


@triton.jit
def log_odds_of(top, second, total, others):
    """From the two largest logits and the weight of all but the best; `others`: how many ids these are."""
    above = tl.where(top == second, 0.0, top - second) - tl.log2(total) * LN2
    # Where all others are -inf, the weight relative to them says nothing.
    alone = tl.where(top == second, 0.0 - tl.log2(others.to(tl.float32)) * LN2, HIGHEST_LOG_ODDS)
    log_odds = tl.minimum(tl.where(second == float("-inf"), alone, above), HIGHEST_LOG_ODDS)
    log_odds = tl.where(others == 0, float("inf"), log_odds)
    return tl.where(second == second, log_odds, float("nan"))


@triton.jit(
    do_not_specialize=[
        "x_ptr", "s_batch", "s_row", "flags_ptr", "token_ptr", "top1_ptr", "top2_ptr", "log_odds_ptr", "value_ptr",
        "id_ptr", "ticket_ptr", "rows", "length", "vocabulary", "tiles", "lowest", "others",
    ]
)  # fmt: skip
def stats_kernel(
    x_ptr,
    s_batch: tl.int64,
    s_row: tl.int64,
    flags_ptr,
    token_ptr,
    top1_ptr,
    top2_ptr,
    log_odds_ptr,
    value_ptr,
    id_ptr,
    ticket_ptr,
    rows,
    length,
    vocabulary,
    tiles,
    lowest,
    others,
    HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAIT: tl.constexpr,
):
    """`others`: how many ids there are besides the best and the suppressed ones."""
    i_p = tl.program_id(0)
    row = i_p // SPLITS
    split = i_p % SPLITS
    i_b = row // length
    p_row = x_ptr + (i_b.to(tl.int64) * s_batch + (row % length).to(tl.int64) * s_row)
    top, token, second, total = scan_row(
        p_row, split, tiles, vocabulary, flags_ptr, HIDDEN, ALIGNED, True, BLOCK
    )  # fmt: skip
    last = True
    if SPLITS > 1:
        plane = rows.to(tl.int64) * SPLITS
        tl.store(value_ptr + i_p, top)
        tl.store(value_ptr + plane + i_p, second)
        tl.store(id_ptr + 2 * plane + i_p, token)
        tl.store(value_ptr + 3 * plane + i_p, total)
        publish(WAIT)
        last = tl.atomic_add(ticket_ptr + row, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
    if last:
        if SPLITS > 1:
            top, token, second, total = merge_splits(row, value_ptr, id_ptr, plane, True, SPLITS)
            tl.store(ticket_ptr + row, 0)
        tl.store(token_ptr + row, tl.where(top == float("-inf"), lowest, token).to(tl.int64))
        tl.store(top1_ptr + row, top + 0.0)
        tl.store(top2_ptr + row, second + 0.0)
        tl.store(log_odds_ptr + row, log_odds_of(top, second, total, others))


def token_stats(
    logits: Tensor,
    flags: Tensor | None,
    suppressed: Tensor | None,
    lowest: int,
    id_offset: int,
    noise: Tensor | None,
    entropy: bool,
    partials: Tensor | None,
    tickets: Tensor | None,
    splits: int | None = None,
) -> tuple[Tensor, ...]:
    """The operator ``token_stats``; `splits` is chosen from the shape unless it is given."""
    check_token_stats(logits, flags, suppressed, lowest, id_offset, noise, entropy)
    if noise is not None or entropy:
        raise NotImplementedError("noise and entropy")
    check_flags(flags, suppressed is not None)
    rows, length, s_batch = rows_of(logits, logits.dim() - 1)
    tokens = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    top1, top2, log_odds = (logits.new_empty(logits.shape[:-1], dtype=torch.float32) for _ in range(3))
    nothing = logits.new_empty(0, dtype=torch.float32), logits.new_empty(0, dtype=torch.float32)
    if rows == 0:
        return tokens, top1, top2, log_odds, *nothing
    launch = Launch(STATS, logits, flags, rows, splits)
    values, ids, tickets = launch.workspace(partials, tickets, rows, STATS_PLANES)
    stats_kernel[(rows * launch.splits,)](
        logits,
        s_batch,
        logits.stride(-2),
        flags,
        tokens,
        top1,
        top2,
        log_odds,
        values,
        ids,
        tickets,
        rows,
        length,
        logits.size(-1),
        launch.tiles,
        lowest,
        logits.size(-1) - 1 - (0 if suppressed is None else suppressed.numel()),
        HIDDEN=suppressed is not None,
        **launch.options,
    )
    return tokens + id_offset if id_offset else tokens, top1, top2, log_odds, *nothing

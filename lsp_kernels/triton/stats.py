"""token_stats in one launch: every (row, split of the vocabulary) is one program, and the last of a row merges.

The launcher is used through `commit`, which has all three operations of the family.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_token_stats
from .configs.commit import STATS
from .launch import Launch, check_flags, rows_of
from .rows import lowest_allowed, merge_rows
from .ticket import publish
from .top2 import scan_row

LN2 = tl.constexpr(0.6931471805599453)
HIGHEST_LOG_ODDS = tl.constexpr(80.0)


@triton.jit(do_not_specialize=["rows", "length", "tiles", "n_suppressed"])
def stats_kernel(
    x_ptr,
    s_batch,
    s_row,
    flags_ptr,
    suppressed_ptr,
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
    n_suppressed,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    WAIT: tl.constexpr,
):
    i_p = tl.program_id(0)
    row = i_p // SPLITS
    split = i_p % SPLITS
    plane = rows.to(tl.int64) * SPLITS
    i_b = row // length
    p_row = x_ptr + i_b.to(tl.int64) * s_batch + (row % length).to(tl.int64) * s_row
    begin = split * tiles * BLOCK
    end = tl.maximum(begin, tl.minimum(begin + tiles * BLOCK, vocabulary))
    HIDDEN: tl.constexpr = suppressed_ptr is not None
    v1, i1, v2, s = scan_row(p_row, begin, end, flags_ptr, HIDDEN, True, BLOCK)
    tl.store(value_ptr + i_p, v1)
    tl.store(value_ptr + plane + i_p, v2)
    tl.store(id_ptr + 2 * plane + i_p, i1)
    tl.store(value_ptr + 3 * plane + i_p, s)
    publish(WAIT)
    if tl.atomic_add(ticket_ptr + row, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
        lowest = lowest_allowed(suppressed_ptr, n_suppressed, CHUNK)
        o_r = row + tl.arange(0, 1)
        top, token, second, total = merge_rows(o_r, o_r >= 0, value_ptr, id_ptr, plane, lowest, True, SPLITS)
        others = vocabulary - 1 - n_suppressed
        above = tl.where(top == second, 0.0, top - second) - tl.log2(total) * LN2
        # Where all others are -inf, the weight relative to them says nothing.
        alone = tl.where(top == second, 0.0 - tl.log2(others.to(tl.float32)) * LN2, HIGHEST_LOG_ODDS)
        log_odds = tl.minimum(tl.where(second == float("-inf"), alone, above), HIGHEST_LOG_ODDS)
        log_odds = tl.where(others == 0, float("inf"), log_odds)
        tl.store(token_ptr + o_r, token.to(tl.int64))
        tl.store(top1_ptr + o_r, top + 0.0)
        tl.store(top2_ptr + o_r, second + 0.0)
        tl.store(log_odds_ptr + o_r, tl.where(second == second, log_odds, float("nan")))
        tl.store(ticket_ptr + row, 0)


def token_stats(
    logits: Tensor,
    flags: Tensor | None,
    suppressed: Tensor | None,
    partials: Tensor | None,
    tickets: Tensor | None,
    splits: int | None = None,
) -> tuple[Tensor, ...]:
    """The operator ``token_stats``; `splits` is chosen from the shape unless it is given."""
    check_token_stats(logits, flags, suppressed)
    check_flags(flags, suppressed is not None)
    rows, length, s_batch = rows_of(logits, logits.dim() - 1)
    tokens = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    top1, top2, log_odds = (logits.new_empty(logits.shape[:-1], dtype=torch.float32) for _ in range(3))
    if rows == 0:
        return tokens, top1, top2, log_odds
    launch = Launch(STATS, logits, rows, splits)
    values, ids, tickets = launch.workspace(partials, tickets, rows)
    stats_kernel[(rows * launch.splits,)](
        logits,
        s_batch,
        logits.stride(-2),
        flags,
        suppressed,
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
        0 if suppressed is None else suppressed.numel(),
        SPLITS=launch.splits,
        BLOCK=launch.config.block,
        CHUNK=launch.config.rows,
        WAIT=launch.config.wait,
        **launch.options,
    )
    return tokens, top1, top2, log_odds

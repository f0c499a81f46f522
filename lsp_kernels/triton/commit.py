"""The commit operations in one launch each: many programs score rows, and the last one of a sequence selects.

Every (row, split of the vocabulary) is one program. It publishes its top-2 and takes a ticket of its sequence; the
program that takes the last ticket merges the sequence's rows and applies the rule. Nobody waits for anybody. The grid
depends on shapes alone; which rows are scored is found on the device. `token_stats`, of the same family, is in `stats`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_commit_prefix, check_select_prefix
from .._shapes import batch_of
from .configs.commit import COMMIT
from .configs.device import device_of
from .launch import Launch, check_flags, rows_of
from .rows import lowest_allowed, merge_rows, sequence_at, sequence_of
from .rule import scored_rows, select
from .stats import stats_kernel, token_stats
from .ticket import publish
from .top2 import scan_row

__all__ = ["commit_kernel", "commit_prefix", "select_kernel", "select_prefix", "stats_kernel", "token_stats"]


@triton.jit(
    do_not_specialize=["batch", "rows", "length", "tiles", "alpha", "beta", "min_length", "window", "n_suppressed"]
)
def commit_kernel(
    x_ptr,
    s_batch,
    s_row,
    cu_ptr,
    active_ptr,
    starts_ptr,
    flags_ptr,
    suppressed_ptr,
    length_ptr,
    finished_ptr,
    token_ptr,
    margin_ptr,
    value_ptr,
    id_ptr,
    ticket_ptr,
    batch,
    rows,
    length,
    vocabulary,
    tiles,
    n_suppressed,
    alpha,
    beta,
    min_length,
    window,
    floor,
    HAS_FLOOR: tl.constexpr,
    SNAP: tl.constexpr,
    KEEP: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WAIT: tl.constexpr,
):
    i_p = tl.program_id(0)
    plane = rows.to(tl.int64) * SPLITS
    if i_p >= rows * SPLITS:  # one more program per sequence, for a sequence without scored rows
        b = i_p - rows * SPLITS
        first, given, n = sequence_at(b, cu_ptr, active_ptr, starts_ptr, length, rows)
        decreasing = False
        if cu_ptr is not None:
            decreasing = sequence_of(tl.full((), -1, tl.int32), cu_ptr, length, batch, ROWS) == batch
        if decreasing | (tl.minimum(given, scored_rows(n, alpha, beta, min_length, HAS_FLOOR)) == 0):
            tl.store(length_ptr + b, 0)
            tl.store(finished_ptr + b, 0)
    else:
        row = i_p // SPLITS
        split = i_p % SPLITS
        b = sequence_of(row, cu_ptr, length, batch, ROWS)
        known = tl.minimum(b, batch - 1)  # rows after the last border belong to no sequence
        first, given, n = sequence_at(known, cu_ptr, active_ptr, starts_ptr, length, rows)
        wanted = scored_rows(n, alpha, beta, min_length, HAS_FLOOR)
        n = tl.where(given < wanted, given, n)
        scored = tl.minimum(given, wanted)
        j = row - first
        if (b < batch) & (j >= 0) & (j < scored):
            p_row = x_ptr + row.to(tl.int64) * s_row
            if cu_ptr is None:
                p_row += b.to(tl.int64) * (s_batch - length.to(tl.int64) * s_row)
            begin = split * tiles * BLOCK  # not clamped: the compiler must see that it is a multiple of BLOCK
            end = tl.maximum(begin, tl.minimum(begin + tiles * BLOCK, vocabulary))
            HIDDEN: tl.constexpr = suppressed_ptr is not None
            v1, i1, v2, _weight = scan_row(p_row, begin, end, flags_ptr, HIDDEN, False, BLOCK)
            tl.store(value_ptr + i_p, v1)
            tl.store(value_ptr + plane + i_p, v2)
            tl.store(id_ptr + 2 * plane + i_p, i1)
            publish(WAIT)
            if tl.atomic_add(ticket_ptr + b, 1, sem="acq_rel", scope="gpu") == scored * SPLITS - 1:
                lowest = lowest_allowed(suppressed_ptr, n_suppressed, ROWS)
                for j0 in range(0, scored, ROWS):
                    o_j = j0 + tl.arange(0, ROWS)
                    m_j = o_j < scored
                    top, token, second, _total = merge_rows(
                        first + o_j, m_j, value_ptr, id_ptr, plane, lowest, False, SPLITS
                    )
                    margin = tl.where(top == second, 0.0, top - second)
                    tl.store(token_ptr + first + o_j, token.to(tl.int64), mask=m_j)
                    tl.store(margin_ptr + first + o_j, margin, mask=m_j)
                publish(WAIT)
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
        elif split == 0:
            tl.store(token_ptr + row, -1)
            tl.store(margin_ptr + row, float("-inf"))


@triton.jit(
    do_not_specialize=["rows", "length", "alpha", "beta", "min_length", "window", "s_margin_batch", "s_token_batch"]
)
def select_kernel(
    margin_ptr,
    token_ptr,
    s_margin_batch,
    s_margin,
    s_token_batch,
    s_token,
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
    lengths, finished = _outputs(margins, batch)
    if batch:
        config = COMMIT[device_of(margins.device).architecture][torch.float32]
        s_token = tokens.stride(0) if tokens.dim() == 2 else 0
        numbers, options = _rule(*rule)
        select_kernel[(batch,)](
            margins,
            tokens,
            s_margin,
            margins.stride(-1),
            s_token,
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
            num_warps=4,
            num_stages=1,
        )
    return lengths, finished.view(torch.bool)


def commit_prefix(
    logits: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    suppressed: Tensor | None,
    *rule_and_workspace: Any,
    splits: int | None = None,
) -> tuple[Tensor, ...]:
    """The operator ``commit_prefix``; `splits` is chosen from the shape unless it is given."""
    *rule, partials, tickets = rule_and_workspace
    check_commit_prefix(logits, cu_rows, n_active, starts, flags, suppressed, *rule)
    check_flags(flags, suppressed is not None or rule[5])
    rows, length, s_batch = rows_of(logits, logits.dim() - 1)
    batch = batch_of(logits, logits.dim() - 1, cu_rows)
    tokens = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    margins = logits.new_empty(logits.shape[:-1], dtype=torch.float32)
    lengths, finished = _outputs(logits, batch)
    if batch == 0:  # there may be rows, but they belong to no sequence
        return lengths, finished.view(torch.bool), tokens.fill_(-1), margins.fill_(-torch.inf)
    launch = Launch(COMMIT, logits, rows, splits)
    values, ids, tickets = launch.workspace(partials, tickets, batch)
    numbers, options = _rule(*rule)
    commit_kernel[(rows * launch.splits + batch,)](
        logits,
        s_batch,
        logits.stride(-2),
        cu_rows,
        n_active,
        starts,
        flags,
        suppressed,
        lengths,
        finished,
        tokens,
        margins,
        values,
        ids,
        tickets,
        batch,
        rows,
        length,
        logits.size(-1),
        launch.tiles,
        0 if suppressed is None else suppressed.numel(),
        *numbers,
        **options,
        SPLITS=launch.splits,
        BLOCK=launch.config.block,
        ROWS=launch.config.rows,
        WAIT=launch.config.wait,
        **launch.options,
    )
    return lengths, finished.view(torch.bool), tokens, margins


def _outputs(like: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Fresh lengths and finished flags; the flags as bytes, which Triton can store."""
    return like.new_empty(batch, dtype=torch.int32), like.new_empty(batch, dtype=torch.uint8)


def _rule(
    alpha: int, beta: int, min_length: int, window: int, floor: float | None, snap: bool, keep: bool
) -> tuple[tuple[int | float, ...], dict[str, bool]]:
    """The numbers of a rule, which a kernel gets at run time, and the flags for which it is compiled."""
    numbers = (alpha, beta, min_length, window, 0.0 if floor is None else float(floor))
    return numbers, {"HAS_FLOOR": floor is not None, "SNAP": snap, "KEEP": keep}

"""The commit operations in one launch each: score rows by many programs, and let the last one of a sequence choose.

Every (row, split of the vocabulary) is one program. It publishes its top-2, takes a ticket of its sequence, and whoever
takes the last ticket merges the sequence's rows and applies the rule. Nobody waits for anybody. The grid depends on
shapes alone; which rows are scored is found on the device.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lsp_kernels.triton import configs
from lsp_kernels.triton.rule import scored_rows, select
from lsp_kernels.triton.ticket import publish
from lsp_kernels.triton.top2 import merge, scan_row

BIG = tl.constexpr(0x7FFFFFFF)
LN2 = tl.constexpr(0.6931471805599453)
LOWEST_REST = tl.constexpr(-80.0)


@triton.jit
def sequence_at(b, cu_ptr, active_ptr, starts_ptr, length, rows):
    """First active row of sequence b, among all rows; how many are given from there on; N. Clamped to the tensor."""
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
    """The sequence that a row belongs to; `batch` if it follows the last one, or if some border falls: then no sequence
    has rows, nothing is committed, and no ticket is left behind."""
    if cu_ptr is None:
        b = row // length
    else:
        before = tl.full((), 0, tl.int64)  # borders up to the row, and above them how many fall
        for b0 in range(0, batch, CHUNK):
            o_b = b0 + tl.arange(0, CHUNK)
            m_b = o_b < batch
            border = tl.load(cu_ptr + 1 + o_b, mask=m_b, other=BIG)
            falls = border < tl.load(cu_ptr + o_b, mask=m_b, other=0)
            before += tl.sum((border <= row).to(tl.int64) + (falls.to(tl.int64) << 32), 0)
        b = tl.where(before > BIG, batch, before.to(tl.int32))
    return b


@triton.jit
def lowest_allowed(suppressed_ptr, n_suppressed, CHUNK: tl.constexpr):
    """The lowest id that is not suppressed: the sorted ids begin with 0, 1, 2, … up to it."""
    out = tl.full((), 0, tl.int32)
    if suppressed_ptr is not None:
        for k0 in range(0, n_suppressed, CHUNK):
            k = k0 + tl.arange(0, CHUNK)
            out += tl.sum((tl.load(suppressed_ptr + k, mask=k < n_suppressed, other=-1) == k).to(tl.int32), 0)
    return out


@triton.jit
def merge_rows(row, mask, value_ptr, id_ptr, plane, lowest, REST: tl.constexpr, SPLITS: tl.constexpr):
    """Joins the splits of some rows, as other programs published them. Planes: best, second, id, weight."""
    q = row[:, None].to(tl.int64) * SPLITS + tl.arange(0, SPLITS)[None, :]  # [ROWS, SPLITS]
    m = mask[:, None] & (q >= 0)
    v1 = tl.load(value_ptr + q, mask=m, other=float("-inf"), cache_modifier=".cg")
    v2 = tl.load(value_ptr + plane + q, mask=m, other=float("-inf"), cache_modifier=".cg")
    i1 = tl.load(id_ptr + 2 * plane + q, mask=m, other=0, cache_modifier=".cg")
    s = v1
    if REST:
        s = tl.load(value_ptr + 3 * plane + q, mask=m, other=0.0, cache_modifier=".cg")
    first, token, second, total = merge(v1, i1, v2, s, 1, REST)
    token = tl.where(first == float("-inf"), lowest, token)
    return first, token, second, total


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
    GUARDED: tl.constexpr,
    SNAP: tl.constexpr,
    KEEP: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WAIT: tl.constexpr,
):
    i_p = tl.program_id(0)
    plane = rows.to(tl.int64) * SPLITS
    if i_p >= rows * SPLITS:  # one program per sequence, for those that no row program serves
        b = i_p - rows * SPLITS
        first, given, n = sequence_at(b, cu_ptr, active_ptr, starts_ptr, length, rows)
        fallen = False
        if cu_ptr is not None:
            fallen = sequence_of(tl.full((), -1, tl.int32), cu_ptr, length, batch, ROWS) == batch
        if fallen | (tl.minimum(given, scored_rows(n, alpha, beta, min_length, GUARDED)) == 0):
            tl.store(length_ptr + b, 0)
            tl.store(finished_ptr + b, 0)
    else:
        row = i_p // SPLITS
        split = i_p % SPLITS
        b = sequence_of(row, cu_ptr, length, batch, ROWS)
        known = tl.minimum(b, batch - 1)  # rows after the last border belong to nobody
        first, given, n = sequence_at(known, cu_ptr, active_ptr, starts_ptr, length, rows)
        wanted = scored_rows(n, alpha, beta, min_length, GUARDED)
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
                    GUARDED,
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
    rest_ptr,
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
        below = tl.where(top == second, 0.0, second - top) + tl.log2(total) * LN2
        few = tl.where(top == second, tl.log2(others.to(tl.float32)) * LN2, LOWEST_REST)  # nothing else above -inf
        rest = tl.maximum(tl.where(second == float("-inf"), few, below), LOWEST_REST)
        rest = tl.where(others == 0, float("-inf"), rest)
        tl.store(token_ptr + o_r, token.to(tl.int64))
        tl.store(top1_ptr + o_r, top + 0.0)
        tl.store(top2_ptr + o_r, second + 0.0)
        tl.store(rest_ptr + o_r, tl.where(second == second, rest, float("nan")))
        tl.store(ticket_ptr + row, 0)


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
    GUARDED: tl.constexpr,
    SNAP: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
):
    b = tl.program_id(0)
    first, given, n = sequence_at(b, cu_ptr, active_ptr, starts_ptr, length, rows)
    wanted = scored_rows(n, alpha, beta, min_length, GUARDED)
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
        GUARDED,
        SNAP,
        KEEP,
        ROWS,
    )
    tl.store(length_ptr + b, chosen)
    tl.store(finished_ptr + b, finished)


def token_stats(
    logits: Tensor,
    flags: Tensor | None,
    suppressed: Tensor | None,
    partials: Tensor | None,
    tickets: Tensor | None,
    splits: int | None = None,
) -> tuple[Tensor, ...]:
    """As ``torch.ops.lsp.token_stats``; `splits` is chosen from the shape unless it is given."""
    _check_flags(flags, suppressed is not None)
    rows, length, s_batch = _rows_of(logits, 2)
    tokens = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    top1, top2, rest = (logits.new_empty(logits.shape[:-1], dtype=torch.float32) for _ in range(3))
    if rows == 0:
        return tokens, top1, top2, rest
    launch = _Launch(configs.STATS, logits, rows, splits)
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
        rest,
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
    return tokens, top1, top2, rest


def select_prefix(
    margins: Tensor,
    tokens: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    *rule: Any,
) -> tuple[Tensor, Tensor]:
    """As ``torch.ops.lsp.select_prefix``."""
    rows, length, s_margin = _rows_of(margins, 1)
    batch = _batch_of(margins, 1, cu_rows)
    lengths, finished = _outputs(margins, batch)
    if batch:
        config = configs.COMMIT[configs.device_of(margins.device).architecture][torch.float32]
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
    """As ``torch.ops.lsp.commit_prefix``; `splits` is chosen from the shape unless it is given."""
    *rule, partials, tickets = rule_and_workspace
    _check_flags(flags, suppressed is not None or rule[5])
    rows, length, s_batch = _rows_of(logits, 2)
    batch = _batch_of(logits, 2, cu_rows)
    tokens = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    margins = logits.new_empty(logits.shape[:-1], dtype=torch.float32)
    lengths, finished = _outputs(logits, batch)
    if batch == 0:  # rows without a sequence
        return lengths, finished.view(torch.bool), tokens.fill_(-1), margins.fill_(-torch.inf)
    launch = _Launch(configs.COMMIT, logits, rows, splits)
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


def _check_flags(flags: Tensor | None, needed: bool) -> None:
    if needed and flags is None:
        raise ValueError("Invalid flags: expected the table of a Vocabulary with suppressed ids or snap, got None")


class _Launch:
    """Splits, tiles and options of a launch over the rows of some logits."""

    def __init__(self, table: dict[str, configs.Table], logits: Tensor, rows: int, splits: int | None) -> None:
        device = configs.device_of(logits.device)
        self.config = table[device.architecture][logits.dtype]
        self.splits = splits or configs.splits_of(rows, logits.size(-1), device.processors)
        self.rows = rows
        blocks = triton.cdiv(logits.size(-1), self.config.block)
        self.tiles = triton.cdiv(blocks, self.splits)  # per split
        self.options: dict[str, int] = {"num_warps": self.config.warps, "num_stages": 1}
        if self.config.maxnreg is not None:
            self.options["maxnreg"] = self.config.maxnreg
        self.device = logits.device

    def workspace(
        self, partials: Tensor | None, tickets: Tensor | None, n_tickets: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Partials as floats and as ids, and tickets; allocated here if the caller holds none."""
        needed = configs.PLANES * self.rows * self.splits
        if partials is None or tickets is None:
            partials = torch.empty(needed, dtype=torch.int32, device=self.device)
            tickets = torch.zeros(n_tickets, dtype=torch.int32, device=self.device)
        if partials.numel() < needed or tickets.numel() < n_tickets:
            raise ValueError(
                f"Invalid workspace: expected room for {needed} partials and {n_tickets} tickets, "
                f"got {partials.numel()} and {tickets.numel()}"
            )
        return partials.view(torch.float32), partials, tickets


def _rows_of(tensor: Tensor, dims: int) -> tuple[int, int, int]:
    """Rows in all, rows per batch element and its stride; `dims` is the number of dimensions of one sequence."""
    if tensor.dim() == dims:
        return tensor.size(0), tensor.size(0), 0
    return tensor.size(0) * tensor.size(1), tensor.size(1), tensor.stride(0)


def _batch_of(tensor: Tensor, dims: int, cu_rows: Tensor | None) -> int:
    if tensor.dim() > dims:
        return tensor.size(0)
    return 1 if cu_rows is None else cu_rows.numel() - 1


def _outputs(like: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Lengths, and finished as bytes."""
    return like.new_empty(batch, dtype=torch.int32), like.new_empty(batch, dtype=torch.uint8)


def _rule(
    alpha: int, beta: int, min_length: int, window: int, floor: float | None, snap: bool, keep: bool
) -> tuple[tuple[int | float, ...], dict[str, bool]]:
    """The numbers of a rule, and what a kernel is compiled for."""
    numbers = (alpha, beta, min_length, window, 0.0 if floor is None else float(floor))
    return numbers, {"GUARDED": floor is not None, "SNAP": snap, "KEEP": keep}

"""token_stats in one launch: every (row, split of the vocabulary) is one program, and the last of a row merges.

The launcher is used through `commit`, which has all three operations of the family.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._operands import check_token_stats
from .configs.commit import STATS, planes
from .launch import Launch, check_flags, rows_of
from .noise import noise_at
from .odds import entropy_of, log_odds_of
from .rows import merge_splits, publish_split
from .ticket import publish
from .top2 import scan_row


@triton.jit(
    do_not_specialize=[
        "x_ptr", "s_batch", "s_row", "flags_ptr", "noise_ptr", "token_ptr", "top1_ptr", "top2_ptr", "log_odds_ptr",
        "entropy_ptr", "clean_ptr", "value_ptr", "ticket_ptr", "rows", "length", "vocabulary", "tiles",
        "lowest", "others", "id_offset",
    ]
)  # fmt: skip
def stats_kernel(
    x_ptr,
    s_batch: tl.int64,
    s_row: tl.int64,
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
    tiles,
    lowest,
    others,
    id_offset,
    HIDDEN: tl.constexpr,
    ALIGNED: tl.constexpr,
    GROUPED: tl.constexpr,
    FAST: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAIT: tl.constexpr,
):
    """`others`: as in `odds`. GROUPED: `id_offset` is a multiple of 4."""
    NOISE: tl.constexpr = noise_ptr is not None
    ENTROPY: tl.constexpr = entropy_ptr is not None
    i_p = tl.program_id(0)
    row = i_p // SPLITS
    split = i_p % SPLITS
    i_b = row // length
    p_row = x_ptr + (i_b.to(tl.int64) * s_batch + (row % length).to(tl.int64) * s_row)
    draw = None
    if NOISE:
        seed, place, temperature = noise_at(noise_ptr, row)
        draw = seed, place, temperature, id_offset
    found = scan_row(
        p_row, split, tiles, vocabulary, flags_ptr, draw, HIDDEN, ALIGNED, GROUPED, FAST, True, ENTROPY, BLOCK
    )
    last = True
    if SPLITS > 1:
        plane = rows.to(tl.int64) * SPLITS
        publish_split(found, i_p, value_ptr, plane, NOISE, True, ENTROPY)
        publish(WAIT)
        last = tl.atomic_add(ticket_ptr + row, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
    if last:
        if SPLITS > 1:
            found = merge_splits(row, value_ptr, plane, NOISE, True, ENTROPY, SPLITS)
            tl.store(ticket_ptr + row, 0)
        top, token, second, clean, high, total, spread = found
        tl.store(token_ptr + row, tl.where(top == float("-inf"), lowest, token).to(tl.int64) + id_offset)
        tl.store(top1_ptr + row, top + 0.0)
        tl.store(top2_ptr + row, second + 0.0)
        tl.store(log_odds_ptr + row, log_odds_of(clean, high, second, total, others))
        if ENTROPY:
            tl.store(entropy_ptr + row, entropy_of(clean, high, second, total, spread, others))
        if NOISE:
            tl.store(clean_ptr + row, clean + 0.0)


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
    check_flags(flags, suppressed is not None)
    rows, length, s_batch = rows_of(logits, logits.dim() - 1)
    tokens = logits.new_empty(logits.shape[:-1], dtype=torch.int64)
    top1, top2, log_odds = (logits.new_empty(logits.shape[:-1], dtype=torch.float32) for _ in range(3))
    asked = (logits.shape[:-1] if there else (0,) for there in (entropy, noise is not None))
    h, clean = (logits.new_empty(shape, dtype=torch.float32) for shape in asked)
    results = tokens, top1, top2, log_odds, h, clean
    if rows == 0:
        return results
    launch = Launch(STATS, logits, flags, rows, splits, noise is not None or entropy)
    values, tickets = launch.workspace(partials, tickets, rows, planes(noise is not None, True, entropy))
    stats_kernel[(rows * launch.splits,)](
        logits,
        s_batch,
        logits.stride(-2),
        flags,
        noise,
        tokens,
        top1,
        top2,
        log_odds,
        h if entropy else None,
        None if noise is None else clean,
        values,
        tickets,
        rows,
        length,
        logits.size(-1),
        launch.tiles,
        lowest,
        logits.size(-1) - 1 - (0 if suppressed is None else suppressed.numel()),
        id_offset,
        HIDDEN=suppressed is not None,
        GROUPED=noise is None or id_offset % 4 == 0,
        **launch.options,
    )
    return results

"""The definition of the commit operations. Nothing is checked or optimised here: every row is scored."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from .._widest import widest
from ..results import Commit, TokenStats
from ..rule import PrefixRule

HIGHEST_LOG_ODDS = 80.0


class Tables(Protocol):
    """The attributes of a `Vocabulary` that are used here."""

    @property
    def flags(self) -> Tensor | None: ...
    @property
    def suppressed(self) -> Tensor | None: ...
    @property
    def lowest(self) -> int: ...


def token_stats(logits: Tensor, *, vocabulary: Tables | None = None) -> TokenStats:
    """The best token, the two largest logits and the log-odds of the best token, per row of [..., V] logits."""
    z, tokens, top1, top2 = _top2(logits, vocabulary)
    hidden = torch.zeros_like(z, dtype=torch.bool).scatter(-1, tokens[..., None], True)
    others = z.size(-1) - 1
    if vocabulary is not None and vocabulary.suppressed is not None:
        hidden = hidden.index_fill(-1, vocabulary.suppressed.long(), True)
        others -= vocabulary.suppressed.size(0)
    best = top1[..., None]
    below = torch.where(z == best, 0.0, widest(z) - widest(best)).masked_fill(hidden, -math.inf)
    log_odds = 0.0 - below.logsumexp(-1)
    log_odds = log_odds.clamp(max=HIGHEST_LOG_ODDS if others else math.inf).float()
    top1, top2 = top1 + 0.0, top2 + 0.0  # no -0.0
    return TokenStats(tokens, top1, top2, torch.where(top2.isnan(), math.nan, log_odds))


def select_prefix(
    margins: Tensor,
    tokens: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    vocabulary: Tables | None = None,
) -> tuple[Tensor, Tensor]:
    """The rule for every sequence of margins and tokens, [B, L] or packed [R]."""
    rows, n = _active_rows(margins.shape, cu_rows, n_active, starts, margins.device)
    present = rows >= 0
    padded_margins = margins.flatten()[rows.clamp(min=0)] if margins.numel() else rows.float()
    padded_tokens = tokens.flatten()[rows.clamp(min=0)] if tokens.numel() else rows
    lengths, finished = rule.select(
        padded_margins.masked_fill(~present, math.inf),
        padded_tokens.masked_fill(~present, -1),
        n,
        None if vocabulary is None else vocabulary.flags,
    )
    return lengths.int(), finished


def commit_prefix(
    logits: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    vocabulary: Tables | None = None,
) -> Commit:
    """Margins of the active rows of [B, L, V] or packed [R, V] logits, and the rule applied to them."""
    _, tokens, top1, top2 = _top2(logits, vocabulary)
    margins = torch.where(top1 == top2, 0.0, top1 - top2)

    rows, n = _active_rows(tokens.shape, cu_rows, n_active, starts, logits.device)
    order = torch.arange(rows.size(1), device=rows.device)
    scored = (order < rule.scored_rows(n)[:, None]) & (rows >= 0)
    unscored = torch.ones(tokens.numel() + 1, dtype=torch.bool, device=rows.device)
    unscored = unscored.scatter(0, torch.where(scored, rows, tokens.numel()).flatten(), False)
    unscored = unscored[:-1].view(tokens.shape)
    tokens = tokens.masked_fill(unscored, -1)
    margins = margins.masked_fill(unscored, -math.inf)

    lengths, finished = select_prefix(margins, tokens, cu_rows, n_active, starts, rule=rule, vocabulary=vocabulary)
    return Commit(lengths, finished, tokens, margins)


def _top2(logits: Tensor, vocabulary: Tables | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Float32 logits in which suppressed ids and NaN are -inf; token, top1 and top2 of every row."""
    z = logits.detach().float()
    if vocabulary is not None and vocabulary.suppressed is not None:
        z = z.index_fill(-1, vocabulary.suppressed.long(), -math.inf)
    nan = z.isnan()
    z = z.masked_fill(nan, -math.inf)
    top1, tokens = z.max(-1)  # the first of equal values
    tokens = torch.where(top1 == -math.inf, 0 if vocabulary is None else vocabulary.lowest, tokens)
    top2 = z.scatter(-1, tokens[..., None], -math.inf).amax(-1)
    return z, tokens, top1, top2.masked_fill(nan.any(-1), math.nan)


def _active_rows(
    shape: torch.Size,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The index of every active row among all rows, [B, P + 1] padded with -1; N [B]."""
    if len(shape) == 2:
        batch, length = shape
        first = torch.arange(batch, device=device) * length
        last = first + length
    else:
        length = shape[0]
        borders = torch.tensor([0, length], device=device) if cu_rows is None else cu_rows.long()
        first, last = borders[:-1], borders[1:]
    if starts is not None:
        first = first + starts
    given = last - first
    n = given if n_active is None else n_active.long()
    order = torch.arange(length + 1, device=device)
    return torch.where(order < given[:, None], first[:, None] + order, -1), n

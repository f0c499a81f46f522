"""The definition of the commit operations. Nothing is checked or optimised here: every row is scored."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from .._widest import widest
from ..results import Commit, TokenStats
from ..rule import PrefixRule
from .noise import add_noise

HIGHEST_LOG_ODDS = 80.0


class Tables(Protocol):
    """The attributes of a `Vocabulary` that are used here."""

    @property
    def flags(self) -> Tensor | None: ...
    @property
    def suppressed(self) -> Tensor | None: ...
    @property
    def lowest(self) -> int: ...


class Sampling(Protocol):
    """The attribute of a `Noise` that is used here."""

    @property
    def table(self) -> Tensor: ...


def token_stats(
    logits: Tensor,
    *,
    vocabulary: Tables | None = None,
    id_offset: int = 0,
    noise: Sampling | None = None,
    entropy: bool = False,
) -> TokenStats:
    """The best token, the two largest logits and the log-odds of the best token, per row of [..., V] logits.

    With noise, the best token and the two largest are those of the noisy logits; log-odds and entropy are clean.
    """
    z, tokens, top1, top2 = _top2(logits, vocabulary, noise, id_offset)
    top1, top2, clean = top1 + 0.0, top2 + 0.0, z.gather(-1, tokens[..., None])[..., 0] + 0.0  # no -0.0
    relative = _relative(z, clean, vocabulary)
    nan = top2.isnan()
    log_odds = _log_odds(relative, tokens, vocabulary).masked_fill(nan, math.nan)
    h = _entropy(relative).masked_fill(nan, math.nan) if entropy else None
    return TokenStats(tokens + id_offset, top1, top2, log_odds, h, None if noise is None else clean)


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
    noise: Sampling | None = None,
    log_odds: bool = False,
) -> Commit:
    """Margins of the active rows of [B, L, V] or packed [R, V] logits, and the rule applied to them."""
    z, tokens, top1, top2 = _top2(logits, vocabulary, noise, 0)
    margins = torch.where(top1 == top2, 0.0, top1 - top2)
    odds = None
    if log_odds:
        odds = _log_odds(_relative(z, z.gather(-1, tokens[..., None])[..., 0], vocabulary), tokens, vocabulary)
        odds = odds.masked_fill(top2.isnan(), math.nan)

    rows, n = _active_rows(tokens.shape, cu_rows, n_active, starts, logits.device)
    order = torch.arange(rows.size(1), device=rows.device)
    scored = (order < rule.scored_rows(n)[:, None]) & (rows >= 0)
    unscored = torch.ones(tokens.numel() + 1, dtype=torch.bool, device=rows.device)
    unscored = unscored.scatter(0, torch.where(scored, rows, tokens.numel()).flatten(), False)
    unscored = unscored[:-1].view(tokens.shape)
    tokens = tokens.masked_fill(unscored, -1)
    margins, top1 = margins.masked_fill(unscored, -math.inf), (top1 + 0.0).masked_fill(unscored, -math.inf)
    odds = None if odds is None else odds.masked_fill(unscored, -math.inf)

    lengths, finished = select_prefix(margins, tokens, cu_rows, n_active, starts, rule=rule, vocabulary=vocabulary)
    return Commit(lengths, finished, tokens, margins, top1, odds)


def _top2(
    logits: Tensor, vocabulary: Tables | None, noise: Sampling | None, id_offset: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Float32 logits in which suppressed ids and NaN are -inf; token, top1 and top2 of every row, with the noise."""
    z = _without_suppressed(logits.detach().float(), vocabulary)
    nan = z.isnan()
    z = z.masked_fill(nan, -math.inf)
    noisy = z if noise is None else add_noise(z, noise.table, id_offset)
    top1, tokens = noisy.max(-1)  # the first of equal values
    tokens = torch.where(top1 == -math.inf, 0 if vocabulary is None else vocabulary.lowest, tokens)
    top2 = noisy.scatter(-1, tokens[..., None], -math.inf).amax(-1)
    return z, tokens, top1, top2.masked_fill(nan.any(-1), math.nan)


def _without_suppressed(z: Tensor, vocabulary: Tables | None) -> Tensor:
    if vocabulary is None or vocabulary.suppressed is None:
        return z
    return z.index_fill(-1, vocabulary.suppressed.long(), -math.inf)


def _relative(z: Tensor, base: Tensor, vocabulary: Tables | None) -> Tensor:
    """All logits minus one of them in float64, 0 where they are equal; suppressed ids are -inf."""
    out = torch.where(z == base[..., None], 0.0, widest(z) - widest(base[..., None]))
    return _without_suppressed(out, vocabulary)


def _log_odds(relative: Tensor, tokens: Tensor, vocabulary: Tables | None) -> Tensor:
    """log(p / (1 - p)) of the tokens, from logits relative to theirs."""
    suppressed = None if vocabulary is None else vocabulary.suppressed
    others = relative.size(-1) - 1 - (0 if suppressed is None else suppressed.size(0))
    out = 0.0 - relative.scatter(-1, tokens[..., None], -math.inf).logsumexp(-1)
    return out.clamp(max=HIGHEST_LOG_ODDS if others else math.inf).float()


def _entropy(relative: Tensor) -> Tensor:
    """The entropy of the softmax in nats, from logits relative to one of them."""
    terms: Tensor = torch.special.entr(relative.softmax(-1))
    return terms.sum(-1).float()


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

"""One step of the longest stable prefix on a batch of blocks, each with masks of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lsp.integrations._common import EVERYTHING
from lsp.integrations.sglang.settings import Settings
from lsp_kernels import Vocabulary, commit_prefix, select_prefix
from lsp_kernels.rule import STOP, has_flag

__all__ = ["advance"]


@dataclass
class Scored:
    """What a pass says of the blocks: tokens and margins [B, L], and how many masks to commit from the left [B]."""

    tokens: Tensor
    margins: Tensor
    lengths: Tensor


def advance(
    logits: Tensor, ids: Tensor, masked: Tensor, settings: Settings, vocabulary: Vocabulary
) -> tuple[Tensor, list[bool]]:
    """The ids after a pass, and which blocks had no mask left before it.

    Every other block commits at least one mask. Where the logits hold NaN, the prefix is the first mask alone, and NaN
    is neither an island nor the best, so that a broken request ends without stopping the others.

    Parameters
    ----------
    logits : Tensor [B, L, V]
    ids : Tensor, int64 [B, L]
        Left as it is.
    masked : Tensor, bool [B, L]
        Which of them are masks to decode.
    settings : Settings
    vocabulary : Vocabulary
        With the settings' delimiters and stops.

    Returns
    -------
    ids : Tensor, int64 [B, L]
    done : list of bool
        Their K/V, which the pass wrote, belong to final tokens.

    Examples
    --------
    >>> import torch
    >>> from lsp.integrations.sglang.settings import Settings
    >>> ids, logits = torch.tensor([[7, 9, 9, 9]]), torch.zeros(1, 4, 10)
    >>> logits[0, 1, 4], logits[0, 2, 5], logits[0, 3, 6] = 8.0, 5.0, 1.0
    >>> settings = Settings()
    >>> advance(logits, ids, ids == 9, settings, settings.vocabulary(10, 9, logits.device))
    (tensor([[7, 4, 5, 9]]), [False])
    """
    counts, flags = masked.sum(1), masked.int()
    first, last = flags.argmax(1), masked.size(1) - 1 - flags.flip(1).argmax(1)
    whole = (last - first + 1 == counts) | (counts == 0)  # no islands among the masks
    done, runs = torch.stack([counts == 0, whole]).tolist()  # all that the host has to know, in one transfer
    if all(done):
        return ids, done
    found = _score(logits, masked, counts, first, all(runs), settings, vocabulary)
    chosen = _choose(found, masked, counts, first, settings, vocabulary)
    return _written(found, ids, masked, chosen, vocabulary), done


def _score(
    logits: Tensor,
    masked: Tensor,
    counts: Tensor,
    first: Tensor,
    one_run: bool,
    settings: Settings,
    vocabulary: Vocabulary,
) -> Scored:
    """The rule on the masks of each block, which count as neighbours whatever lies between them."""
    if one_run:
        rows = counts.int(), first.int()
        commit = commit_prefix(logits, None, *rows, rule=settings.rule, vocabulary=vocabulary)
        return Scored(commit.tokens, commit.margins, commit.lengths)
    from_first = torch.where(counts > 0, masked.size(1) - first, 0)
    rows = from_first.int(), first.int()
    seen = commit_prefix(logits, None, *rows, rule=EVERYTHING, vocabulary=vocabulary)
    order = (~masked).byte().argsort(dim=1, stable=True)  # the masks of a block side by side, at its left end
    margins, tokens = seen.margins.gather(1, order), seen.tokens.gather(1, order)
    lengths, _ = select_prefix(margins, tokens, None, counts.int(), rule=settings.rule, vocabulary=vocabulary)
    return Scored(seen.tokens, seen.margins, lengths)


def _choose(
    found: Scored, masked: Tensor, counts: Tensor, first: Tensor, settings: Settings, vocabulary: Vocabulary
) -> Tensor:
    """The positions to commit, bool [B, L], as `lsp.LongestStablePrefix` chooses them."""
    at_least_one = found.lengths.clamp(min=1)  # 0 where there is NaN, or no mask
    chosen = masked & (masked.cumsum(1) <= at_least_one[:, None])
    if settings.islands is None and settings.stuck == "first":
        return chosen
    sure = torch.zeros_like(masked) if settings.islands is None else masked & (found.margins >= settings.islands)
    stuck = (found.margins.gather(1, first[:, None]) < settings.rule.floor) & (counts > 0)[:, None]
    otherwise = chosen
    if settings.stuck == "best":
        best = torch.where(masked, found.margins.nan_to_num(nan=-1.0), -torch.inf).argmax(1, keepdim=True)
        otherwise = masked & torch.zeros_like(masked).scatter(1, best, True)
    islands = torch.where(sure.any(1, keepdim=True), sure, otherwise)
    return torch.where(stuck, islands, chosen) | (sure & has_flag(vocabulary.flags, found.tokens, STOP))


def _written(found: Scored, ids: Tensor, masked: Tensor, chosen: Tensor, vocabulary: Vocabulary) -> Tensor:
    """The ids with what is committed; masks behind a committed stop become that stop."""
    stops = chosen & has_flag(vocabulary.flags, found.tokens, STOP)
    stop = found.tokens.gather(1, stops.int().argmax(1, keepdim=True))
    behind = masked & ~chosen & (stops.cumsum(1) > 0)
    return torch.where(behind, stop, torch.where(chosen, found.tokens, ids))

"""Sampling from the likely tokens only: the `top_k` largest logits, and the fewest tokens that reach `top_p`.

Which tokens these are is known after a look at all logits of a row, so a filter needs logits by nature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lsp_kernels import Noise, TokenStats, Vocabulary, token_stats
from lsp_kernels.rule import SUPPRESSED, has_flag


class Filter(NamedTuple):
    """Which tokens may be drawn at a temperature."""

    temperature: float
    top_p: float | None
    top_k: int | None

    def keeps(self, logits: Tensor) -> Tensor:
        """Which ids of each row stay, bool [R, V].

        As in Dream: of the tokens by falling probability at the temperature, those before which the sum is at most
        `top_p`, so at least one; and all that are no smaller than the `top_k`-th logit.
        """
        wide = logits.float()
        largest = wide.amax(-1, keepdim=True)  # stays 0, however cold it is and however large the logits are
        tempered = torch.where(wide == largest, 0.0, (wide - largest) / self.temperature)
        kept = tempered > -torch.inf
        if self.top_k is not None:
            smallest = tempered.topk(min(self.top_k, tempered.size(-1)), dim=-1).values[:, -1:]
            kept = kept & (tempered >= smallest)
        if self.top_p is not None:
            ranked, ids = tempered.sort(dim=-1, descending=True, stable=True)
            p = ranked.softmax(-1)
            before = p.cumsum(-1).roll(1, -1)
            before[:, :1] = 0
            kept = kept & torch.zeros_like(kept).scatter(-1, ids, before <= self.top_p)
        return kept

    def stats(self, logits: Tensor, vocabulary: Vocabulary, noise: Noise, **options: Any) -> TokenStats:
        """The statistics of tokens that are drawn from what is kept.

        Log-odds and entropy are those of all tokens, without noise. So is the margin to the runner-up, of the noisy
        logits; it is 0 where a token that was not kept would have won. So a filter makes no position look surer.
        """
        hidden = has_flag(vocabulary.flags, torch.arange(vocabulary.size, device=logits.device), SUPPRESSED)
        logits = logits.masked_fill(hidden, -torch.inf)
        whole = token_stats(logits, vocabulary=vocabulary, noise=noise, **options)
        options.pop("entropy", None)
        drawn = token_stats(
            logits.masked_fill(~self.keeps(logits), -torch.inf), vocabulary=vocabulary, noise=noise, **options
        )
        unharmed = (drawn.tokens == whole.tokens) | whole.top2.isnan()
        return whole._replace(
            tokens=drawn.tokens,
            top2=torch.where(unharmed, whole.top2, whole.top1),
            log_odds=torch.where(unharmed, whole.log_odds, log_odds_of(drawn.tokens, logits)),
            clean=drawn.clean,
        )


def log_odds_of(tokens: Tensor, logits: Tensor) -> Tensor:
    """log(p / (1 - p)) of these tokens, at most 80, as in `lsp_kernels.TokenStats`."""
    wide, at = logits.double(), tokens[:, None]
    others = wide.scatter(-1, at, -torch.inf).logsumexp(-1)
    return (wide.gather(-1, at)[:, 0] - others).clamp(max=80.0).float()

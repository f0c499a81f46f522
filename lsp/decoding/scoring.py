"""From the hidden states of a pass to what a scheduler asks of them. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsp.decoding.progress import Progress
from lsp.models.protocol import LmHead
from lsp_kernels import (
    PrefixRule,
    Vocabulary,
    Workspace,
    commit_prefix,
    linear_commit_prefix,
    linear_token_stats,
    token_stats,
)


class Question(NamedTuple):
    """What a scheduler asks of a pass: the statistics of some rows, or what a rule commits.

    Attributes
    ----------
    rows : int64 array
        Places in the packed pass whose tokens are to be predicted.
    borders, counts : list of int
        Where the rows of each sequence begin, and its number N of active positions; for a rule.
    rule : PrefixRule or None
        None asks for statistics.
    """

    rows: np.ndarray
    borders: list[int]
    counts: list[int]
    rule: PrefixRule | None


@dataclass(frozen=True)
class Scoring:
    """How the rows of a run are scored; the same in every step.

    Attributes
    ----------
    lm_head : Tensor [V, d] or callable
    shifted : bool
        Whether a token is predicted by the row before its own (Dream).
    vocabulary : Vocabulary
        Its stops end a text; it has none where they are tokens like any other.
    temperature, seeds
        Scale of the noise, and the seed of each prompt.
    progress : Progress
        Its clock counts the time, and an LM head that raises keeps it.
    workspace : Workspace
    """

    lm_head: LmHead
    shifted: bool
    vocabulary: Vocabulary
    temperature: float
    seeds: Sequence[int]
    progress: Progress
    workspace: Workspace

    @cached_property
    def stops(self) -> frozenset[int]:
        return frozenset(self.vocabulary.stop_ids)

    @cached_property
    def weight(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight and bias of an LM head that is nothing else, where the fused operations are faster; else None."""
        head = self.lm_head
        if type(head) is nn.Linear:
            weight, bias = head.weight, head.bias
        elif isinstance(head, Tensor):
            weight, bias = head, None
        else:
            return None
        fused = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        return (weight, bias) if fused and self.temperature == 0 else None

    @torch.no_grad()
    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits [R, V] of the tokens at these places of the packed pass."""
        chosen = hidden.index_select(0, rows - int(self.shifted))
        with self.progress.kept("the LM head"):
            logits = F.linear(chosen, self.lm_head) if isinstance(self.lm_head, Tensor) else self.lm_head(chosen)
        return logits.float() if logits.dtype == torch.float64 else logits

    def stats(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Best token, margin, log-odds and best logit of every row."""
        found = token_stats(logits, vocabulary=self.vocabulary, workspace=self.workspace)
        return found.tokens, found.margins, found.log_odds, found.top1

    def commit(self, logits: Tensor, cu_rows: Tensor, n_active: Tensor, rule: PrefixRule) -> tuple[Tensor, ...]:
        """The commit length of every sequence; best token, margin and best logit of every row."""
        found = commit_prefix(
            logits, cu_rows, n_active, rule=rule, vocabulary=self.vocabulary, workspace=self.workspace
        )
        best = logits.gather(1, found.tokens.clamp(min=0)[:, None])[:, 0].float()  # -1 in rows that belong to nobody
        return found.lengths, found.tokens, found.margins, best

    def _fused(
        self,
        weight: Tensor,
        bias: Tensor | None,
        hidden: Tensor,
        cu_rows: Tensor,
        n_active: Tensor,
        rule: PrefixRule | None,
    ) -> tuple[Tensor, ...]:
        """The same without logits: the LM head is part of the operation."""
        with self.progress.kept("the LM head"):
            if rule is None:
                stats = linear_token_stats(hidden, weight, bias=bias, vocabulary=self.vocabulary)
                return stats.tokens, stats.margins, stats.log_odds, stats.top1
            found = linear_commit_prefix(
                hidden, weight, cu_rows, n_active, rule=rule, bias=bias, vocabulary=self.vocabulary
            )
        return found.lengths, found.tokens, found.margins, found.top1

    def answer(
        self,
        hidden: Tensor,
        rows: Tensor,
        cu_rows: Tensor,
        n_active: Tensor,
        rule: PrefixRule | None,
        noise: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """What a `Question` asks, on the device; with a rule the lengths come first."""
        if self.weight is not None:
            chosen = hidden.index_select(0, rows - int(self.shifted))
            return self._fused(*self.weight, chosen, cu_rows, n_active, rule)
        logits = self.logits(hidden, rows)
        logits = logits if noise is None else noise(logits)
        return self.stats(logits) if rule is None else self.commit(logits, cu_rows, n_active, rule)


def to_host(*tensors: Tensor) -> list[np.ndarray]:
    """Copies that are queued without waiting, and one synchronisation."""
    if tensors[0].device.type != "cuda":
        return [tensor.cpu().numpy() for tensor in tensors]
    copies = [torch.empty_like(t, device="cpu", pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copy.numpy() for copy in copies]

"""From the hidden states of a pass to what a scheduler asks of them. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsp.decoding.filtering import Filter
from lsp.decoding.guidance import guided
from lsp.decoding.progress import Progress
from lsp.models.parallel import ShardedHead
from lsp.models.protocol import LmHead
from lsp_kernels import (
    Commit,
    Noise,
    PrefixRule,
    TokenStats,
    Vocabulary,
    Workspace,
    commit_prefix,
    linear_commit_prefix,
    linear_token_stats,
    select_prefix,
    token_stats,
)

FUSED = (torch.float32, torch.bfloat16, torch.float16)  # the dtypes of weights that the fused operations take


class Asked(NamedTuple):
    """What is computed for every row of a question: statistics, what a rule commits, or the whole distribution.

    Attributes
    ----------
    rule : PrefixRule or None
        None asks for statistics.
    entropy : bool
        Whether the statistics have the entropy of every row.
    distributions : bool
        Whether the log-probabilities of all ids are asked instead.
    """

    rule: PrefixRule | None = None
    entropy: bool = False
    distributions: bool = False


class Question(NamedTuple):
    """What a scheduler asks of a pass.

    Attributes
    ----------
    asked : Asked
    rows : int64 array
        Places in the packed pass whose tokens are to be predicted.
    borders, counts : list of int
        Where the rows of each sequence begin, and its number N of active positions; for a rule.
    noise : int64 array [R, 3] or None
        The table of a `Noise` for these rows, where tokens are sampled.
    twins : int64 array or None
        The places of the same tokens in the twins, with guidance.
    """

    asked: Asked
    rows: np.ndarray
    borders: list[int]
    counts: list[int]
    noise: np.ndarray | None
    twins: np.ndarray | None = None


class Rows(NamedTuple):
    """The rows of a question on the device."""

    places: Tensor
    cu_rows: Tensor
    n_active: Tensor
    noise: Tensor | None
    twins: Tensor | None = None


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
    filter : Filter or None
        Which tokens may be drawn.
    cfg_scale : float
        Scale of the guidance, 0 for none.
    logprobs : bool
        Whether the log-odds of what a rule commits are computed too.
    progress : Progress
        Its clock counts the time, and an LM head that raises keeps it.
    workspace : Workspace
    """

    lm_head: LmHead
    shifted: bool
    vocabulary: Vocabulary
    temperature: float
    seeds: Sequence[int]
    filter: Filter | None
    cfg_scale: float
    logprobs: bool
    progress: Progress
    workspace: Workspace

    @cached_property
    def stops(self) -> frozenset[int]:
        return frozenset(self.vocabulary.stop_ids)

    @cached_property
    def on_host(self) -> Vocabulary:
        """The vocabulary for a rule that is applied on the host, copied there once."""
        return self.vocabulary.to("cpu")

    @cached_property
    def weight(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight and bias of an LM head that is nothing else, for the fused operations; else None."""
        head = self.lm_head
        if is_plain_linear(head):
            weight, bias = head.weight, head.bias
        elif isinstance(head, Tensor):
            weight, bias = head, None
        else:
            return None
        plain = type(weight) in (Tensor, nn.Parameter) and weight.dtype in FUSED  # a subclass may be quantised
        return (weight, bias) if plain else None

    @property
    def needs_logits(self) -> bool:
        """Whether there are logits between the LM head and the statistics."""
        return self.filter is not None or (self.weight is None and self.shards is None)

    @cached_property
    def shards(self) -> Callable[..., TokenStats] | None:
        """The statistics of an LM head whose vocabulary is split over ranks, without logits; else None."""
        head = self.lm_head
        if not isinstance(head, ShardedHead) or head.weight.dtype not in FUSED:
            return None
        return partial(head.stats, allowed=head.allowed(self.vocabulary))

    def noise(self, numbers: Sequence[int], passes: Sequence[int], where: Sequence[np.ndarray]) -> np.ndarray | None:
        """The table of the noise at these positions of sequences, each in the given one of its passes."""
        if self.temperature == 0:
            return None
        each = [len(positions) for positions in where]
        seeds, own_passes = (
            torch.from_numpy(np.repeat(np.array(values, dtype=np.int64), each))
            for values in ([signed(self.seeds[number]) for number in numbers], passes)
        )
        positions = torch.from_numpy(np.concatenate(where).astype(np.int64))
        table: np.ndarray = Noise(float(self.temperature), seeds, positions, own_passes).table.numpy()
        return table

    def answer(self, hidden: Tensor, rows: Rows, asked: Asked) -> tuple[Tensor, ...]:
        """What a `Question` asks, on the device.

        Statistics: token, margin, largest logit and log-odds of every row, and the entropy if that is asked. For a
        rule: the lengths, then token, margin and largest logit of every row, and the log-odds if there are logprobs.
        Distributions: the log-probabilities, float32 [R, V].
        """
        chosen = self._chosen(hidden, rows)
        if asked.distributions:
            return (self._log_probs(chosen),)
        sampling = None if rows.noise is None else Noise.of(rows.noise)
        if asked.rule is None:
            stats = self._stats(chosen, noise=sampling, entropy=asked.entropy)
            return given(stats.tokens, stats.margins, stats.top1, stats.log_odds, stats.entropy)
        lengths = rows.cu_rows, rows.n_active
        found = self._commit(chosen, *lengths, rule=asked.rule, noise=sampling, log_odds=self.logprobs)
        return given(found.lengths, found.tokens, found.margins, found.top1, found.log_odds)

    def _chosen(self, hidden: Tensor, rows: Rows) -> Tensor:
        """The hidden states that predict these rows, guided; or their logits, where there are any."""
        places = [rows.places] if rows.twins is None else [rows.places, rows.twins]
        found = [hidden.index_select(0, each - int(self.shifted)) for each in places]
        if self.needs_logits:
            found = [self._logits(each) for each in found]
        return found[0] if rows.twins is None else guided(found[0], found[1], self.cfg_scale)

    def _stats(self, hidden: Tensor, **options: Any) -> TokenStats:
        if self.filter is not None and options["noise"] is not None:
            return self.filter.stats(hidden, self.vocabulary, workspace=self.workspace, **options)
        if self.needs_logits:
            return token_stats(hidden, vocabulary=self.vocabulary, workspace=self.workspace, **options)
        if self.shards is not None:
            with self.progress.kept("the LM head"):
                return self.shards(hidden, **options)
        assert self.weight is not None
        with self.progress.kept("the LM head"):
            weight, bias = self.weight
            return linear_token_stats(hidden, weight, bias=bias, vocabulary=self.vocabulary, **options)

    def _commit(self, hidden: Tensor, *lengths: Tensor, **options: Any) -> Commit:
        if self.shards is not None or self.filter is not None:
            return self._commit_by_stats(hidden, *lengths, **options)
        if self.weight is None:
            options = {"vocabulary": self.vocabulary, "workspace": self.workspace, **options}
            return commit_prefix(hidden, *lengths, **options)
        with self.progress.kept("the LM head"):
            weight, bias = self.weight
            return linear_commit_prefix(hidden, weight, *lengths, bias=bias, vocabulary=self.vocabulary, **options)

    def _commit_by_stats(
        self, hidden: Tensor, *lengths: Tensor, rule: PrefixRule, noise: Noise | None, log_odds: bool
    ) -> Commit:
        """The rule on statistics, merged from several ranks or of filtered tokens."""
        stats = self._stats(hidden, noise=noise)
        cu_rows, n_active = lengths
        rows = (stats.margins, stats.tokens, cu_rows, n_active)
        found, finished = select_prefix(*rows, rule=rule, vocabulary=self.vocabulary)
        odds = stats.log_odds if log_odds else None
        return Commit(found, finished, stats.tokens, stats.margins, stats.top1, odds)

    def _log_probs(self, chosen: Tensor) -> Tensor:
        logits = (chosen if self.needs_logits else self._logits(chosen)).float()
        if (hidden_ids := self.vocabulary.suppressed) is not None:
            logits = logits.index_fill(-1, hidden_ids.long(), -torch.inf)
        return logits.log_softmax(-1)

    @torch.no_grad()
    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V], for an LM head that is not a plain weight, and for whole distributions."""
        with self.progress.kept("the LM head"):
            logits = F.linear(hidden, self.lm_head) if isinstance(self.lm_head, Tensor) else self.lm_head(hidden)
        return logits.float() if logits.dtype == torch.float64 else logits


def is_plain_linear(head: object) -> TypeGuard[nn.Linear]:
    """Whether a call of the head is its weight and bias and nothing else: no hooks, no other forward."""
    return type(head) is nn.Linear and not (head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head))


def signed(seed: int) -> int:
    """The 64 bits of a seed as an int64."""
    return (seed + 2**63) % 2**64 - 2**63


def given(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Those that there are."""
    return tuple(tensor for tensor in tensors if tensor is not None)


def to_host(*tensors: Tensor) -> list[np.ndarray]:
    """Copies that are queued without waiting, and one synchronisation."""
    if tensors[0].device.type != "cuda":
        return [tensor.cpu().numpy() for tensor in tensors]
    copies = [torch.empty_like(t, device="cpu", pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copy.numpy() for copy in copies]

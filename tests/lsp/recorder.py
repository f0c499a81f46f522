"""A model that writes down what the loop asks of it: every pass, and which pass and token wrote each cache slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import lsp
from lsp.decoding import Progress
from lsp.decoding.canvas import Canvas
from lsp_kernels import PrefixCache, PrefixRule

SCHEDULERS = {
    "paper": lsp.LongestStablePrefix(PrefixRule(0.1, 0.3)),
    "guarded": lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=0.5, no_delimiter="keep")),
    "islands": lsp.LongestStablePrefix(PrefixRule(floor=2.0, beta=1.0, snap=False), islands=3.0),
    "fixed": lsp.FixedPrefix(2),
    "topk": lsp.TopK(2),
    "threshold": lsp.Threshold(0.6),
    "scattered": lsp.ScatteredMargin(PrefixRule(0.1, 0.2)),
    "prophet": lsp.Prophet((7.5, 5.0, 4.0)),
    "less": lsp.Less(0.5),
    "klass": lsp.Klass(0.5, 2.0),
    "entropy": lsp.EntropyBound(0.5),
}
"""One scheduler of each kind, with parameters that random models reach."""


@dataclass
class Segment:
    """The part of a pass that belongs to one sequence."""

    tokens: list[int]
    positions: list[int]
    append: int
    held: int
    logits: Tensor


@dataclass
class Recorder:
    """Any model of the protocol, with the passes that it made: a list of segments each."""

    inner: object
    passes: list[list[Segment]] = field(default_factory=list)
    slots: list[list[dict[int, tuple[int, int]]]] = field(default_factory=list)
    cache: PrefixCache | None = None

    def __post_init__(self) -> None:
        self.config, self.device, self.lm_head = self.inner.config, self.inner.device, self.inner.lm_head
        self.cached = self.inner.cached

    def new_cache(self, batch: int, capacity: int) -> PrefixCache:
        self.cache = self.inner.new_cache(batch, capacity)
        for tensor in (*self.cache.k, *self.cache.v):  # a slot that is read before it is written shows
            tensor.fill_(torch.nan if tensor.is_floating_point() else -1)
        return self.cache

    def __call__(
        self, tokens: Tensor, positions: Tensor, cu_seqlens: Tensor, cache: PrefixCache, append: Sequence[int]
    ) -> Tensor:
        assert cache is self.cache
        held = cache.lengths.tolist()
        hidden = self.inner(tokens, positions, cu_seqlens, cache, append)
        logits = self.inner.lm_head(hidden)
        slots = [dict(row) for row in self.slots[-1]] if self.slots else [{} for _ in held]
        segments = []
        for b, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            ids, where = tokens[begin:end].tolist(), positions[begin:end].tolist()
            slots[b] = {slot: by for slot, by in slots[b].items() if slot < held[b]}
            slots[b] |= {held[b] + i: (len(self.passes), ids[i]) for i in range(append[b])}
            front = list(range(held[b], held[b] + append[b]))
            assert where[: append[b]] == front, "a slot is not the position of its token"
            segments.append(Segment(ids, where, append[b], held[b], logits[begin:end].clone()))
        self.passes.append(segments)
        self.slots.append(slots)
        return hidden


def scripted(rows: Callable[[list[int]], np.ndarray], size: int, mask: int, **config: object) -> Recorder:
    """A recorder around a function from ids to rows of logits."""

    def forward(input_ids: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(rows(input_ids[0].tolist())))[None]

    return Recorder(lsp.adapt(forward, vocab_size=size, mask_id=mask, **config))


def commits(canvas: Canvas) -> list[int]:
    """How many tokens each pass committed, also those that a stop dropped later."""
    return np.bincount(canvas.committed_in[canvas.committed_in >= 0], minlength=canvas.passes).tolist()


def last(states: Iterable[Progress]) -> Progress:
    """The state at the end of a run."""
    return deque(states, maxlen=1)[0]

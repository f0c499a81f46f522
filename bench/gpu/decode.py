"""Whole decodes of a few passes on models with random weights: the loop with all that it does on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import lsp
from bench.gpu.case import OURS, Case, Contender, Plan
from bench.gpu.model import random_model
from bench.gpu.shapes import Shapes
from bench.support import vocabulary_of
from lsp.decoding import Chosen, Step
from lsp.models.config import ModelConfig
from lsp.models.transformer import Transformer
from lsp_kernels import PrefixCache, PrefixRule, reference

RULE = PrefixRule(1.0, 1.0, snap=False)  # scores every mask
FACTOR, LEAST = 3.0, 0.01  # margins may differ so many times as much as with torch's attention, and a little


def plans(shapes: Shapes, layers: int) -> Iterator[Plan]:
    for shape, config in shapes.models.items():
        for batch in shapes.batches:
            passes = -(-shapes.new // shapes.step)
            name = (
                f"{shape} with {layers} layers, batch {batch}, {shapes.prompt} + {shapes.new} tokens, {passes} passes"
            )
            facts = {"model": shape, "layers": layers, "of": config.n_layers, "batch": batch, "dtype": "bfloat16"}
            facts |= {"prompt": shapes.prompt, "new": shapes.new, "passes": passes}
            make = partial(decode_case, config, layers, batch, shapes.prompt, shapes.new, shapes.step)
            yield Plan("a whole decode", name, facts, make)


class Dictated:
    """Scores all masks and commits the first ones, but with given tokens, so that every run makes the same passes."""

    def __init__(self, tokens: np.ndarray, step: int) -> None:
        self.tokens, self.step = tokens, step
        self.margins: list[np.ndarray] = []

    def __call__(self, step: Step) -> list[Chosen]:
        out = []
        for canvas, found in zip(step.canvases, step.commit(RULE), strict=True):
            where = canvas.masks[: self.step]
            self.margins.append(found.margins[: len(where)])
            out.append((where, self.tokens[where]))
        return out


Attention = Callable[..., Tensor]


def by_torch(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
    """The definition's append, with torch's own attention: as exact as 16 bits usually are."""
    k_cache, v_cache, cu_seqlens, prefixes = rest[:4]
    seen = zip(pairwise(cu_seqlens.tolist()), prefixes.tolist(), k_cache, v_cache, strict=True)
    out = []
    for (begin, end), prefix, *rows in seen:
        pairs = zip(rows, (k[begin:end], v[begin:end]), strict=True)
        keys = (torch.cat([row[:, :prefix], new.transpose(0, 1)], dim=1)[None] for row, new in pairs)
        grouped = q.size(1) != k.size(1)
        found = F.scaled_dot_product_attention(q[begin:end].transpose(0, 1)[None], *keys, enable_gqa=grouped)
        out.append(found[0].transpose(0, 1))
    reference.suffix_attention(q, k, v, *rest, **options)
    return torch.cat(out)


def attending_by(attention: Attention, model: Transformer) -> Transformer:
    """The same weights, with caches that attend by another function."""

    class Cache(PrefixCache):
        def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
            cu_seqlens, prefixes, appends, slots = self._begun("attend").tables
            caches = (self.k[layer], self.v[layer])
            out = attention(q, k, v, *caches, cu_seqlens, prefixes, appends, slots=slots, scale=scale)
            self.written(layer)
            return out

    class Other(Transformer):
        def __init__(self) -> None:
            self.__dict__.update(model.__dict__)

        def new_cache(self, batch: int, capacity: int) -> PrefixCache:
            shape = self.held
            size = (shape.n_layers, batch, shape.n_kv_heads, capacity, shape.head_dim)
            return Cache(*size, dtype=self.dtype, device=self.device)

    return Other()


class Work:
    """Prompts, and what is dictated after them."""

    def __init__(self, config: ModelConfig, layers: int, batch: int, prompt: int, new: int, step: int) -> None:
        self.model, self.new, self.step = random_model(config, layers), new, step
        ids = torch.randint(2, config.vocab_size, (batch + 1, prompt + new)).numpy()
        self.prompts, self.dictated = ids[:-1, :prompt].tolist(), ids[-1]
        self.vocabulary = vocabulary_of(config.vocab_size).without_stops().to("cuda")

    def decode(self, **options: object) -> tuple[np.ndarray, Sequence[Sequence[int]]]:
        """The margins of everything that was committed, and the texts."""
        scheduler = Dictated(self.dictated, self.step)
        chosen = lsp.Options(**options)
        state = list(lsp.decode(self.model, self.prompts, self.new, scheduler, self.vocabulary, chosen))[-1]
        return np.concatenate(scheduler.margins), [canvas.tokens.tolist() for canvas in state.canvases]

    def margins_by(self, attention: Attention) -> np.ndarray:
        """The same margins with another attention."""
        served = self.model
        self.model = attending_by(attention, served)
        try:
            return self.decode()[0]
        finally:
            self.model = served


def decode_case(config: ModelConfig, layers: int, batch: int, prompt: int, new: int, step: int) -> Case:
    work = Work(config, layers, batch, prompt, new, step)
    expected = work.margins_by(reference.suffix_attention)
    allowed = FACTOR * distance(work.margins_by(by_torch), expected) + LEAST
    texts = [[*prompt_ids, *work.dictated[prompt:].tolist()] for prompt_ids in work.prompts]

    def complete(found: tuple[np.ndarray, Sequence[Sequence[int]]]) -> str | None:
        return None if list(found[1]) == texts else "texts: not what was dictated"

    def near(found: tuple[np.ndarray, Sequence[Sequence[int]]]) -> str | None:
        error = distance(found[0], expected)
        wrong = f"margins: differ from the reference by {error:.3g} of their size, expected at most {allowed:.3g}"
        return complete(found) if error <= allowed else wrong

    contenders = [
        Contender(OURS, work.decode, near),
        Contender("ours, graphs captured anew", lambda: work.decode(graph=True), near),
        Contender("same passes, cache='none'", lambda: work.decode(cache="none"), complete),
    ]
    return Case(contenders, timing="host")


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - expected).mean() / np.square(expected).mean()))

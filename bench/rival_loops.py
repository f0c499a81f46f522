"""The loops that people run today, with torch's functions alone: LLaDA's, and Fast-dLLM's with either of its caches.

Written from their descriptions. Keys and values are concatenated, torch attends, every position of a pass goes through
the LM head, and a softmax in float64 follows. The sequences of a batch are equally long, so there is no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.gpu.plain import PlainCache, plain_blocks
from bench.support import softmax_confidence
from lsp.decoding.clock import Clock
from lsp.models import Transformer

Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From logits [B, n, V] and the masks that may be written [B, n] to tokens, and which of them to write."""


class Kept(PlainCache):
    """Nothing stands before the pass; the keys and values that it computes are kept."""

    def __init__(self, k: Sequence[Tensor], v: Sequence[Tensor]) -> None:
        super().__init__(k, v)
        self.computed: list[list[Tensor]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch = self.k[layer].size(0)
        self.computed.append([x.reshape(batch, -1, *x.shape[1:]).transpose(1, 2).clone() for x in (k, v)])
        return super().attend(layer, q, k, v)

    def first(self, count: int) -> PlainCache:
        """Those of the first tokens of every sequence."""
        return PlainCache(*([x[:, :, :count] for x in layers] for layers in zip(*self.computed, strict=True)))

    def around(self, begin: int) -> Replaced:
        """All of them; passes over the block that begins here replace its own."""
        k, v = ([x.contiguous() for x in layers] for layers in zip(*self.computed, strict=True))
        return Replaced(k, v, begin)


class Replaced(PlainCache):
    """Keys and values of the whole canvas; a pass writes its own in the place of those that stood there."""

    def __init__(self, k: Sequence[Tensor], v: Sequence[Tensor], begin: int) -> None:
        super().__init__(k, v)
        self.begin = begin

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        held = self.k[layer], self.v[layer]
        queries, *own = (x.unflatten(0, (held[0].size(0), -1)).transpose(1, 2) for x in (q, k, v))  # [B, H, N, D]
        for old, new in zip(held, own, strict=True):
            old[:, :, self.begin : self.begin + new.size(2)] = new
        out = F.scaled_dot_product_attention(queries, *held, enable_gqa=q.size(1) != k.size(1))
        return out.transpose(1, 2).flatten(0, 1)


Cache = TypeVar("Cache", bound=PlainCache)


class Plain:
    """The weights of a model in torch's functions, over a rectangle of tokens."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def empty(self, kind: type[Cache], batch: int) -> Cache:
        config = self.model.config
        empty = torch.zeros(batch, config.n_kv_heads, 0, config.head_dim, dtype=self.model.dtype)
        nothing = [empty] * config.n_layers
        return kind(nothing, nothing)

    @torch.no_grad()
    @plain_blocks()
    def __call__(self, tokens: Tensor, before: PlainCache) -> Tensor:
        """Hidden states [B, n, d] of tokens that stand after those of `before`, or in the place of some of them."""
        begin = before.begin if isinstance(before, Replaced) else before.k[0].size(2)
        positions = torch.arange(tokens.size(1)) + begin
        hidden = self.model.run_layers(tokens.flatten(), positions.repeat(len(tokens)), before)
        return hidden.unflatten(0, tokens.shape)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Of every position; the mask is not predicted."""
        out: Tensor = F.linear(hidden, self.model.lm_head.weight)
        out[..., self.model.config.mask_id] = -torch.inf
        return out


def best(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """LLaDA: the most confident mask of every sequence."""
    tokens, confidence = softmax_confidence(logits)
    where = torch.where(masks, confidence, -torch.inf).argmax(1, keepdim=True)
    return tokens, torch.zeros_like(masks).scatter(1, where, True) & masks


def above(p: float) -> Choose:
    """Fast-dLLM: in every sequence the masks whose confidence reaches p, and always the most confident one."""

    def choose(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        tokens, confidence = softmax_confidence(logits)
        confidence, chosen = torch.where(masks, confidence, -torch.inf), torch.zeros_like(masks)
        for row, sure in enumerate(confidence):
            count = max(1, int((sure >= p).sum()))
            chosen[row, torch.topk(sure, count).indices] = True
        return tokens, chosen & masks

    return choose


def within(f: float) -> Choose:
    """Fast-dLLM: in every sequence the n most confident masks, while the n-th has a confidence of 1 - f / (n + 1).

    At least one; and all, where only the last one has less.
    """

    def choose(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        tokens, confidence = softmax_confidence(logits)
        confidence, chosen = torch.where(masks, confidence, -torch.inf), torch.zeros_like(masks)
        for row, sure in enumerate(confidence):
            left = int(masks[row].sum())
            ranked = sure.topk(left)
            enough = ranked.values >= 1 - f / torch.arange(2, left + 2)
            enough[:1] = True
            count = int(enough.cumprod(0).sum())
            chosen[row, ranked.indices[: left if count == left - 1 else count]] = True
        return tokens, chosen

    return choose


def rival_loop(
    model: Transformer,
    prompts: Tensor,
    new: int,
    choose: Choose,
    clock: Clock,
    *,
    block: int,
    cached: bool,
    dual: bool = False,
) -> Iterator[Tensor]:
    """Fills `new` masks after prompts [B, P], a block after the other; yields all tokens after every pass.

    The first pass of a block goes over everything. With a cache the passes after it go over the block and what follows,
    or over the block alone with the dual cache; without one over everything too. All sequences of the batch stay in a
    block until the last one has filled it.
    """
    plain, mask = Plain(model), model.config.mask_id
    x = F.pad(prompts, (0, new), value=mask)

    def passes() -> Iterator[Tensor]:
        for begin in range(prompts.size(1), x.size(1), block):
            before: PlainCache = plain.empty(Kept if cached else PlainCache, len(x))
            first, last = 0, x.size(1)
            while (x[:, begin : begin + block] == mask).any():
                with clock("model"):
                    hidden = plain(x[:, first:last], before)
                    if isinstance(before, Kept):
                        before = before.around(begin) if dual else before.first(begin)
                with clock("head"):
                    masks = (x == mask)[:, first:last]
                    masks[:, begin + block - first :] = False
                    tokens, chosen = choose(plain.logits(hidden), masks)
                    x[:, first:last][chosen] = tokens[chosen]
                if cached:
                    first, last = begin, begin + block if dual else last
                yield x

    yield from clock.each(passes())

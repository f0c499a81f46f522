"""The work of a whole pass, from the embedding to what is committed: ours, and as it is done without this project."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.gpu.plain import PlainCache, plain_blocks
from bench.roofline.counting import count
from bench.roofline.gpus import Gpu
from bench.roofline.kernels import attention_work, head_work, meta
from bench.roofline.work import Work
from bench.support import softmax_confidence
from lsp.models.config import ModelConfig
from lsp.models.transformer import Transformer


class NoAttention:
    """Takes the place of the cache, where the attention is counted by itself."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.empty_like(q)


@functools.cache
def model_of(config: ModelConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config).to(torch.bfloat16).requires_grad_(False)


def deep(config: ModelConfig, run: Callable[[Transformer], object]) -> list[Work]:
    """The kernels of a pass over all layers: counted with one layer and with two, and the difference for each other."""
    models = [model_of(replace(config, n_layers=n)) for n in (1, 2)]
    one, two = (count(functools.partial(run, model)) for model in models)
    layer = Counter(two) - Counter(one)
    return [*one, *list(layer.elements()) * (config.n_layers - 1)]


def tokens_of(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens and positions."""
    ids = meta(batch * length, dtype=torch.int64)
    return ids, torch.empty_like(ids)


@functools.cache
def without_attention(config: ModelConfig, batch: int, suffix: int) -> list[Work]:
    """The layers, but for their attention."""
    return deep(config, lambda model: model.run_layers(*tokens_of(batch, suffix), NoAttention()))


def our_pass(gpu: Gpu, config: ModelConfig, batch: int, prefix: int, suffix: int) -> list[Work]:
    """All new tokens are masks, and all are scored; nothing is appended."""
    heads = (config.n_heads, config.n_kv_heads, config.head_dim)
    lengths = [prefix] * batch, [suffix] * batch, [0] * batch
    others = without_attention(config, batch, suffix)
    attention = attention_work(gpu, heads, *lengths, capacity=prefix + suffix)
    head = head_work(gpu, batch * suffix, config.d_model, config.vocab_size, batch=batch)
    return [*others, *[attention] * config.n_layers, head]


@functools.cache
def usual_pass(config: ModelConfig, batch: int, prefix: int, suffix: int) -> list[Work]:
    """Torch's functions; keys are concatenated and torch attends; a float64 softmax of all logits."""
    held = (batch, config.n_kv_heads, prefix, config.head_dim)
    keys, values = ([meta(*held, dtype=torch.bfloat16)] * config.n_layers for _ in range(2))
    cache = PlainCache(keys, values)

    def run(model: Transformer) -> None:
        hidden = model.run_layers(*tokens_of(batch, suffix), cache)
        softmax_confidence(F.linear(hidden, model.lm_head.weight))

    with plain_blocks():
        return deep(config, run)


@functools.cache
def uncached_pass(config: ModelConfig, batch: int, prefix: int, suffix: int) -> list[Work]:
    """Prefix and masks in every pass, as LLaDA's own loop has it; only the masks are scored."""
    nothing = meta(batch, config.n_kv_heads, 0, config.head_dim, dtype=torch.bfloat16)
    cache = PlainCache([nothing] * config.n_layers, [nothing] * config.n_layers)

    def run(model: Transformer) -> None:
        hidden = model.run_layers(*tokens_of(batch, prefix + suffix), cache)
        masks = hidden.view(batch, -1, config.d_model)[:, prefix:].flatten(0, 1)
        softmax_confidence(F.linear(masks, model.lm_head.weight))

    with plain_blocks():
        return deep(config, run)

"""The transformer with its blocks compiled by torch, from ``lsp.load(..., compile=True)``.

A block takes the tensors of the cache as arguments, so one graph serves all layers, lengths and batches of several
sequences; a pass of one token and a single sequence have graphs of their own, as torch takes sizes of 1 for constants.
The embedding, the angles and the last norm stay as they are: they run once in a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as shape_config

from lsp.models.config import ModelConfig
from lsp.models.transformer import Block, Transformer, frequencies, rotation
from lsp_kernels import PrefixCache, suffix_attention


def run_block(block: Block, x: Tensor, change: Tensor, cos: Tensor, sin: Tensor, *cache: Any) -> Tensor:
    """A block on `PrefixCache.operands` of its layer."""
    *tables, slots = cache

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = suffix_attention(q, k, v, *tables, slots=slots)
        return out

    out: Tensor = block(x, change, cos, sin, attend)
    return out


class CompiledTransformer(Transformer):
    """A `Transformer` whose blocks torch compiles when they first run, which takes from seconds to a minute."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.run_block: Callable[..., Tensor] = torch.compile(run_block, dynamic=True, fullgraph=True)

    def run_layers(self, tokens: Tensor, positions: Tensor, cache: Any) -> Tensor:
        if not isinstance(cache, PrefixCache):
            raise TypeError(f"Invalid cache: expected a PrefixCache for compiled blocks, got {type(cache).__name__}")
        cos, sin = rotation(positions, frequencies(self.config, positions.device), self.dtype)
        change = self.embedding(tokens)
        x = torch.zeros_like(change)  # so that the first layer is like the others: a residual, and a change of it
        apart = {"use_duck_shape": False}  # sizes that are equal at first are not taken for the same
        with shape_config.patch(apart):  # type: ignore[attr-defined]
            for layer, block in enumerate(self.blocks):
                change = self.run_block(block, x, change, cos, sin, *cache.operands(layer))
                cache.written(layer)
        out: Tensor = self.norm(x, change)
        return out

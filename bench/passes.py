"""A pass of a random model over masks after a frozen prefix, and the shapes that are measured."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.sizes import sized
from lsp.models import Transformer

PREFIX = sized(512, tiny=24)
SUFFIXES = sized([16, 64, 256], tiny=[16])
SHAPE = sized((2048, 768, 12, 12, 2304), tiny=(500, 64, 2, 2, 96))  # vocabulary, width, layers, heads, MLP
WIDE = sized((2048, 4096, 4, 32, 12288), tiny=(500, 64, 2, 2, 96))  # four layers of LLaDA-8B
LARGE = sized((126464, 1024, 20, 8, 3072), tiny=(1000, 64, 2, 2, 96))  # the same of a checkpoint that is loaded


def masked_ids(length: int, masks: int) -> Tensor:
    """Random ids; the last `masks` are masked."""
    ids = torch.randint(2, SHAPE[0], (length,))
    ids[length - masks :] = 0
    return ids


def a_pass(model: Transformer, tokens: Tensor, prefix: int) -> Callable[[], Tensor]:
    """A pass over the tokens after a frozen prefix; the prefix was frozen by a pass over all tokens."""
    cache = model.new_cache(1, max(prefix, 1))
    positions = torch.arange(len(tokens))
    model(tokens, positions, torch.tensor([0, len(tokens)], dtype=torch.int32), cache, append=[prefix])
    border = torch.tensor([0, len(tokens) - prefix], dtype=torch.int32)
    tokens, positions = tokens[prefix:], positions[prefix:]
    return lambda: model(tokens, positions, border, cache, append=[0])

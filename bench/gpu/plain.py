"""A pass of the model as it is done without this project: keys are concatenated, torch attends; no fused head."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from lsp.models import transformer
from lsp.models.transformer import Transformer, frequencies, rotation
from lsp_kernels import PrefixCache


@contextmanager
def plain_blocks() -> Iterator[None]:
    """Inside it the layers use torch's functions in place of this project's operations of a block."""
    with mock.patch.multiple(transformer, add_norm=plain_add_norm, rotate_=plain_rotate_, silu_mul=plain_silu_mul):
        yield


def plain_add_norm(x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> Tensor:
    return F.rms_norm(x if residual is None else residual.add_(x), x.shape[-1:], weight, eps)


def plain_rotate_(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    cos, sin = cos[:, None].to(q.dtype), sin[:, None].to(q.dtype)  # as usual code has it
    for x, weight in ((q, q_norm), (k, k_norm)):
        a, b = (x if weight is None else F.rms_norm(x, x.shape[-1:], weight, eps)).chunk(2, dim=-1)
        x.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1))


def plain_silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class PlainCache:
    """K and V of frozen prefixes of one length, concatenated with those of the pass in every layer."""

    def __init__(self, k: Sequence[Tensor], v: Sequence[Tensor]) -> None:
        self.k, self.v = k, v

    @classmethod
    def of(cls, cache: PrefixCache, prefix: int) -> PlainCache:
        """A copy of the first tokens of every row."""
        return cls(*([layer[:, :, :prefix].clone() for layer in layers] for layers in (cache.k, cache.v)))

    @classmethod
    def empty(cls, cache: PrefixCache) -> PlainCache:
        return cls.of(cache, 0)

    def float(self) -> PlainCache:
        return PlainCache([x.float() for x in self.k], [x.float() for x in self.v])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        held = (self.k[layer], self.v[layer])
        batch = held[0].size(0)

        def heads_first(x: Tensor) -> Tensor:
            return x.view(batch, -1, *x.shape[1:]).transpose(1, 2)  # [B, H, N, D]

        keys = (torch.cat([old, heads_first(new)], dim=2) for old, new in zip(held, (k, v), strict=True))
        grouped = q.size(1) != k.size(1)
        out = F.scaled_dot_product_attention(heads_first(q), *keys, enable_gqa=grouped)
        return out.transpose(1, 2).flatten(0, 1)


@plain_blocks()
def exact_pass(model: Transformer, tokens: Tensor, positions: Tensor, cache: PlainCache) -> Tensor:
    """The same pass in float32, with one layer in float32 at a time, so that any model that fits can be checked."""
    wide = cache.float()
    cos, sin = rotation(positions, frequencies(model.config, positions.device), torch.float32)
    x, change = model.embedding(tokens).float(), None
    for layer, block in enumerate(model.blocks):

        def attend(q: Tensor, k: Tensor, v: Tensor, layer: int = layer) -> Tensor:
            return wide.attend(layer, q, k, v)

        change = in_float32(block)(x, change, cos, sin, attend)
    return in_float32(model.norm)(x, change)


def in_float32(module: torch.nn.Module) -> torch.nn.Module:
    """A copy whose parameters are float32."""
    wide = copy.copy(module)
    wide._parameters = {
        name: None if each is None else torch.nn.Parameter(each.float(), requires_grad=False)
        for name, each in module._parameters.items()
    }
    wide._modules = {name: None if each is None else in_float32(each) for name, each in module._modules.items()}
    return wide

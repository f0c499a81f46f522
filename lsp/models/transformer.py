"""The one transformer of all models: packed, bidirectional, on the contiguous prefix cache. Inference only.

RMSNorm, for the heads of Q and K too where a model has that, rotary embeddings (rotate-half, in float32), SwiGLU,
grouped K/V heads. Sequences lie end to end, so there is no padding and no mask. Q, K and V are one product, and so are
gate and up: loading stacks their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from lsp.models.config import ModelConfig
from lsp.models.head import head as deprecated_head
from lsp.models.linear import Int8Linear, Linear
from lsp_kernels import PrefixCache, add_norm, rotate_, silu_mul
from lsp_kernels.errors import check_tensor, fail_dtype, fail_shape, values_are_free


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, change: Tensor | None = None) -> Tensor:
        """The norm of x; with a change, x += change in place first."""
        if change is None:
            return add_norm(x, self.weight, eps=self.eps)
        return add_norm(change, self.weight, eps=self.eps, residual=x)


def frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """How far every pair of a head turns from one token to the next: float32 [D / 2]."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
    plain = 1.0 / config.rope_theta ** (steps / config.head_dim)
    if (scaling := config.rope_scaling) is None:
        return plain
    waves = 2 * math.pi / plain  # in tokens
    fast = ((scaling.original_length / waves - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return (1 - fast) * plain / scaling.factor + fast * plain


def rotation(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, D / 2] of every token's angles, in float32 as the models were trained with."""
    angles = positions.float()[:, None] * frequencies
    exact = torch.promote_types(dtype, torch.float32)
    return angles.cos().to(exact), angles.sin().to(exact)


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size, heads = config.d_model, (config.n_heads, config.n_kv_heads)
        self.heads, self.head_dim = heads, config.head_dim
        self.attn_norm = RMSNorm(size, config.norm_eps)
        self.qkv = Linear(size, (heads[0] + 2 * heads[1]) * self.head_dim, bias=config.qkv_bias)
        self.q_norm, self.k_norm = (
            RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None for _ in range(2)
        )
        self.out = Linear(heads[0] * self.head_dim, size, bias=False)
        self.mlp_norm = RMSNorm(size, config.norm_eps)
        self.gate_up = Linear(size, 2 * config.mlp_size, bias=False)
        self.down = Linear(config.mlp_size, size, bias=False)

    def forward(
        self,
        x: Tensor,
        change: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Adds two changes to the residual x, in place: that of the layer before, if there is one, and the attention's.

        Returns the change of the MLP, which the next norm adds: so every addition is one launch with its norm.
        """
        n_heads, n_kv_heads = self.heads
        qkv = self.qkv(self.attn_norm(x, change)).view(len(x), -1, self.head_dim)
        q, k, v = qkv.split([n_heads, n_kv_heads, n_kv_heads], dim=1)  # views
        if self.q_norm is not None and self.k_norm is not None:
            norms = {"q_norm": self.q_norm.weight, "k_norm": self.k_norm.weight}
            rotate_(q, k, cos, sin, **norms, eps=self.q_norm.eps)
        else:
            rotate_(q, k, cos, sin)
        attended = self.out(attend(q, k, v).flatten(1))
        out: Tensor = self.down(silu_mul(self.gate_up(self.mlp_norm(x, attended))))
        return out


class Attends(Protocol):
    """What a pass asks of a `PrefixCache`."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class Transformer(nn.Module):
    """A packed bidirectional transformer with an LM head; `lsp.load` fills one from a public checkpoint.

    Parameters
    ----------
    config : ModelConfig

    Examples
    --------
    >>> import torch, lsp
    >>> model = lsp.load("tiny")
    >>> cache = model.new_cache(batch=1, capacity=64)
    >>> border = torch.tensor([0, 5], dtype=torch.int32)
    >>> hidden = model(torch.tensor([20, 21, 22, 0, 0]), torch.arange(5), border, cache, append=[3])
    >>> cache.lengths, model.lm_head(hidden[3:5]).shape
    (tensor([3], dtype=torch.int32), torch.Size([2, 241]))
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = self.held = (
            config  # `held` is the shape of the parameters here, which may be a share of the model
        )
        self.source: Path | None = None  # the folder that it was loaded from
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.tie()

    def quantise(self) -> None:
        """Makes room for the weights of the blocks in int8. Their values come from `Int8Linear.fill`."""
        for block in self.blocks:
            for name in ("qkv", "out", "gate_up", "down"):
                setattr(block, name, Int8Linear(getattr(block, name)))

    def tie(self) -> None:
        """Makes the LM head the embedding, where the config says so."""
        if self.config.tied:
            self.lm_head.weight = self.embedding.weight

    @torch.no_grad()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        cache: PrefixCache | None = None,
        append: Sequence[int] | None = None,
    ) -> Tensor:
        """One pass: final hidden states of packed tokens, which see the frozen prefix of their sequence and each other.

        Parameters
        ----------
        tokens, positions : Tensor, int64 [T]
            The tokens of all sequences, end to end, and where each stands in its own sequence.
        cu_seqlens : Tensor, int32 [B + 1]
            The borders of the sequences. A finished sequence is empty. Tokens past the last border belong to nobody.
        cache : PrefixCache, optional
            The frozen prefixes, from `new_cache`. Without one there are none.
        append : sequence of int, optional
            How many tokens at the left end of each sequence are frozen by this pass. By default none.

        Returns
        -------
        Tensor [T, d_model]
            For `lm_head`.
        """
        check_pass(tokens, positions, cu_seqlens, self.config.vocab_size, self.device)
        batch = cu_seqlens.size(0) - 1
        cache = self.new_cache(batch, 0) if cache is None else cache
        cache.begin(cu_seqlens, [0] * batch if append is None else append)
        hidden = self.run_layers(tokens, positions, cache)
        cache.advance()
        return hidden

    def run_layers(self, tokens: Tensor, positions: Tensor, cache: Attends) -> Tensor:
        """The pass itself, between `begin` and `advance` of the cache. It reads no values, so it can be captured."""
        cos, sin = rotation(positions, frequencies(self.config, positions.device), self.dtype)
        x, change = self.embedding(tokens), None
        for layer, block in enumerate(self.blocks):
            change = block(x, change, cos, sin, partial(cache.attend, layer))
        out: Tensor = self.norm(x, change)
        return out

    head = deprecated_head
    cached = True

    def new_cache(self, batch: int, capacity: int) -> PrefixCache:
        """An empty cache for this many sequences whose frozen prefixes have up to `capacity` tokens."""
        shape = self.held
        return PrefixCache(
            shape.n_layers, batch, shape.n_kv_heads, capacity, shape.head_dim, dtype=self.dtype, device=self.device
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device


def check_pass(tokens: Tensor, positions: Tensor, cu_seqlens: Tensor, vocab_size: int, device: torch.device) -> None:
    for name, tensor in (("tokens", tokens), ("positions", positions), ("cu_seqlens", cu_seqlens)):
        check_tensor(name, tensor)
        if tensor.device != device:
            raise ValueError(f"Invalid device of {name}: expected {device} as the model, got {tensor.device}")
    if tokens.dim() != 1:
        fail_shape("tokens", "[T], the tokens of all sequences end to end", tokens)
    if positions.shape != tokens.shape:
        fail_shape("positions", f"{list(tokens.shape)} as the tokens", positions)
    for name, tensor in (("tokens", tokens), ("positions", positions)):
        if tensor.dtype != torch.int64:
            fail_dtype(name, "int64", tensor)
    if cu_seqlens.dim() != 1 or cu_seqlens.size(0) < 2:
        fail_shape("cu_seqlens", "[B + 1]", cu_seqlens)
    if tokens.numel() and values_are_free(tokens):
        least, most = (int(x) for x in tokens.aminmax())
        if least < 0 or most >= vocab_size:
            wrong = least if least < 0 else most
            raise ValueError(f"Invalid tokens: expected ids from 0 to {vocab_size - 1}, got {wrong}")
        if int(positions.min()) < 0:
            raise ValueError(f"Invalid positions: expected 0 or more, got {int(positions.min())}")

"""What a pass costs by count, on one process or on several that hold the model together: nothing here is measured.

``python -m lsp.models.costs`` prints the tables of docs/scale.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from lsp.models.config import ModelConfig
from lsp.models.sharding import Share
from lsp.models.transformer import Transformer
from lsp_kernels import PrefixCache
from lsp_kernels.errors import as_integer

SHAPES = {
    "LLaDA-8B": ModelConfig(
        vocab_size=126464,
        d_model=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=32,
        head_dim=128,
        mlp_size=12288,
        max_length=4096,
        rope_theta=500000.0,
        norm_eps=1e-5,
    ),
    "Dream-7B": ModelConfig(
        vocab_size=152064,
        d_model=3584,
        n_layers=28,
        n_heads=28,
        n_kv_heads=4,
        head_dim=128,
        mlp_size=18944,
        max_length=131072,
        rope_theta=1000000.0,
        norm_eps=1e-6,
        qkv_bias=True,
        shifted=True,
    ),
}
"""The shapes of the published models."""

STATISTICS = {"plain": 20, "noise": 4, "entropy": 4}
"""Bytes of a row's statistics: token, two logits and log-odds; more with noise and with an entropy."""


class PassCost(NamedTuple):
    """Bytes of a pass on one of the ranks that hold a model, the one with the largest share.

    Attributes
    ----------
    held, read : int
        Weights in memory, and those that a pass reads: all but the embedding, of which it reads a row per token.
    cache : int
        K and V of the frozen prefixes, which a pass reads once.
    calls : int
        All-reduces.
    all_reduce, all_gather : int
        What a rank puts into all of them, and into the all-gather of the statistics.
    sent : int
        What a rank sends for both, round a ring.
    """

    held: int
    read: int
    cache: int
    calls: int
    all_reduce: int
    all_gather: int
    sent: int


def pass_cost(
    config: ModelConfig,
    *,
    ranks: int = 1,
    tokens: int,
    rows: int,
    prefix: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    noise: bool = False,
    entropy: bool = False,
) -> PassCost:
    """What a pass over `tokens` tokens after `prefix` frozen ones costs, of which `rows` are scored at once.

    Examples
    --------
    >>> import torch
    >>> from lsp.models.costs import SHAPES, pass_cost
    >>> cost = pass_cost(SHAPES["LLaDA-8B"], ranks=2, tokens=64, rows=64, prefix=1024)
    >>> cost.calls, cost.all_reduce // cost.calls, cost.all_gather
    (65, 524288, 1280)
    """
    for name, value in (("tokens", tokens), ("rows", rows), ("prefix", prefix)):
        as_integer(name, value, 0)
    share = Share(config, as_integer("ranks", ranks, 1) - 1, ranks)  # the last one has what does not divide
    held = share.config
    with torch.device("meta"):
        model = Transformer(held).to(dtype)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    table = 0 if config.tied else model.embedding.weight.nbytes
    cache = PrefixCache.bytes_needed(held.n_layers, 1, held.n_kv_heads, prefix, held.head_dim, dtype=dtype)
    calls = 2 * config.n_layers + 1 if ranks > 1 else 0
    reduced = calls * tokens * config.d_model * dtype.itemsize
    row = STATISTICS["plain"] + noise * STATISTICS["noise"] + entropy * STATISTICS["entropy"]
    gathered = rows * row if ranks > 1 else 0
    sent = 2 * reduced * (ranks - 1) // ranks + gathered * (ranks - 1)
    return PassCost(weights, weights - table, cache, calls, reduced, gathered, sent)


def table(name: str, *, tokens: int = 64, prefix: int = 1024, ranks: tuple[int, ...] = (1, 2, 4, 8)) -> Iterator[str]:
    """The lines of a Markdown table for one of `SHAPES` in bfloat16, every token scored."""
    config = SHAPES[name]
    heads = ("GPUs", "weights held", "weights read", "K/V read", "collectives", "sent per layer", "sent per pass")
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for size in ranks:
        try:
            cost = pass_cost(config, ranks=size, tokens=tokens, rows=tokens, prefix=prefix)
        except ValueError as error:
            cells = [f"refused: {str(error).removeprefix('Invalid ')}", *[""] * (len(heads) - 2)]
        else:
            layer = 2 * 2 * tokens * config.d_model * torch.bfloat16.itemsize * (size - 1) // size
            sizes = (cost.held, cost.read, cost.cache)
            collectives = cost.calls + 1 if cost.calls else 0
            cells = [*(in_words(n) for n in sizes), str(collectives), in_words(layer), in_words(cost.sent)]
        yield f"| {size} | " + " | ".join(cells) + " |"


def in_words(nbytes: int) -> str:
    """A number of bytes in GB, MB or KB, of which each is 1000 of the next."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return str(nbytes)


if __name__ == "__main__":
    for shape in SHAPES:
        print(f"{shape}:\n")
        print("\n".join(table(shape)) + "\n")

"""Counted work: floating-point operations of a pass, from shapes alone."""

from __future__ import annotations

from lsp.models.config import ModelConfig


def pass_flops(config: ModelConfig, tokens: int, prefix: int, scored: int) -> int:
    """Multiplications and additions of a pass over `tokens` tokens after a frozen prefix, with `scored` LM head rows.

    Examples
    --------
    >>> import lsp
    >>> config = lsp.load("tiny").config
    >>> pass_flops(config, tokens=100, prefix=0, scored=10) > pass_flops(config, tokens=10, prefix=90, scored=10)
    True
    """
    width, heads = config.d_model, (config.n_heads + config.n_kv_heads) * config.head_dim
    weights = 2 * width * heads + 3 * width * config.mlp_size  # q and out, k and v; gate, up and down
    attention = 2 * config.n_heads * config.head_dim * (prefix + tokens)  # scores, and values added up
    return 2 * (config.n_layers * tokens * (weights + attention) + scored * width * config.vocab_size)

"""Masked models in the layout of Llama, which Qwen and Dream share: what their configs say, and the tensor names.

``a2d-llama`` is what the dllm project makes of an autoregressive Llama: attention in both directions, logits where they
belong. A config with ``llama`` itself says neither, so `lsp.load` has to be told; so it is with Qwen's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsp.models.config import Family, ModelConfig
from lsp.models.keys import Keys

LAYER = "model.layers.{i}."
ATTENTION = LAYER + "self_attn."
TENSORS = {
    "embedding.weight": ("model.embed_tokens.weight",),
    "blocks.{i}.attn_norm.weight": (LAYER + "input_layernorm.weight",),
    "blocks.{i}.qkv.weight": tuple(f"{ATTENTION}{name}_proj.weight" for name in "qkv"),
    "blocks.{i}.qkv.bias": tuple(f"{ATTENTION}{name}_proj.bias" for name in "qkv"),
    "blocks.{i}.q_norm.weight": (ATTENTION + "q_norm.weight",),
    "blocks.{i}.k_norm.weight": (ATTENTION + "k_norm.weight",),
    "blocks.{i}.out.weight": (ATTENTION + "o_proj.weight",),
    "blocks.{i}.mlp_norm.weight": (LAYER + "post_attention_layernorm.weight",),
    "blocks.{i}.gate_up.weight": (LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "blocks.{i}.down.weight": (LAYER + "mlp.down_proj.weight",),
    "norm.weight": ("model.norm.weight",),
    "lm_head.weight": ("lm_head.weight",),
}


def read(public: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(public, "pretraining_tp")  # how the products were split in training
    keys.only("attention_bias", False, None, absent=False)
    keys.only("mlp_bias", False, None, absent=False)
    return read_layout(keys, max_length=2048, head_dim=None, scaled_rope=("llama3",))


def read_layout(
    keys: Keys, *, max_length: int, head_dim: int | None, scaled_rope: tuple[str, ...] = (), **more: Any
) -> ModelConfig:
    """What all configs of this layout say, and `more` of what the family is known for.

    `max_length` and `head_dim` are what the public class takes when the config has no such key; without a `head_dim`
    heads divide the hidden size.
    """
    keys.only("hidden_act", "silu", absent="silu")
    d_model, n_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if keys.public.get("head_dim") is None and head_dim is None:
        if d_model % n_heads:
            keys.fail("hidden_size", f"a multiple of num_attention_heads = {n_heads}")
        head_dim = d_model // n_heads
    theta, scaling = keys.rope(10000.0, *scaled_rope)
    config = ModelConfig(
        vocab_size=keys.integer("vocab_size"),
        d_model=d_model,
        n_layers=keys.integer("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=keys.integer("num_key_value_heads", n_heads),
        head_dim=keys.integer("head_dim", head_dim),
        mlp_size=keys.integer("intermediate_size"),
        max_length=keys.integer("max_position_embeddings", max_length),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        mask_id=keys.token("mask_token_id"),
        stop_ids=keys.tokens("eos_token_id"),
        tied=keys.flag("tie_word_embeddings", False),
        public=keys.public,
        **more,
    )
    keys.close()
    return config


LLAMA = Family("llama", read, TENSORS, says_shifted=False)
A2D_LLAMA = Family("a2d-llama", read, TENSORS)

"""Dream-7B (``model_type: Dream``): the layout of Qwen2.5, grouped K/V heads, biases on Q, K and V, shifted logits."""

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
    "blocks.{i}.out.weight": (ATTENTION + "o_proj.weight",),
    "blocks.{i}.mlp_norm.weight": (LAYER + "post_attention_layernorm.weight",),
    "blocks.{i}.gate_up.weight": (LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "blocks.{i}.down.weight": (LAYER + "mlp.down_proj.weight",),
    "norm.weight": ("model.norm.weight",),
    "lm_head.weight": ("lm_head.weight",),
}


def read(public: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(public)
    keys.only("hidden_act", "silu", absent="silu")
    d_model, n_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if d_model % n_heads:
        keys.fail("hidden_size", f"a multiple of num_attention_heads = {n_heads}")
    config = ModelConfig(
        vocab_size=keys.integer("vocab_size"),
        d_model=d_model,
        n_layers=keys.integer("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=keys.integer("num_key_value_heads", n_heads),
        head_dim=d_model // n_heads,
        mlp_size=keys.integer("intermediate_size"),
        max_length=keys.integer("max_position_embeddings", 32768),
        rope_theta=keys.rope_theta(10000.0),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        mask_id=keys.token("mask_token_id"),
        stop_ids=keys.tokens("eos_token_id"),
        qkv_bias=True,
        tied=keys.flag("tie_word_embeddings", False),
        shifted=True,
        public=public,
    )
    keys.close()
    return config


DREAM = Family("Dream", read, TENSORS)

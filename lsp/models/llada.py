"""LLaDA-8B and LLaDA-1.5 (``model_type: llada``): no biases, full attention heads, logits where they belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsp.models.config import Family, ModelConfig
from lsp.models.keys import Keys

HARMLESS = (
    "alibi_bias_max",
    "attention_layer_norm_with_affine",
    "block_group_size",
    "flash_attention",
    "init_cutoff_factor",
    "init_device",
    "init_fn",
    "init_std",
    "precision",
    "tie_word_embeddings",  # the public class goes by weight_tying
    "train_max_sequence_length",
)
LAYER = "model.transformer.blocks.{i}."
TENSORS = {
    "embedding.weight": ("model.transformer.wte.weight",),
    "blocks.{i}.attn_norm.weight": (LAYER + "attn_norm.weight",),
    "blocks.{i}.qkv.weight": (LAYER + "q_proj.weight", LAYER + "k_proj.weight", LAYER + "v_proj.weight"),
    "blocks.{i}.qkv.bias": (LAYER + "q_proj.bias", LAYER + "k_proj.bias", LAYER + "v_proj.bias"),
    "blocks.{i}.out.weight": (LAYER + "attn_out.weight",),
    "blocks.{i}.mlp_norm.weight": (LAYER + "ff_norm.weight",),
    "blocks.{i}.gate_up.weight": (LAYER + "ff_proj.weight", LAYER + "up_proj.weight"),
    "blocks.{i}.down.weight": (LAYER + "ff_out.weight",),
    "norm.weight": ("model.transformer.ln_f.weight",),
    "lm_head.weight": ("model.transformer.ff_out.weight",),
}


def read(public: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(public, *HARMLESS)
    keys.only("block_type", "llama", absent="sequential")  # an absent key is what the public class makes of it
    keys.only("activation_type", "silu", absent="swiglu")
    keys.only("layer_norm_type", "rms", absent="default")
    keys.only("layer_norm_with_affine", True, absent=True)
    keys.only("rope", True, absent=False)
    keys.only("rope_full_precision", True, absent=True)
    for key in ("include_bias", "bias_for_layer_norm", "input_emb_norm", "scale_logits"):
        keys.only(key, False, None, absent=False)
    d_model, n_heads = keys.integer("d_model"), keys.integer("n_heads")
    if d_model % n_heads:
        keys.fail("d_model", f"a multiple of n_heads = {n_heads}")
    keys.only("multi_query_attention", True, False, None, absent=None)
    config = ModelConfig(
        vocab_size=keys.integer("embedding_size", keys.integer("vocab_size")),
        d_model=d_model,
        n_layers=keys.integer("n_layers"),
        n_heads=n_heads,
        n_kv_heads=keys.integer("n_kv_heads", 1 if public.get("multi_query_attention") else n_heads),
        head_dim=d_model // n_heads,
        mlp_size=keys.integer("mlp_hidden_size", keys.integer("mlp_ratio", 4) * d_model),
        max_length=keys.integer("max_sequence_length", 1024),
        rope_theta=keys.rope_theta(10000.0),
        norm_eps=keys.number("rms_norm_eps", 1e-5),
        mask_id=keys.token("mask_token_id"),
        stop_ids=keys.tokens("eos_token_id"),
        qkv_bias=keys.flag("include_qkv_bias", False),
        tied=keys.flag("weight_tying", True),
        public=public,
    )
    keys.close()
    return config


LLADA = Family("llada", read, TENSORS)

"""LLaDA-8B and LLaDA-1.5 for SGLang: its Llama, whose tokens see the whole block, under LLaDA's public names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.models.llama import LlamaForCausalLM
from torch import Tensor
from transformers import LlamaConfig

from lsp.models import checkpoint
from lsp.models.hub import find
from lsp.models.loading import read_config

__all__ = ["EntryClass", "LLaDAModelLM", "llamas_name"]

OUTER = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}


def llamas_name(name: str) -> str:
    """The name of a public tensor of LLaDA in a Llama."""
    found = re.fullmatch(r"model\.transformer\.(?:blocks\.(\d+)\.)?(\w+)\.weight", name)
    names = INNER if found and found[1] else OUTER
    if found is None or found[2] not in names:
        raise ValueError(f"Invalid tensor: expected one of a LLaDA without biases, got {name!r}")
    where = f"model.layers.{found[1]}." if found[1] else ""
    return f"{where}{names[found[2]]}.weight"


class LLaDAModelLM(LlamaForCausalLM):
    """A Llama without causality; the logits of all positions are returned."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        folder = find(config._name_or_path)  # the file itself: SGLang has added keys to the object
        known = read_config(checkpoint.read_json(folder / checkpoint.CONFIG))  # refuses other mathematics
        if known.qkv_bias:
            raise ValueError("Invalid include_qkv_bias: expected false, got true")
        llama = LlamaConfig(
            vocab_size=known.vocab_size,
            hidden_size=known.d_model,
            intermediate_size=known.mlp_size,
            num_hidden_layers=known.n_layers,
            num_attention_heads=known.n_heads,
            num_key_value_heads=known.n_kv_heads,
            max_position_embeddings=known.max_length,
            rms_norm_eps=known.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": known.rope_theta},
            tie_word_embeddings=known.tied,
        )
        super().__init__(llama, quant_config, prefix)
        self.logits_processor = LogitsProcessor(llama, return_full_logits=True)
        for layer in self.model.layers:
            layer.self_attn.attn.attn_type = AttentionType.ENCODER_ONLY

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Any:
        renamed: Iterator[tuple[str, Tensor]] = ((llamas_name(name), tensor) for name, tensor in weights)
        return super().load_weights(renamed)


EntryClass = LLaDAModelLM

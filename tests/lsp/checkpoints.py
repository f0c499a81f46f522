"""Random checkpoints in the public formats, under the public names, and what they must compute."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.lsp import plain

LLADA = {
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "auto_map": {
        "AutoConfig": "configuration_llada.LLaDAConfig",
        "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
        "AutoModel": "modeling_llada.LLaDAModelLM",
    },
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 64,
    "embedding_dropout": 0.0,
    "embedding_size": 211,
    "eos_token_id": 5,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": 7,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 96,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": 2,
    "n_kv_heads": 2,
    "n_layers": 2,
    "pad_token_id": 5,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "transformers_version": "4.46.3",
    "use_cache": False,
    "vocab_size": 211,
    "weight_tying": False,
}
DREAM = {
    "architectures": ["DreamModel"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_dream.DreamConfig",
        "AutoModel": "modeling_dream.DreamModel",
    },
    "bos_token_id": 5,
    "eos_token_id": 5,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 160,
    "mask_token_id": 7,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "Dream",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 5,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.46.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 223,
}

QWEN3 = {
    "architectures": ["A2DQwen3LMHeadModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "modeling_qwen3.A2DQwen3Config",
        "AutoModelForMaskedLM": "modeling_qwen3.A2DQwen3LMHeadModel",
    },
    "bos_token_id": 5,
    "dtype": "float32",
    "eos_token_id": 5,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 96,
    "initializer_range": 0.02,
    "intermediate_size": 160,
    "layer_types": ["full_attention", "full_attention"],
    "mask_token_id": 7,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "a2d-qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "transformers_version": "4.57.0",
    "use_cache": False,
    "use_sliding_window": False,
    "vocab_size": 227,
}
QWEN2 = {key: value for key, value in QWEN3.items() if key not in ("attention_bias", "head_dim")} | {
    "architectures": ["A2DQwen2LMHeadModel"],
    "auto_map": {"AutoConfig": "modeling_qwen2.A2DQwen2Config", "AutoModel": "modeling_qwen2.A2DQwen2LMHeadModel"},
    "hidden_size": 128,
    "max_position_embeddings": 32768,
    "model_type": "a2d-qwen2",
    "vocab_size": 229,
}
LLAMA = {
    "architectures": ["A2DLlamaLMHeadModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "modeling_llama.A2DLlamaConfig", "AutoModel": "modeling_llama.A2DLlamaLMHeadModel"},
    "bos_token_id": 4,
    "dtype": "float32",
    "eos_token_id": [5, 6],
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 96,
    "initializer_range": 0.02,
    "intermediate_size": 160,
    "mask_token_id": 7,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "a2d-llama",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "transformers_version": "4.57.0",
    "use_cache": False,
    "vocab_size": 233,
}


@dataclass
class Case:
    """A checkpoint: its config, its tensors, its architecture written plainly, and whether its logits are shifted."""

    config: dict
    tensors: dict[str, Tensor]
    plain: Callable[..., Tensor]
    shifted: bool = False

    @property
    def vocab_size(self) -> int:
        return self.config.get("embedding_size", self.config["vocab_size"])

    def logits(self, ids: list[int], dtype: torch.dtype = torch.float64, positions: list[int] | None = None) -> Tensor:
        return self.plain(self.tensors, self.config, ids, dtype, positions)

    def save(self, folder: Path, shards: int = 1) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2))
        names = sorted(self.tensors)
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        if shards == 1:
            files = ["model.safetensors"]
        places = {name: files[i % shards] for i, name in enumerate(names)}
        for file in files:
            part = {name: self.tensors[name] for name in names if places[name] == file}
            save_file(part, folder / file, metadata={"format": "pt"})
        if shards > 1:
            size = sum(tensor.nbytes for tensor in self.tensors.values())
            index = {"metadata": {"total_size": size}, "weight_map": places}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder


def random(shape: tuple[int, ...], std: float, generator: torch.Generator, mean: float = 0.0) -> Tensor:
    return torch.randn(shape, generator=generator) * std + mean


def llada(seed: int = 0, std: float = 0.2, **changes: object) -> Case:
    config, g = LLADA | changes, torch.Generator().manual_seed(seed)
    d, size, hidden = config["d_model"], config["d_model"] // config["n_heads"], config["mlp_hidden_size"]
    kv = config["n_kv_heads"] * size
    tensors = {"wte": random((config["embedding_size"], d), 0.4, g), "ln_f": random((d,), 0.3, g, 1.0)}
    if not config["weight_tying"]:
        tensors["ff_out"] = random((config["embedding_size"], d), std, g)
    for i in range(config["n_layers"]):
        shapes = {
            "q_proj": (d, d),
            "k_proj": (kv, d),
            "v_proj": (kv, d),
            "attn_out": (d, d),
            "ff_proj": (hidden, d),
            "up_proj": (hidden, d),
            "ff_out": (d, hidden),
        }
        tensors |= {f"blocks.{i}.{name}": random(shape, std, g) for name, shape in shapes.items()}
        for name in ("q_proj", "k_proj"):  # sharp attention, so that masks see different things
            tensors[f"blocks.{i}.{name}"] *= 2
        tensors |= {f"blocks.{i}.{name}_norm": random((d,), 0.3, g, 1.0) for name in ("attn", "ff")}
    out = {f"model.transformer.{name}.weight": tensor for name, tensor in tensors.items()}
    if config["include_qkv_bias"]:
        for i in range(config["n_layers"]):
            for name, rows in (("q", d), ("k", kv), ("v", kv)):
                out[f"model.transformer.blocks.{i}.{name}_proj.bias"] = random((rows,), 0.5, g)
    return Case(config, out, plain.llada)


def in_llamas_layout(config: dict, seed: int, std: float, *, biases: bool, norms: bool) -> dict[str, Tensor]:
    """The tensors of a checkpoint in the layout that Llama, Qwen and Dream share."""
    g = torch.Generator().manual_seed(seed)
    d, hidden, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size = config.get("head_dim", d // heads)
    q, kv = heads * size, config["num_key_value_heads"] * size
    tensors = {
        "model.embed_tokens.weight": random((config["vocab_size"], d), 0.4, g),
        "model.norm.weight": random((d,), 0.3, g, 1.0),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = random((config["vocab_size"], d), std, g)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            sharp = 1 if name == "v" else 2  # so that masks see different things
            tensors[f"{at}self_attn.{name}_proj.weight"] = random((rows, d), std, g) * sharp
            if biases:
                tensors[f"{at}self_attn.{name}_proj.bias"] = random((rows,), 0.5, g)
        if norms:  # these make attention sharp
            tensors |= {f"{at}self_attn.{name}_norm.weight": random((size,), 0.5, g, 1.5) for name in "qk"}
        tensors[f"{at}self_attn.o_proj.weight"] = random((d, q), std, g)
        for name, shape in (("gate", (hidden, d)), ("up", (hidden, d)), ("down", (d, hidden))):
            tensors[f"{at}mlp.{name}_proj.weight"] = random(shape, std, g)
        for name in ("input", "post_attention"):
            tensors[f"{at}{name}_layernorm.weight"] = random((d,), 0.3, g, 1.0)
    return tensors


def dream(seed: int = 0, std: float = 0.15, **changes: object) -> Case:
    config = DREAM | changes
    return Case(config, in_llamas_layout(config, seed, std, biases=True, norms=False), plain.llama, shifted=True)


def qwen2(seed: int = 0, std: float = 0.15, **changes: object) -> Case:
    config = QWEN2 | changes
    return Case(config, in_llamas_layout(config, seed, std, biases=True, norms=False), plain.llama)


def qwen3(seed: int = 0, std: float = 0.15, **changes: object) -> Case:
    config = QWEN3 | changes
    return Case(config, in_llamas_layout(config, seed, std, biases=False, norms=True), plain.llama)


def llama(seed: int = 0, std: float = 0.15, **changes: object) -> Case:
    config = LLAMA | changes
    return Case(config, in_llamas_layout(config, seed, std, biases=False, norms=False), plain.llama)


FAMILIES = {"llada": llada, "dream": dream, "a2d-qwen2": qwen2, "a2d-qwen3": qwen3, "a2d-llama": llama}
"""A maker of random checkpoints for every family of models. The tests of models run on each."""

DECODED = {name: FAMILIES[name] for name in ("llada", "dream", "a2d-qwen3")}
"""Those that differ for the loop: in shifted logits, tied embeddings, and what a block does between its products."""


def ids_of(case: Case, length: int, seed: int = 0, masks: int = 0) -> list[int]:
    """Random ids; the last `masks` are masked."""
    ids = torch.randint(8, case.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))
    ids[length - masks :] = case.config["mask_token_id"]
    return ids.tolist()

"""A tiny SDAR with random weights in the public format, and the same mathematics written plainly."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

MASK = 151669  # SGLang knows the mask of this architecture by heart, so the vocabulary has to hold it
STOP = 151643
CONFIG = {
    "architectures": ["SDARForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "attention_bias": False,
    "mask_token_id": MASK,
    "eos_token_id": STOP,
    "bos_token_id": STOP,
}


def weights(seed: int = 0) -> dict[str, Tensor]:
    """Large enough that masks predict many different tokens."""
    generator = torch.Generator().manual_seed(seed)
    d, size = CONFIG["hidden_size"], CONFIG["vocab_size"]
    inner, width = CONFIG["intermediate_size"], CONFIG["head_dim"]
    q, kv = CONFIG["num_attention_heads"] * width, CONFIG["num_key_value_heads"] * width

    def drawn(*shape: int, std: float = 0.2) -> Tensor:
        return std * torch.randn(*shape, generator=generator)

    def gain(n: int) -> Tensor:
        return 1 + drawn(n, std=0.1)

    out = {"model.embed_tokens.weight": drawn(size, d, std=1.0), "lm_head.weight": drawn(size, d, std=0.3)}
    out["model.norm.weight"] = gain(d)
    for i in range(CONFIG["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj": drawn(q, d),
            "self_attn.k_proj": drawn(kv, d),
            "self_attn.v_proj": drawn(kv, d),
            "self_attn.o_proj": drawn(d, q),
            "self_attn.q_norm": gain(width),
            "self_attn.k_norm": gain(width),
            "mlp.gate_proj": drawn(inner, d),
            "mlp.up_proj": drawn(inner, d),
            "mlp.down_proj": drawn(d, inner),
            "input_layernorm": gain(d),
            "post_attention_layernorm": gain(d),
        }
        out |= {f"model.layers.{i}.{name}.weight": weight for name, weight in layer.items()}
    return out


def save(folder: Path) -> None:
    save_file(weights(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")


class Plain:
    """The model without a cache: a token sees its own block and all blocks before it."""

    def __init__(self, block_size: int) -> None:
        self.weights, self.block_size = weights(), block_size

    def __call__(self, ids: list[int]) -> Tensor:
        """Logits [block_size, V] of the last block; the ids are whole blocks."""
        x = self.weights["model.embed_tokens.weight"][ids]
        for i in range(CONFIG["num_hidden_layers"]):
            here = f"model.layers.{i}."
            x = x + self.attend(self.norm(x, here + "input_layernorm"), here + "self_attn.")
            x = x + self.feed(self.norm(x, here + "post_attention_layernorm"), here + "mlp.")
        return self.linear(self.norm(x, "model.norm")[-self.block_size :], "lm_head")

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]).sqrt() * self.weights[f"{name}.weight"]

    def feed(self, x: Tensor, name: str) -> Tensor:
        gate = self.linear(x, name + "gate_proj")
        return self.linear(gate * torch.sigmoid(gate) * self.linear(x, name + "up_proj"), name + "down_proj")

    def attend(self, x: Tensor, name: str) -> Tensor:
        width = CONFIG["head_dim"]
        q, k, v = (self.linear(x, f"{name}{part}_proj").unflatten(-1, (-1, width)) for part in "qkv")
        q, k = self.rotate(self.norm(q, name + "q_norm")), self.rotate(self.norm(k, name + "k_norm"))
        k, v = (part.repeat_interleave(q.size(1) // k.size(1), 1) for part in (k, v))
        block = torch.arange(len(x)) // self.block_size
        hidden = block[None] > block[:, None]  # of a later block
        scores = torch.einsum("ihd,jhd->hij", q, k) * width**-0.5
        seen = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.linear(torch.einsum("hij,jhd->ihd", seen, v).flatten(1), name + "o_proj")

    def rotate(self, x: Tensor) -> Tensor:
        half = x.size(-1) // 2
        turns = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
        angles = (torch.arange(len(x))[:, None] * turns)[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

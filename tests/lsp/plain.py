"""LLaDA and Dream written out: one sequence, one head at a time, from the public tensors and the public config.

Shares nothing with `lsp.models`. Everything is computed in the dtype given; angles are float32, as both were trained.
"""

from __future__ import annotations

import torch
from torch import Tensor


def llada(tensors: dict[str, Tensor], config: dict, ids: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """Logits [T, V] of a LLaDA checkpoint."""
    w = {name.removeprefix("model.transformer."): t.to(dtype) for name, t in tensors.items()}
    eps, heads = config["rms_norm_eps"], config["n_heads"]
    cos, sin = angles(len(ids), config["d_model"] // heads, config["rope_theta"], dtype)
    x = w["wte.weight"][ids]
    for i in range(config["n_layers"]):
        layer = {name.removeprefix(f"blocks.{i}."): t for name, t in w.items() if name.startswith(f"blocks.{i}.")}
        y = norm(x, layer["attn_norm.weight"], eps)
        q, k, v = (linear(y, layer[f"{name}_proj.weight"], layer.get(f"{name}_proj.bias")) for name in "qkv")
        mixed = attention(q, k, v, heads, config["n_kv_heads"], cos, sin)
        x = x + linear(mixed, layer["attn_out.weight"])
        y = norm(x, layer["ff_norm.weight"], eps)
        gate, up = linear(y, layer["ff_proj.weight"]), linear(y, layer["up_proj.weight"])
        x = x + linear(gate * torch.sigmoid(gate) * up, layer["ff_out.weight"])
    head = w["wte.weight"] if config["weight_tying"] else w["ff_out.weight"]
    return linear(norm(x, w["ln_f.weight"], eps), head)


def dream(tensors: dict[str, Tensor], config: dict, ids: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """Logits [T, V] of a Dream checkpoint. Row p - 1 is the prediction for position p."""
    w = {name: t.to(dtype) for name, t in tensors.items()}
    eps, heads = config["rms_norm_eps"], config["num_attention_heads"]
    cos, sin = angles(len(ids), config["hidden_size"] // heads, config["rope_theta"], dtype)
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        y = norm(x, w[at + "input_layernorm.weight"], eps)
        q, k, v = (
            linear(y, *(w[f"{at}self_attn.{name}_proj.{kind}"] for kind in ("weight", "bias"))) for name in "qkv"
        )
        mixed = attention(q, k, v, heads, config["num_key_value_heads"], cos, sin)
        x = x + linear(mixed, w[at + "self_attn.o_proj.weight"])
        y = norm(x, w[at + "post_attention_layernorm.weight"], eps)
        gate, up = linear(y, w[at + "mlp.gate_proj.weight"]), linear(y, w[at + "mlp.up_proj.weight"])
        x = x + linear(gate * torch.sigmoid(gate) * up, w[at + "mlp.down_proj.weight"])
    head = w["model.embed_tokens.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return linear(norm(x, w["model.norm.weight"], eps), head)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x @ weight.T if bias is None else x @ weight.T + bias


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def angles(length: int, size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    frequencies = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    turn = torch.arange(length, dtype=torch.float32)[:, None] * torch.cat([frequencies, frequencies])
    return turn.cos().to(dtype), turn.sin().to(dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    size = q.shape[1] // heads
    out = []
    for h in range(heads):
        g = h // (heads // kv_heads)  # neighbouring query heads share a K/V head
        mine, theirs = slice(h * size, (h + 1) * size), slice(g * size, (g + 1) * size)
        a, b = (z * cos + half_turn(z) * sin for z in (q[:, mine], k[:, theirs]))
        out.append((a @ b.T / size**0.5).softmax(-1) @ v[:, theirs])
    return torch.cat(out, dim=1)


def half_turn(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return torch.cat([-x[:, half:], x[:, :half]], dim=1)

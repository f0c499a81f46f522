"""LLaDA, Llama, Qwen and Dream written out: one sequence, one head at a time, from public tensors and public configs.

Shares nothing with `lsp.models`. Everything is computed in the dtype given; angles are float32, as all were trained.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def llada(
    tensors: dict[str, Tensor],
    config: dict,
    ids: list[int],
    dtype: torch.dtype = torch.float64,
    positions: list[int] | None = None,
) -> Tensor:
    """Logits [T, V] of a LLaDA checkpoint. Tokens stand at `positions`, by default side by side from 0 on."""
    where = list(range(len(ids))) if positions is None else positions
    w = {name.removeprefix("model.transformer."): t.to(dtype) for name, t in tensors.items()}
    eps, heads = config["rms_norm_eps"], config["n_heads"]
    cos, sin = (each[where] for each in angles(max(where) + 1, config["d_model"] // heads, config["rope_theta"], dtype))
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


def llama(
    tensors: dict[str, Tensor],
    config: dict,
    ids: list[int],
    dtype: torch.dtype = torch.float64,
    positions: list[int] | None = None,
) -> Tensor:
    """Logits [T, V] of a checkpoint in the layout of Llama.

    Qwen2 and Dream have biases on Q, K and V, Qwen3 norms on every head of Q and K. In Dream row p - 1 is the
    prediction for position p.
    """
    where = list(range(len(ids))) if positions is None else positions
    w = {name: t.to(dtype) for name, t in tensors.items()}
    eps, heads, kv_heads = (config[key] for key in ("rms_norm_eps", "num_attention_heads", "num_key_value_heads"))
    size = config.get("head_dim", config["hidden_size"] // heads)
    turns = angles(max(where) + 1, size, config["rope_theta"], dtype, config["rope_scaling"])
    cos, sin = (each[where] for each in turns)
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        y = norm(x, w[at + "input_layernorm.weight"], eps)
        q, k, v = (
            linear(y, w[f"{at}self_attn.{name}_proj.weight"], w.get(f"{at}self_attn.{name}_proj.bias"))
            for name in "qkv"
        )
        if config["model_type"].endswith("qwen3"):
            q = norm(q.reshape(-1, heads, size), w[at + "self_attn.q_norm.weight"], eps).flatten(1)
            k = norm(k.reshape(-1, kv_heads, size), w[at + "self_attn.k_norm.weight"], eps).flatten(1)
        mixed = attention(q, k, v, heads, kv_heads, cos, sin)
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


def angles(
    length: int, size: int, theta: float, dtype: torch.dtype, scaling: dict | None = None
) -> tuple[Tensor, Tensor]:
    frequencies = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    if scaling is not None:
        frequencies = torch.stack([scaled(f, scaling) for f in frequencies])
    turn = torch.arange(length, dtype=torch.float32)[:, None] * torch.cat([frequencies, frequencies])
    return turn.cos().to(dtype), turn.sin().to(dtype)


def scaled(frequency: Tensor, scaling: dict) -> Tensor:
    """Llama 3's change of a frequency, by the length of its wave in tokens, in float32."""
    wave, known = 2 * math.pi / frequency, scaling["original_max_position_embeddings"]
    shortest, longest = known / scaling["high_freq_factor"], known / scaling["low_freq_factor"]
    if wave < shortest:
        return frequency
    if wave > longest:
        return frequency / scaling["factor"]
    share = (known / wave - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
    return (1 - share) * frequency / scaling["factor"] + share * frequency


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

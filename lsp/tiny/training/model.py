"""The embedded model: a plain bidirectional transformer that reads and writes LLaDA checkpoints.

RMSNorm, rotary embeddings (rotate-half, float32), SwiGLU, no biases, an untied head. The names of
parameters and configuration keys are those of the public LLaDA checkpoints. Uncached: every call
sees the whole sequence.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """The shape of the model, under LLaDA's names."""

    vocab_size: int
    d_model: int = 160
    n_layers: int = 6
    n_heads: int = 5
    mlp_hidden_size: int = 480
    max_sequence_length: int = 640
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    mask_token_id: int = 0
    eos_token_id: int = 1

    def to_json(self) -> str:
        """config.json as the public LLaDA checkpoints have it."""
        fixed = {
            "model_type": "llada",
            "architectures": ["LLaDAModelLM"],
            "activation_type": "silu",
            "alibi": False,
            "attention_dropout": 0.0,
            "attention_layer_norm": False,
            "bias_for_layer_norm": False,
            "block_group_size": 1,
            "block_type": "llama",
            "embedding_dropout": 0.0,
            "embedding_size": self.vocab_size,
            "include_bias": False,
            "include_qkv_bias": False,
            "input_emb_norm": False,
            "layer_norm_type": "rms",
            "layer_norm_with_affine": True,
            "mlp_ratio": 4,
            "multi_query_attention": None,
            "n_kv_heads": self.n_heads,
            "pad_token_id": self.eos_token_id,
            "residual_dropout": 0.0,
            "rope": True,
            "rope_full_precision": True,
            "scale_logits": False,
            "torch_dtype": "float16",
            "use_cache": False,
            "weight_tying": False,
        }
        return json.dumps(dict(sorted((asdict(self) | fixed).items())), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Config":
        values = json.loads(text)
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        size, hidden = config.d_model, config.mlp_hidden_size
        self.n_heads = config.n_heads
        self.attn_norm = RMSNorm(size, config.rms_norm_eps)
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size, bias=False)
        self.attn_out = nn.Linear(size, size, bias=False)
        self.ff_norm = RMSNorm(size, config.rms_norm_eps)
        self.ff_proj = nn.Linear(size, hidden, bias=False)
        self.up_proj = nn.Linear(size, hidden, bias=False)
        self.ff_out = nn.Linear(hidden, size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor | None) -> Tensor:
        y = self.attn_norm(x)
        q, k, v = (
            proj(y).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # [B, H, T, D]
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = self._attend(rotate(q, cos, sin), rotate(k, cos, sin), v, visible)
        x = x + self.attn_out(out.transpose(1, 2).flatten(2))
        y = self.ff_norm(x)
        mixed: Tensor = self.ff_out(F.silu(self.ff_proj(y)) * self.up_proj(y))
        return x + mixed

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
        if self.training:  # on CPU the backward of SDPA is much slower than this
            scores: Tensor = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
            if visible is not None:
                scores += visible
            return scores.softmax(-1, dtype=torch.float32) @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [..., T, D] by the angles of [T, D / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class TinyModel(nn.Module):
    """Logits of every position from token ids; build one with random weights or `load` one."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.ln_f = RMSNorm(config.d_model, config.rms_norm_eps)
        self.ff_out = nn.Linear(config.d_model, config.vocab_size, bias=False)
        size = config.d_model // config.n_heads
        frequencies = config.rope_theta ** -(torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(config.max_sequence_length).float(), frequencies)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for name, weight in self.blocks.named_parameters():
            if weight.dim() == 2:
                small = name.endswith(("attn_out.weight", "ff_out.weight"))
                nn.init.normal_(weight, std=(0.3 if small else 1.0) * weight.shape[1] ** -0.5)
        nn.init.normal_(self.wte.weight, std=1.0)
        nn.init.normal_(self.ff_out.weight, std=0.02)

    def hidden(self, ids: Tensor, visible: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Final hidden states [B, T, d]; `visible` [B, 1, 1 or T, T] says what may be attended to.

        Tokens stand in their order unless `positions` [B, T] says where each stands.
        """
        x: Tensor = self.wte(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        if positions is not None:
            cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        if visible is not None:  # what is added to the scores
            visible = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
        for block in self.blocks:
            x = block(x, cos, sin, visible)
        x = self.ln_f(x)
        return x

    def forward(self, ids: Tensor, visible: Tensor | None = None) -> Tensor:
        logits: Tensor = self.ff_out(self.hidden(ids, visible))
        return logits

    def save(self, folder: Path) -> None:
        """Write config.json and model.safetensors (float16) in the LLaDA format."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model.transformer.{k}": v.half() for k, v in self.state_dict().items()}
        (folder / "config.json").write_text(self.config.to_json())
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    @classmethod
    def load(cls, folder: Path) -> "TinyModel":
        model = cls(Config.from_json((folder / "config.json").read_text()))
        tensors = load_file(folder / "model.safetensors")
        prefix = "model.transformer."
        model.load_state_dict({k.removeprefix(prefix): v.float() for k, v in tensors.items()})
        return model.eval()

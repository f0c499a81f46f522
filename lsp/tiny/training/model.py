"""The embedded model: a plain bidirectional transformer that reads and writes LLaDA checkpoints.

RMSNorm, rotary embeddings (rotate-half, float32), SwiGLU, no biases, an untied head. The names of
parameters and configuration keys are those of the public LLaDA checkpoints. Uncached: every call
sees the whole sequence.
"""

import json
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Group:
    """Rows of tokens that are laid out alike: where each stands, and what is added to the scores of attention."""

    ids: Tensor  # [B, T]
    positions: Tensor  # [B, T]
    bias: Tensor | None = None  # [B, 1, 1 or T, T]

    @classmethod
    def of(cls, ids: Tensor, visible: Tensor | None = None, positions: Tensor | None = None) -> "Group":
        """From what may be attended to; tokens stand in their order if no positions are given."""
        places = torch.arange(ids.shape[1]).expand(ids.shape) if positions is None else positions
        bias = None if visible is None else torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
        return cls(ids, places, bias)

    def widened(self, multiple: int) -> "Group":
        """The same with so many more tokens a row that their number is a multiple; the rest does not see them."""
        more = -self.ids.shape[1] % multiple
        bias = torch.zeros(1, 1, 1, self.ids.shape[1]) if self.bias is None else self.bias
        rows = more if bias.shape[2] > 1 else 0
        bias = F.pad(F.pad(bias, (0, more), value=-torch.inf), (0, 0, 0, rows))
        return Group(F.pad(self.ids, (0, more)), F.pad(self.positions, (0, more)), bias)


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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, groups: Sequence[Group]) -> Tensor:
        """x [N, d] are the tokens of all groups, one after the other."""
        y = self.attn_norm(x)
        q, k, v = (
            proj(y).unflatten(-1, (self.n_heads, -1))  # [N, H, D]
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        sizes = [group.ids.numel() for group in groups]
        parts = (each.split(sizes) for each in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        out = torch.cat([self._attend(*part) for part in zip(*parts, groups, strict=True)])
        x = x + self.attn_out(out)
        y = self.ff_norm(x)
        mixed: Tensor = self.ff_out(F.silu(self.ff_proj(y)) * self.up_proj(y))
        return x + mixed

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, group: Group) -> Tensor:
        q, k, v = (x.unflatten(0, group.ids.shape).transpose(1, 2) for x in (q, k, v))  # [B, H, T, D]
        bias = None if group.bias is None else group.bias.to(q.dtype)
        if self.training:  # on CPU the backward of SDPA is much slower than this
            scores: Tensor = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
            if bias is not None:
                scores += bias
            out = scores.softmax(-1) @ v  # in bfloat16 as the products are, or in float32
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [N, H, D] by the angles of [N, 1, D / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


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
        (hidden,) = self.hidden_of([Group.of(ids, visible, positions)])
        return hidden

    def hidden_of(self, groups: Sequence[Group]) -> list[Tensor]:
        """Those of several batches, [B, T, d] each; all tokens share every product, which takes few large ones."""
        x: Tensor = self.wte(torch.cat([group.ids.flatten() for group in groups]))
        places = torch.cat([group.positions.flatten() for group in groups])
        cos, sin = self.cos[places][:, None], self.sin[places][:, None]
        if torch.is_autocast_enabled("cpu"):
            cos, sin = cos.bfloat16(), sin.bfloat16()
        for block in self.blocks:
            x = block(x, cos, sin, groups)
        parts = self.ln_f(x).split([group.ids.numel() for group in groups])
        return [part.unflatten(0, group.ids.shape) for part, group in zip(parts, groups, strict=True)]

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

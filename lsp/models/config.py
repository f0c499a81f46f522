"""What a model is: its shape, and the public format that it comes in.

A family is a reader of its public config.json and a table of its tensor names. The mathematics is the same for all of
them and is in `transformer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lsp_kernels.errors import as_integer

SIZES = {
    "vocab_size": 2**24,
    "d_model": 2**20,
    "n_layers": 2**10,
    "n_heads": 2**12,
    "n_kv_heads": 2**12,
    "head_dim": 2**8,
    "mlp_size": 2**22,
    "max_length": 2**31 - 1,
}
"""The largest value of each that is believed: a damaged config must not fill the memory before it is noticed."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's scaled rotary embeddings: slow rotations are `factor` times slower, fast ones stay as they are.

    A rotation is fast if it turns more than `high` times within `original_length` tokens, and slow if less than `low`
    times; in between it is a mixture of both.
    """

    factor: float
    low: float
    high: float
    original_length: int

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"Invalid rope_scaling: expected low < high, got {self.low} and {self.high}")


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model, and what a decoder must know of it.

    Attributes
    ----------
    vocab_size : int
        V, the rows of the embedding and of the LM head. The tokenizer may know fewer ids.
    d_model, n_layers, n_heads, n_kv_heads, head_dim, mlp_size : int
    max_length : int
        The longest sequence that the model was made for.
    rope_theta, norm_eps : float
    rope_scaling : RopeScaling or None
    mask_id : int or None
        The id of a masked position, where the config names it.
    stop_ids : tuple of int
        The ids that end a text, as far as the config names them; `lsp.tokens.stop_ids` adds the tokenizer's.
    qkv_bias, qk_norm, tied : bool
        Whether the projections to Q, K and V have biases, whether every head of Q and K is normalised before it is
        rotated, and whether the LM head is the embedding.
    shifted : bool
        Whether position p is predicted by the row of position p - 1.
    family : str
        The ``model_type`` of the public format.
    public : mapping
        The public config.json that this was read from.
    """

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    mlp_size: int
    max_length: int
    rope_theta: float
    norm_eps: float
    rope_scaling: RopeScaling | None = None
    mask_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    shifted: bool = False
    family: str = ""
    public: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, most in SIZES.items():
            if as_integer(name, getattr(self, name), 1) > most:
                raise ValueError(f"Invalid {name}: expected at most {most}, got {getattr(self, name)}")
        if not 1 <= self.rope_theta < 1e12:
            raise ValueError(f"Invalid rope_theta: expected a number from 1 to 1e12, got {self.rope_theta}")
        if not 0 < self.norm_eps < 1:
            raise ValueError(f"Invalid norm_eps: expected a number between 0 and 1, got {self.norm_eps}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"Invalid n_kv_heads: expected a divisor of n_heads = {self.n_heads}, got {self.n_kv_heads}"
            )
        if self.head_dim % 16 or not 32 <= self.head_dim <= 256:
            raise ValueError(f"Invalid head_dim: expected a multiple of 16 from 32 to 256, got {self.head_dim}")
        for name, ids in (("mask_id", (self.mask_id,)), ("stop_ids", self.stop_ids)):
            for i in ids:
                if i is not None and not 0 <= i < self.vocab_size:
                    raise ValueError(f"Invalid {name}: expected 0 to {self.vocab_size - 1}, got {i}")

    def rows(self, parameter: str) -> tuple[int, ...]:
        """How the public tensors stacked in a fused parameter share its rows; empty if it is not fused."""
        if ".qkv." in parameter:
            return self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return (self.mlp_size, self.mlp_size) if ".gate_up." in parameter else ()


@dataclass(frozen=True)
class Family:
    """A public format.

    Attributes
    ----------
    model_type : str
        As config.json has it.
    read : callable
        From a public config to a `ModelConfig`.
    tensors : mapping
        From a parameter of `Transformer` to the public tensors that are stacked in it, in order. ``{i}`` is the layer.
    says_shifted : bool
        Whether the format says if logits are shifted; if not, `lsp.load` must be told.
    """

    model_type: str
    read: Callable[[Mapping[str, Any]], ModelConfig]
    tensors: Mapping[str, tuple[str, ...]]
    says_shifted: bool = True

    def names(self, parameter: str) -> tuple[str, ...]:
        """The public tensors of a parameter such as ``blocks.3.qkv.weight``."""
        kind, _, rest = parameter.partition(".")
        if kind != "blocks":
            return self.tensors[parameter]
        layer, _, name = rest.partition(".")
        return tuple(public.format(i=layer) for public in self.tensors[f"blocks.{{i}}.{name}"])

"""What a model is: its shape, and the public format that it comes in.

A family is a reader of its public config.json and a table of its tensor names. The mathematics is the same for all of
them and is in `transformer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lsp_kernels.errors import as_integer

SIZES = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "mlp_size", "max_length")
# Keys of any public config that change the mathematics, and the values that leave it as it is.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "alibi": (False, None),
    "attention_layer_norm": (False, None),
    "qk_norm": (False, None),
    "use_qk_norm": (False, None),
    "qk_layernorm": (False, None),
    "use_sliding_window": (False, None),
    "num_experts": (0, None),
    "num_local_experts": (0, None),
    "n_routed_experts": (0, None),
    "num_experts_per_tok": (0, None),
    "moe_intermediate_size": (0, None),
    "partial_rotary_factor": (1, None),
    "logit_scale": (1, None),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "quantization_config": (None,),
}


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
    mask_id : int or None
        The id of a masked position, where the config names it.
    stop_ids : tuple of int
        The ids that end a text, as far as the config names them; `lsp.delimiters.stop_ids` adds the tokenizer's.
    qkv_bias, tied : bool
        Whether the projections to Q, K and V have biases, and whether the LM head is the embedding.
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
    mask_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    qkv_bias: bool = False
    tied: bool = False
    shifted: bool = False
    family: str = ""
    public: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in SIZES:
            as_integer(name, getattr(self, name), 1)
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
    """

    model_type: str
    read: Callable[[Mapping[str, Any]], ModelConfig]
    tensors: Mapping[str, tuple[str, ...]]

    def names(self, parameter: str) -> tuple[str, ...]:
        """The public tensors of a parameter such as ``blocks.3.qkv.weight``."""
        kind, _, rest = parameter.partition(".")
        if kind != "blocks":
            return self.tensors[parameter]
        layer, _, name = rest.partition(".")
        return tuple(public.format(i=layer) for public in self.tensors[f"blocks.{{i}}.{name}"])


class Keys:
    """Reads a public config and says which key is wrong."""

    def __init__(self, public: Mapping[str, Any]) -> None:
        self.public = public
        for key, harmless in UNSUPPORTED.items():
            self.only(key, *harmless, absent=harmless[0])
        if public.get("sliding_window") is not None and public.get("use_sliding_window") is None:
            self.fail("sliding_window", "None", kind="Unsupported")
        if set(public.get("layer_types") or ()) - {"full_attention"}:
            self.fail("layer_types", "'full_attention' in every layer", kind="Unsupported")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.public.get(key)
        if value is None:
            value = default
        if value is None:
            self.fail(key, "an integer")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fail(key, "an integer of at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.public.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.fail(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.public.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def token(self, key: str) -> int | None:
        ids = self.tokens(key)
        return ids[0] if ids else None

    def tokens(self, key: str) -> tuple[int, ...]:
        """One id, several, or none."""
        value = self.public.get(key)
        ids = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            self.fail(key, "token ids")
        return ids

    def only(self, key: str, *supported: Any, absent: Any) -> None:
        """Refuses values under which the mathematics would be another."""
        if self.public.get(key, absent) not in supported:
            self.fail(key, " or ".join(map(repr, supported)), kind="Unsupported")

    def rope_theta(self, default: float) -> float:
        """Transformers 5 writes ``rope_parameters`` where others write ``rope_theta`` and ``rope_scaling``."""
        theta = None
        for key in ("rope_scaling", "rope_parameters"):
            given = self.public.get(key) or {}
            if given.get("rope_type", given.get("type", "default")) != "default":
                self.fail(key, "None or the rope_type 'default'", kind="Unsupported")
            theta = given.get("rope_theta", theta)
        return self.number("rope_theta", default) if theta is None else float(theta)

    def fail(self, key: str, expected: str, kind: str = "Invalid") -> NoReturn:
        got = repr(self.public[key]) if key in self.public else "none"
        raise ValueError(f"{kind} config key {key}: expected {expected}, got {got}")

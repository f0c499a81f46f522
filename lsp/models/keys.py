"""Reads a public config.json: every key is known and has a value that is supported, or the error names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from lsp.models.config import RopeScaling

HARMLESS = {
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout",
    "attn_implementation", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "cls_token_id", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "embedding_dropout", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "hidden_dropout", "id2label",
    "initializer_range", "label2id", "length_penalty", "max_length", "max_window_layers", "min_length",
    "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "problem_type",
    "remove_invalid_values", "repetition_penalty", "residual_dropout", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tokenizer_class",
    "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "use_bfloat16", "use_cache"
}  # fmt: skip
"""Keys of transformers that play no part in a pass: bookkeeping, dropout (which only trains), options of generation."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "alibi": (False, None),
    "attention_layer_norm": (False, None),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "cross_attention_hidden_size": (None,),
    "final_logit_softcapping": (None,),
    "is_causal": (False, None),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "logit_scale": (1, None),
    "logits_scaling": (1, None),
    "moe_intermediate_size": (0, None),
    "n_routed_experts": (0, None),
    "num_experts": (0, None),
    "num_experts_per_tok": (0, None),
    "num_local_experts": (0, None),
    "partial_rotary_factor": (1, None),
    "pruned_heads": ({}, None),
    "qk_layernorm": (False, None),
    "qk_norm": (False, None),
    "quantization_config": (None,),
    "tie_encoder_decoder": (False, None),
    "use_mrope": (False, None),
    "use_qk_norm": (False, None),
    "use_sliding_window": (False, None),
}
"""Keys that would change the mathematics, and the values that leave it as it is."""

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""The entries of the rope_type llama3, in the order of `RopeScaling`."""


class Keys:
    """A public config, read key by key; `close` refuses what nobody has read.

    Parameters
    ----------
    public : mapping
        As in config.json.
    harmless : iterable of str
        Further keys of the family that play no part in a pass.
    """

    def __init__(self, public: Mapping[str, Any], *harmless: str) -> None:
        self.public, self.read = public, {*HARMLESS, *harmless}
        for key, values in NEUTRAL.items():
            self.only(key, *values, absent=values[0])
        if self._value("sliding_window") is not None and "use_sliding_window" not in public:
            self.fail("sliding_window", "None", kind="Unsupported")
        kinds = self._value("layer_types") or ()
        if not isinstance(kinds, list | tuple) or set(map(str, kinds)) - {"full_attention"}:
            self.fail("layer_types", "'full_attention' in every layer", kind="Unsupported")

    def close(self) -> None:
        """Refuses keys that were not read: they may change what the model computes."""
        if unknown := sorted(set(self.public) - self.read):
            self.fail(unknown[0], "no such key, as it may change what the model computes", kind="Unsupported")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fail(key, "an integer of at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.fail(key, "a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def token(self, key: str) -> int | None:
        ids = self.tokens(key)
        return ids[0] if ids else None

    def tokens(self, key: str) -> tuple[int, ...]:
        """One id, several, or none."""
        value = self._value(key)
        ids = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            self.fail(key, "token ids")
        return ids

    def only(self, key: str, *supported: Any, absent: Any) -> None:
        """Refuses values under which the mathematics would be another. `absent` is what the public class takes then."""
        if self._value(key, absent) not in supported:
            self.fail(key, " or ".join(map(repr, supported)), kind="Unsupported")

    def rope_theta(self, default: float) -> float:
        """The base of rotary embeddings that are not scaled."""
        theta, _ = self.rope(default)
        return theta

    def rope(self, default: float, *scaled: str) -> tuple[float, RopeScaling | None]:
        """The base of the rotary embeddings and how they are scaled, which may be by one of the rope_types `scaled`.

        Transformers 5 writes ``rope_parameters`` where others write ``rope_theta`` and ``rope_scaling``.
        """
        found: list[float] = []
        scaling = None
        for key in ("rope_scaling", "rope_parameters"):
            given = self._value(key) or {}
            kind = given.get("rope_type", given.get("type", "default")) if isinstance(given, Mapping) else None
            if kind not in ("default", *scaled):
                kinds = " or ".join(map(repr, ("default", *scaled)))
                self.fail(key, f"None or the rope_type {kinds}", kind="Unsupported")
            if set(given) - {"rope_type", "type", "rope_theta", *(LLAMA3 if kind == "llama3" else ())}:
                self.fail(key, f"rope_theta and the entries of rope_type {kind!r} alone", kind="Unsupported")
            theta = given.get("rope_theta")
            if theta is not None and (isinstance(theta, bool) or not isinstance(theta, int | float)):
                self.fail(key, "a number as rope_theta")
            found += [] if theta is None else [float(theta)]
            if kind == "llama3":
                entries = Keys({name: given[name] for name in LLAMA3 if name in given})
                factor, low, high = (entries.number(name) for name in LLAMA3[:3])
                scaling = RopeScaling(factor, low, high, entries.integer(LLAMA3[3]))
        own = self._value("rope_theta")
        return found[-1] if found else self.number("rope_theta", None if own is not None else default), scaling

    def fail(self, key: str, expected: str, kind: str = "Invalid") -> NoReturn:
        got = repr(self.public[key]) if key in self.public else "none"
        raise ValueError(f"{kind} config key {key}: expected {expected}, got {got}")

    def _value(self, key: str, absent: Any = None) -> Any:
        self.read.add(key)
        return self.public.get(key, absent)

"""Masked models of transformers on the prefix cache: an attention, a cache, and a function for ``custom_generate``.

Importing it registers the attention ``"lsp_suffix"``. A pass gives a model the tokens that are not frozen yet, packed
end to end as one row; its own code computes everything but attention, which reads the frozen prefix where it lies. It
needs a model with attention in both directions whose layers ask transformers' `AttentionInterface`, and works with
transformers 4.57 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lsp.decoding import Scheduler
from lsp.extras import needed_by
from lsp.integrations._common import check_padding, continuation, decoded, vocabulary_for
from lsp.models.adapted import AdaptedConfig, config_of, in_eval_mode
from lsp.models.protocol import Model
from lsp.models.transformer import check_pass
from lsp.schedulers import scheduler_of
from lsp_kernels import PrefixCache, Vocabulary, suffix_attention
from lsp_kernels.errors import values_are_free

with needed_by("lsp.integrations.transformers"):
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.cache_utils import Cache, DynamicLayer

__all__ = ["ATTENTION", "PrefixLayer", "SuffixCache", "cached", "generate"]

ATTENTION = "lsp_suffix"
CHANGES = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Keywords of transformers' attention functions that would change the result; None leaves it as it is."""
SERVED = {"MaxLengthCriteria", "EosTokenCriteria", "TemperatureLogitsWarper"}
"""What ``model.generate`` prepares and what the loop does by itself."""


class PrefixLayer(DynamicLayer):
    """One layer of a `SuffixCache`: the frozen prefix, contiguous. `update` returns the new K and V alone."""

    def __init__(self, cache: SuffixCache, index: int) -> None:
        super().__init__()
        self.cache, self.index = cache, index
        self.keys, self.values = cache.prefix.k[index], cache.prefix.v[index]
        self.dtype, self.device, self.is_initialized = cache.prefix.dtype, cache.prefix.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Nothing is concatenated: the keys take this layer along to the attention, which reads and appends."""
        key_states.lsp_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attention of [B, N, H, D] to the prefix and to itself."""
        if not self.cache.packed:
            return self.cache.prefix.attend(self.index, q, k, v, scale=scale)
        return self.cache.prefix.attend(self.index, q[0], k[0], v[0], scale=scale)[None]

    def get_seq_length(self, *_: Any) -> int:
        """How many tokens are frozen; of several sequences the most."""
        return max(self.cache.prefix.frozen)

    def reset(self) -> None:
        self.cache.prefix.refresh()

    def crop(self, *_: Any) -> None:
        raise NotImplementedError("Invalid call of crop: expected cache.prefix.truncate({row: length})")

    def reorder_cache(self, *_: Any) -> None:
        raise NotImplementedError("Invalid call of a method for beams: expected a cache without beams")

    batch_repeat_interleave = batch_select_indices = reorder_cache


class SuffixCache(Cache):
    """A `PrefixCache` as transformers knows caches, for ``past_key_values``.

    A forward pass freezes what `appending` says, and sees what was frozen before. Give it the tokens that are not
    frozen, and their ``position_ids`` where sequences differ in length.

    Parameters
    ----------
    prefix : PrefixCache
        `of` makes one for a model.

    Examples
    --------
    >>> import lsp, torch
    >>> from lsp.integrations.transformers import SuffixCache
    >>> from lsp.tiny import CHECKPOINT
    >>> from transformers import AutoModel
    >>> lsp.register()
    >>> model = AutoModel.from_pretrained(CHECKPOINT, dtype=torch.float32, attn_implementation="lsp_suffix")
    >>> cache = SuffixCache.of(model, batch=1, capacity=64)
    >>> ids = torch.tensor([[20, 21, 22, 0, 0]])
    >>> with cache.appending([3]):
    ...     whole = model(ids, past_key_values=cache).logits
    >>> with cache.appending([0]):
    ...     suffix = model(ids[:, 3:], past_key_values=cache).logits
    >>> cache.get_seq_length(), torch.allclose(suffix, whole[:, 3:], atol=1e-4)
    (3, True)
    """

    def __init__(self, prefix: PrefixCache) -> None:
        self.prefix, self.packed = prefix, False
        super().__init__(layers=[PrefixLayer(self, index) for index in range(prefix.n_layers)])

    @classmethod
    def of(cls, model: Any, batch: int, capacity: int) -> SuffixCache:
        """An empty cache for this many sequences whose frozen prefixes have up to `capacity` tokens."""
        inner = getattr(model, "transformer", None)
        return cls(inner.new_cache(batch, capacity) if isinstance(inner, Model) else _prefix(model, batch, capacity))

    @contextmanager
    def appending(self, counts: Sequence[int], cu_seqlens: Tensor | None = None) -> Iterator[None]:
        """One forward pass, which freezes the first `counts` tokens of each sequence.

        With `cu_seqlens` the pass is one row of sequences that lie end to end, and these are their borders.
        """
        self.packed = cu_seqlens is not None
        self.prefix.begin(cu_seqlens, counts)
        yield
        self.prefix.advance()


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """``"lsp_suffix"``: queries [B, Hq, N, D] see the frozen prefix and each other. Returns [B, N, Hq, D]."""
    _refuse(module, attention_mask, dropout, options)
    q, k, v = (states.transpose(1, 2) for states in (query, key, value))
    layer: PrefixLayer | None = getattr(key, "lsp_layer", None)
    if layer is not None:
        return layer.attend(q, k, v, scaling), None
    nothing = k.new_empty(len(k), k.size(2), 0, k.size(3))
    lengths = torch.zeros(len(q), dtype=torch.int32, device=q.device)
    return suffix_attention(q, k, v, nothing, nothing.clone(), None, lengths, scale=scaling), None


def unpadded(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> None:
    """The mask for `attention`: there is none, so there must be no padding."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError(
            "Invalid attention_mask: expected no padding, as lsp_suffix has no mask, got zeros; "
            "model.generate(custom_generate=lsp.integrations.transformers.generate) takes padding out"
        )


def _refuse(module: nn.Module, mask: Tensor | None, dropout: float, options: Mapping[str, Any]) -> None:
    if getattr(module, "is_causal", False) and getattr(getattr(module, "config", None), "is_causal", True):
        raise ValueError(
            f"Invalid model: expected attention in both directions, got a causal {type(module).__name__}; "
            "if it is a masked model, set config.is_causal = False"
        )
    if changed := [name for name in CHANGES if options.get(name) is not None]:
        raise ValueError(f"Invalid {changed[0]}: expected None with lsp_suffix, got {options[changed[0]]!r}")
    if dropout:
        raise ValueError(f"Invalid dropout: expected 0, as lsp_suffix does not train, got {dropout}")
    if mask is not None and values_are_free(mask):
        unpadded(attention_mask=mask if mask.dtype == torch.bool else mask == 0)


class CachedModel:
    """A model of transformers in the protocol of the decoding loop. Made by `cached`."""

    cached = True

    def __init__(self, model: Any, config: AdaptedConfig) -> None:
        self.model, self.config, self.device = model, config, model.device
        self._run, self.lm_head = _split(model)

    def __repr__(self) -> str:
        return f"CachedModel({type(self.model).__name__}, {self.config})"

    @torch.no_grad()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        cache: PrefixCache | None = None,
        append: Sequence[int] | None = None,
    ) -> Tensor:
        """One pass, as `lsp.models.Transformer.forward`."""
        check_pass(tokens, positions, cu_seqlens, self.config.vocab_size, self.device)
        batch = cu_seqlens.size(0) - 1
        keys_and_values = SuffixCache(self.new_cache(batch, 0) if cache is None else cache)
        with keys_and_values.appending([0] * batch if append is None else append, cu_seqlens), in_eval_mode(self.model):
            return self._run(tokens[None], position_ids=positions[None], past_key_values=keys_and_values)[0]

    def new_cache(self, batch: int, capacity: int) -> PrefixCache:
        return _prefix(self.model, batch, capacity)


def cached(
    model: Any,
    *,
    mask_id: int | None = None,
    stop_ids: Sequence[int] | None = None,
    max_length: int | None = None,
    shifted: bool = False,
) -> Model:
    """A model of transformers for `lsp.generate` and all that takes models, on the prefix cache.

    Parameters
    ----------
    model : PreTrainedModel
        Loaded with ``attn_implementation="lsp_suffix"``. One that `lsp.register` brought is its own `Transformer`.
    mask_id, stop_ids, max_length, shifted
        As in `lsp.adapt`.
    """
    inner = getattr(model, "transformer", None)
    if isinstance(inner, Model):
        return inner
    implementation = model.config._attn_implementation
    if implementation != ATTENTION:
        raise ValueError(f"Invalid attn_implementation: expected {ATTENTION!r}, got {implementation!r}")
    return CachedModel(model, config_of(model, None, mask_id, stop_ids, max_length, shifted))


def generate(
    model: Any,
    input_ids: Tensor,
    *,
    generation_config: Any,
    logits_processor: Any = (),
    stopping_criteria: Any = (),
    scheduler: Scheduler | str | None = None,
    vocabulary: Vocabulary | None = None,
    mask_id: int | None = None,
    shifted: bool = False,
    options: Mapping[str, Any] | None = None,
    **prepared: Any,
) -> Tensor:
    """For ``model.generate(ids, custom_generate=generate, …)``: decodes by the longest stable prefix, on its cache.

    Of the generation config it takes the lengths, eos_token_id, pad_token_id, and with do_sample the temperature. What
    it cannot do, such as beams and logits processors, is refused. The arguments from `scheduler` on may be passed to
    ``model.generate`` beside it.

    Parameters
    ----------
    scheduler : Scheduler or str, optional
        As in `lsp.generate`.
    vocabulary : Vocabulary, optional
        Delimiters and stops, by default eos_token_id alone.
    mask_id, shifted
        As in `lsp.adapt`, for what the model's config does not say.
    options : mapping, optional
        Options of the loop, as in `lsp.Options`: ``{"block_length": 32}``.

    Returns
    -------
    Tensor, int64 [B, P + N]
        As transformers returns it: N is the longest continuation, shorter ones are padded.
    """
    _refuse_generation(generation_config, logits_processor, stopping_criteria)
    attention_mask = prepared.get("attention_mask")  # by name it would be passed twice
    check_padding("input_ids", input_ids, attention_mask)
    runner = cached(model, mask_id=mask_id, shifted=shifted)
    if runner.config.mask_id is None:
        raise ValueError("Invalid mask_id: expected a number, as the model's config does not name it, got None")
    stops = _ids(generation_config.eos_token_id)
    known = vocabulary_for(vocabulary, runner.config.vocab_size, runner.config.mask_id, runner.device, stops)
    chosen = scheduler_of(scheduler)
    temperature = generation_config.temperature if generation_config.do_sample else 0.0
    given = chosen.options.replaced_by({**(options or {}), "temperature": temperature or 0.0})
    new = generation_config.max_length - input_ids.size(1)
    canvases = decoded(runner, input_ids, attention_mask, new, chosen, known, given)
    pads = _ids(generation_config.pad_token_id)
    longest = max((canvas.end - canvas.prompt_length for canvas in canvases), default=0)
    longest = max(longest, 0)  # a stop may end a prompt that ends with masks
    out = continuation(input_ids, canvases, new, pads[0] if pads else None)
    return out[:, : input_ids.size(1) + longest].to(input_ids.device)


def _refuse_generation(config: Any, *processors: Any) -> None:
    for name in ("num_beams", "num_return_sequences"):
        if getattr(config, name, None) not in (None, 1):
            raise ValueError(f"Invalid {name}: expected 1, got {getattr(config, name)}")
    if getattr(config, "return_dict_in_generate", False):
        raise ValueError("Invalid return_dict_in_generate: expected False, got True")
    kinds = [type(each).__name__ for several in processors for each in several or ()]
    if others := sorted(set(kinds) - SERVED):
        raise ValueError(f"Invalid generation config: expected nothing that needs {others[0]}, got it")


def _ids(given: Any) -> tuple[int, ...]:
    """One id, several, or none."""
    return () if given is None else tuple(given) if isinstance(given, list | tuple) else (int(given),)


def _prefix(model: Any, batch: int, capacity: int) -> PrefixCache:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return PrefixCache(config.num_hidden_layers, batch, heads, capacity, size, dtype=model.dtype, device=model.device)


@torch.no_grad()
def _split(model: Any) -> tuple[Callable[..., Tensor], Any]:
    """From ids to hidden states, and from these to logits. If the head is more than a product, all logits at once."""
    head = model.get_output_embeddings()
    base = getattr(model, "model", model) if model.base_model is model else model.base_model
    ids = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    with in_eval_mode(model):
        if base is not model and isinstance(head, nn.Linear) and torch.equal(head(base(ids)[0]), model(ids).logits):
            return lambda ids, **given: base(ids, **given)[0], head
    return lambda ids, **given: model(ids, **given).logits, lambda logits: logits


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, unpadded)

"""The generation function of d2Cache, which commits the longest stable prefix in each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from lsp.integrations._common import refuse_noise, refuse_others
from lsp.integrations._frames import Frames, id_of
from lsp_kernels import PrefixRule

__all__ = ["generate"]


def generate(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    block_length: int = 32,
    gen_length: int = 128,
    temperature: float = 0.0,
    mask_token_id: int | None = None,
    pad_token_id: int | None = None,
    eos_token_id: int | None = None,
    stop_until_eos: bool = False,
    gamma: float | None = None,
    debias: bool = False,
    threshold: float | None = None,
    factor: float | None = None,
    output_hidden_states: bool = False,
    output_probs: bool = False,
    cache_cls: Callable[[Any], Any] | None = None,
    *,
    rule: PrefixRule | Mapping[str, Any] | None = None,
    delimiters: Iterable[int] = (),
) -> Any:
    """Decodes a batch with the suite's model and cache; to be registered there as the strategy ``"lsp"``.

    Parameters
    ----------
    model, input_ids, attention_mask, block_length, gen_length, cache_cls
        As the suite's own strategies take them. Only masks of the first block that has any are committed.
    temperature : float
        0: decoding is greedy.
    mask_token_id, pad_token_id, eos_token_id : int, optional
        By default the mask and the end come from the environment, as in the suite. With `pad_token_id` and without an
        `attention_mask`, padding is not attended to.
    stop_until_eos : bool
        A sequence is finished by its first `eos_token_id`. Otherwise every position is decoded.
    gamma, debias, threshold, factor, output_hidden_states, output_probs
        Must be unset: they ask for another rule, or for what is not computed here.
    rule : PrefixRule or mapping, optional
        By default `PrefixRule.guarded`; a mapping, such as one from YAML, replaces some of its fields.
    delimiters : iterable of int
        Ids that a commit ends at, for a rule with ``snap: true``.

    Returns
    -------
    DecodeRecord
        With one delta for each pass.
    """
    refuse_noise(temperature, "low_confidence")
    refuse_others(gamma=gamma, debias=debias, threshold=threshold, factor=factor)
    refuse_others(output_hidden_states=output_hidden_states, output_probs=output_probs)
    mask_id = id_of(mask_token_id, "MASK_TOKEN_ID")
    stop = id_of(eos_token_id, "EOS_TOKEN_ID") if stop_until_eos else None
    if attention_mask is None and pad_token_id is not None:
        attention_mask = (input_ids != pad_token_id).long()
    cache = None if cache_cls is None else cache_cls(model.config)
    frames = Frames(model, mask_id, stop, rule, delimiters)
    return frames.decode(input_ids, attention_mask, gen_length, block_length, cache)

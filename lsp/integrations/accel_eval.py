"""The generation function of DLLM-AccelEval, a fork of d2Cache: that of `d2cache` under the fork's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from lsp.integrations import d2cache
from lsp.integrations._frames import id_of
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
    eot_token_id: int | None = None,
    stop_until_eot: bool = False,
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
    """As `lsp.integrations.d2cache.generate`, where what ends a sequence is called eos and not eot."""
    return d2cache.generate(
        model,
        input_ids,
        attention_mask,
        block_length,
        gen_length,
        temperature,
        mask_token_id,
        pad_token_id,
        id_of(eot_token_id, "EOT_TOKEN_ID") if stop_until_eot else None,
        stop_until_eot,
        gamma,
        debias,
        threshold,
        factor,
        output_hidden_states,
        output_probs,
        cache_cls,
        rule=rule,
        delimiters=delimiters,
    )

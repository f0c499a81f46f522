"""What each operator checks of its operands where Python serves it: in Triton, in the reference, on meta tensors.

`csrc/checks.h` is the same for C++. A check of `SHAPES` looks at shapes, dtypes, devices and strides, one of `VALUES`
at the values of lengths and borders; both take the operator's arguments. The public functions call an operator without
checking anything; when it raises, `explain` finds the words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._checks import (
    FLOATS,
    check_attention,
    check_gate_up,
    check_head,
    check_head_norms,
    check_leaves,
    check_logits,
    check_lowest,
    check_noise,
    check_noise_values,
    check_norm,
    check_offset,
    check_product,
    check_rotation,
    check_rule_numbers,
    check_scale,
    check_sequence_values,
    check_sequences,
    check_stats,
    check_tables,
)
from ._overlap import check_apart, check_overlap, check_results, check_written
from .errors import check_attention_lengths, check_slots, fail_dtype, values_are_free
from .rule import PrefixRule

EXACT = (*FLOATS, torch.float64)  # the dtypes of the reference


def check_token_stats(logits: Tensor, *rest: Any) -> None:
    check_logits(logits)
    _check_stats_options(logits, logits.size(-1), *rest)


def _check_stats_options(
    rows: Tensor,
    size: int,
    flags: Tensor | None,
    suppressed: Tensor | None,
    lowest: int,
    id_offset: int,
    noise: Tensor | None,
    *_: Any,
) -> None:
    """What follows the logits of `size` ids, or the hidden states and the weight."""
    check_tables(flags, suppressed, size, rows)
    check_lowest(lowest, size)
    check_sequences(rows, rows.dim() - 1, None, None, None)
    check_offset(id_offset, size)
    check_noise(noise, rows)


def check_select_prefix(
    margins: Tensor,
    tokens: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    *rule: Any,
) -> None:
    check_stats(margins, tokens)
    check_tables(flags, None, None, margins)
    check_sequences(margins, margins.dim(), cu_rows, n_active, starts)
    check_rule_numbers(*rule)


def check_commit_prefix(logits: Tensor, *rest: Any) -> None:
    check_logits(logits)
    _check_commit_options(logits, logits.size(-1), *rest)


def _check_commit_options(
    rows: Tensor,
    size: int,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    suppressed: Tensor | None,
    lowest: int,
    *rest: Any,
) -> None:
    """What follows the logits of `size` ids, or the hidden states and the weight."""
    check_tables(flags, suppressed, size, rows)
    check_lowest(lowest, size)
    check_sequences(rows, rows.dim() - 1, cu_rows, n_active, starts)
    check_rule_numbers(*rest[:7])
    check_noise(rest[7], rows)


def check_linear_token_stats(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> None:
    check_head(hidden, weight, bias)
    _check_stats_options(hidden, weight.size(0), *rest)


def check_linear_commit_prefix(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> None:
    check_head(hidden, weight, bias)
    _check_commit_options(hidden, weight.size(0), *rest)


def check_suffix_attention(*arguments: Any, floats: tuple[torch.dtype, ...] = EXACT) -> None:
    """`floats`: the dtypes that the backend serves; float64 is for the reference alone."""
    *tensors, scale, _partials, _tickets = arguments
    q, k, v, k_cache, v_cache, _cu_seqlens, _prefix_lens, append_lens, _slots = tensors
    check_attention(*tensors)
    _check_served("q", q, floats)
    check_scale(scale)
    check_leaves(k_cache, v_cache, append_lens)
    if append_lens is not None:
        check_overlap(q, k, v, k_cache, v_cache)


def check_suffix_attention_into(*arguments: Any, **options: Any) -> None:
    *before, out, lse = arguments
    check_suffix_attention(*before, **options)
    check_results(dict(zip(("q", "k", "v", "k_cache", "v_cache"), before, strict=False)), out, lse)


def check_add_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, floats: tuple[torch.dtype, ...] = EXACT
) -> None:
    """`floats` as in `check_suffix_attention`."""
    check_norm(x, residual, weight, eps)
    _check_served("x", x, floats)
    if residual is not None:
        check_written({"residual": residual}, {"x": x, "weight": weight})


def check_rotate_(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    floats: tuple[torch.dtype, ...] = EXACT,
) -> None:
    """`floats` as in `check_suffix_attention`."""
    norms = {name: weight for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)) if weight is not None}
    check_rotation(q, k, cos, sin)
    check_head_norms(q, norms, eps)
    _check_served("q", q, floats)
    check_written({"q": q, "k": k}, {"cos": cos, "sin": sin, **norms})
    check_apart(q, k)


def check_silu_mul(gate_up: Tensor, floats: tuple[torch.dtype, ...] = EXACT) -> None:
    """`floats` as in `check_suffix_attention`."""
    check_gate_up(gate_up)
    _check_served("gate_up", gate_up, floats)


def check_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, scales: Tensor | None, floats: tuple[torch.dtype, ...] = EXACT
) -> None:
    """`floats` as in `check_suffix_attention`."""
    check_product(x, weight, bias, scales)
    _check_served("x", x, floats)


def _check_served(name: str, tensor: Tensor, floats: tuple[torch.dtype, ...]) -> None:
    if tensor.dtype not in floats:
        fail_dtype(name, "float32, bfloat16 or float16", tensor)


def select_prefix_values(margins: Tensor, _tokens: Tensor, *rest: Any) -> None:
    cu_rows, n_active, starts, _flags, *rule = rest
    check_sequence_values(margins, margins.dim(), cu_rows, n_active, starts, PrefixRule.of(*rule))


def commit_prefix_values(logits: Tensor, *rest: Any) -> None:
    cu_rows, n_active, starts, _flags, _suppressed, _lowest, *rule, noise, _log_odds, _partials, _tickets = rest
    check_sequence_values(logits, logits.dim() - 1, cu_rows, n_active, starts, PrefixRule.of(*rule))
    check_noise_values(noise)


def suffix_attention_values(q: Tensor, *rest: Any) -> None:
    _k, _v, k_cache, _v_cache, cu_seqlens, prefix_lens, append_lens, slots, *_ = rest
    given = check_attention_lengths(q.size(-3), k_cache.size(2), cu_seqlens, prefix_lens, append_lens)
    if slots is not None:
        check_slots(k_cache.size(0), slots, given)


def token_stats_values(_logits: Tensor, *rest: Any) -> None:
    check_noise_values(rest[4])


def linear_token_stats_values(hidden: Tensor, _weight: Tensor, _bias: Tensor | None, *rest: Any) -> None:
    token_stats_values(hidden, *rest)


def linear_commit_prefix_values(hidden: Tensor, _weight: Tensor, _bias: Tensor | None, *rest: Any) -> None:
    commit_prefix_values(hidden, *rest)


SHAPES: dict[str, Callable[..., None]] = {
    "token_stats": check_token_stats,
    "select_prefix": check_select_prefix,
    "commit_prefix": check_commit_prefix,
    "linear_token_stats": check_linear_token_stats,
    "linear_commit_prefix": check_linear_commit_prefix,
    "suffix_attention": check_suffix_attention,
    "suffix_attention_into": check_suffix_attention_into,
    "add_norm": check_add_norm,
    "rotate_": check_rotate_,
    "silu_mul": check_silu_mul,
    "linear": check_linear,
}
VALUES: dict[str, Callable[..., None]] = {
    "token_stats": token_stats_values,
    "select_prefix": select_prefix_values,
    "commit_prefix": commit_prefix_values,
    "linear_token_stats": linear_token_stats_values,
    "linear_commit_prefix": linear_commit_prefix_values,
    "suffix_attention": suffix_attention_values,
    "suffix_attention_into": suffix_attention_values,
}


def check_values(name: str, rows: Tensor, *rest: Any) -> None:
    """Checks the values of an operator's arguments, where reading them is free."""
    if name in VALUES and values_are_free(rows):
        VALUES[name](rows, *rest)


def explain(name: str, *arguments: Any) -> None:
    """Raises the error in words for arguments that the operator refused; returns if nothing is wrong with them."""
    SHAPES[name](*arguments)
    check_values(name, *arguments)

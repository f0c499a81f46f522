"""Checks of the arguments of the operations; the general ones are in `errors`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._shapes import batch_of
from .errors import (
    check_attention_lengths,
    check_borders,
    check_device,
    check_index,
    check_kind,
    check_tensor,
    fail_dtype,
    fail_shape,
    values_are_free,
)
from .rule import PrefixRule
from .vocabulary import Vocabulary

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_logits(logits: Tensor, vocabulary: Vocabulary | None) -> None:
    check_tensor("logits", logits)
    if logits.dim() not in (2, 3):
        fail_shape("logits", "[B, L, V] or [R, V]", logits)
    size = logits.size(-1)
    if size == 0:
        fail_shape("logits", "at least one id in the last dimension", logits)
    if logits.dtype not in FLOATS:
        fail_dtype("logits", "float32, bfloat16 or float16", logits)
    if size > 1 and logits.stride(-1) != 1:
        raise ValueError(
            f"Invalid strides of logits: expected the last dimension to be contiguous, got {logits.stride()}"
        )
    if vocabulary is not None:
        check_kind("vocabulary", vocabulary, Vocabulary)
        if vocabulary.size != size:
            raise ValueError(f"Invalid vocabulary: expected size V = {size}, got {vocabulary.size}")
        if vocabulary.device != logits.device:
            raise ValueError(
                f"Invalid device of vocabulary: expected {logits.device} as the logits, got {vocabulary.device}; "
                "use vocabulary.to(device)"
            )


def check_stats(margins: Tensor, tokens: Tensor, vocabulary: Vocabulary | None) -> None:
    check_tensor("margins", margins)
    check_tensor("tokens", tokens)
    if margins.dim() not in (1, 2):
        fail_shape("margins", "[B, L] or [R]", margins)
    if margins.dtype != torch.float32:
        fail_dtype("margins", "float32", margins)
    if tokens.shape != margins.shape:
        fail_shape("tokens", f"{list(margins.shape)} as the margins", tokens)
    if tokens.dtype != torch.int64:
        fail_dtype("tokens", "int64", tokens)
    check_device("tokens", tokens, margins)
    if vocabulary is not None:
        check_kind("vocabulary", vocabulary, Vocabulary)
        check_device("vocabulary", vocabulary.flags, margins)


def check_sequences(
    rows: Tensor,
    row_dims: int,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    rule: PrefixRule,
) -> None:
    """Checks the arguments that say which rows belong to which sequence.

    `rows` has `row_dims` dimensions before the vocabulary: 2 for a batch [B, L], 1 for packed rows [R].
    """
    if cu_rows is not None:
        if row_dims == 2:
            raise ValueError("Invalid cu_rows: expected None with a batch of sequences, got a tensor")
        check_index("cu_rows", cu_rows, None, rows)
    batch = batch_of(rows, row_dims, cu_rows)
    if n_active is not None:
        check_index("n_active", n_active, batch, rows)
    if starts is not None:
        check_index("starts", starts, batch, rows)
    if not (cu_rows is None and n_active is None and starts is None) and values_are_free(rows):
        check_sequence_values(rows.size(row_dims - 1), batch, cu_rows, n_active, starts, rule)


def check_sequence_values(
    length: int,
    batch: int,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    rule: PrefixRule,
) -> None:
    """Raises unless borders, starts and counts fit the rows; `length` rows per sequence, or in all if packed."""
    given = [length] * batch
    if cu_rows is not None:
        given = check_borders("cu_rows", cu_rows, length, whole=False)
    if starts is not None:
        for b, start in enumerate(starts.tolist()):
            if not 0 <= start <= given[b]:
                raise ValueError(f"Invalid starts[{b}]: expected 0 to {given[b]} (its rows), got {start}")
            given[b] -= start
    if n_active is not None:
        for b, n in enumerate(n_active.tolist()):
            if n < 0:
                raise ValueError(f"Invalid n_active[{b}]: expected at least 0, got {n}")
            if n > given[b] and rule.scored_rows(n) > given[b]:
                raise ValueError(
                    f"Invalid n_active[{b}]: expected at least {rule.scored_rows(n)} rows "
                    f"(the rule looks at them with {n} active positions), got {given[b]}"
                )


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_seqlens: Tensor | None,
    prefix_lens: Tensor,
    append_lens: Tensor | None,
) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, tensor)
        if tensor.dtype not in (*FLOATS, torch.float64):
            fail_dtype(name, "float32, bfloat16, float16 or float64", tensor)
        if tensor.dtype != q.dtype:
            fail_dtype(name, f"{q.dtype} as q", tensor)
        check_device(name, tensor, q)
    if cu_seqlens is None and q.dim() != 4:
        fail_shape("q", "[B, N, Hq, D] without cu_seqlens", q)
    if cu_seqlens is not None and q.dim() != 3:
        fail_shape("q", "[T, Hq, D] with cu_seqlens", q)
    *tokens, heads, size = q.shape
    if size % 16 or not 32 <= size <= 256:
        fail_shape("q", "a head dimension that is a multiple of 16 from 32 to 256", q)
    if heads == 0:
        fail_shape("q", "at least one head", q)
    if k.dim() != q.dim() or k.size(-2) == 0 or heads % k.size(-2) or list(k.shape) != [*tokens, k.size(-2), size]:
        fail_shape("k", f"{[*tokens, 'Hkv', size]} with Hkv a divisor of Hq = {heads}".replace("'", ""), k)
    if v.shape != k.shape:
        fail_shape("v", f"{list(k.shape)} as k", v)
    if cu_seqlens is not None:
        check_index("cu_seqlens", cu_seqlens, None, q)
    batch = q.size(0) if cu_seqlens is None else cu_seqlens.size(0) - 1
    if k_cache.dim() != 4 or k_cache.size(0) != batch or k_cache.size(1) != k.size(-2) or k_cache.size(3) != size:
        fail_shape("k_cache", f"[{batch}, {k.size(-2)}, S, {size}]", k_cache)
    if v_cache.shape != k_cache.shape:
        fail_shape("v_cache", f"{list(k_cache.shape)} as k_cache", v_cache)
    for name, tensor in (("q", q), ("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(
                f"Invalid strides of {name}: expected the last dimension to be contiguous, got {tensor.stride()}"
            )
    check_index("prefix_lens", prefix_lens, batch, q)
    if append_lens is not None:
        check_index("append_lens", append_lens, batch, q)
    if values_are_free(q):
        check_attention_lengths(q.size(-3), k_cache.size(2), cu_seqlens, prefix_lens, append_lens)


def as_scale(scale: float) -> float:
    """The factor of the scores as a finite Python float."""
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"Invalid scale: expected a number, got {type(scale).__name__}")
    if not math.isfinite(scale):
        raise ValueError(f"Invalid scale: expected a finite number, got {scale}")
    return float(scale)

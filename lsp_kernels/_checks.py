"""Checks of arguments. An error names the argument, what was expected and what came; nothing has been written by then.

Shapes, dtypes, devices and strides are checked always. Values are checked where reading them is free: in eager calls on
CPU tensors, and on other devices with ``LSP_CHECK=1``.
"""

from __future__ import annotations

import math
import os
from itertools import pairwise
from typing import NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor

from lsp_kernels.rule import PrefixRule
from lsp_kernels.types import Vocabulary, Workspace

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


def check_rule(rule: PrefixRule, vocabulary: Vocabulary | None) -> None:
    check_kind("rule", rule, PrefixRule)
    if vocabulary is not None:
        check_kind("vocabulary", vocabulary, Vocabulary)
    if rule.snap and (vocabulary is None or not vocabulary.has_delimiters):
        raise ValueError(
            "Invalid rule: snap=True expects a vocabulary with delimiters, got none (it would commit min_length for "
            "ever); pass PrefixRule(snap=False) or Vocabulary(..., delimiters=...)"
        )


def check_sequences(
    rows: Tensor,
    row_dims: int,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    rule: PrefixRule,
) -> None:
    """Checks the arguments that say which rows are whose. The first `row_dims` dimensions of `rows` are rows."""
    if row_dims == 2:
        batch = rows.size(0)
        if cu_rows is not None:
            raise ValueError("Invalid cu_rows: expected None with a batch of sequences, got a tensor")
    elif cu_rows is not None:
        check_index("cu_rows", cu_rows, None, rows)
        batch = cu_rows.size(0) - 1
    else:
        batch = 1
    if n_active is not None:
        check_index("n_active", n_active, batch, rows)
    if starts is not None:
        check_index("starts", starts, batch, rows)
    if not (cu_rows is None and n_active is None and starts is None) and values_are_free(rows):
        check_values(rows.size(row_dims - 1), batch, cu_rows, n_active, starts, rule)


def check_values(
    length: int,
    batch: int,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    rule: PrefixRule,
) -> None:
    given = [length] * batch
    if cu_rows is not None:
        borders = cu_rows.tolist()
        given = [end - begin for begin, end in pairwise(borders)]
        if borders[0] < 0 or borders[-1] > length or min(given, default=0) < 0:
            raise ValueError(
                f"Invalid cu_rows: expected borders that do not fall, from 0 to at most {length}, got {borders}"
            )
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
                    f"Invalid n_active[{b}]: with {n} active positions the rule looks at "
                    f"{rule.scored_rows(n)} rows, got {given[b]}"
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
        check_attention_values(q.size(-3), k_cache.size(2), cu_seqlens, prefix_lens, append_lens)


def check_attention_values(
    length: int, capacity: int, cu_seqlens: Tensor | None, prefix_lens: Tensor, append_lens: Tensor | None
) -> None:
    prefixes = prefix_lens.tolist()
    given = [length] * len(prefixes)
    if cu_seqlens is not None:
        borders = cu_seqlens.tolist()
        given = [end - begin for begin, end in pairwise(borders)]
        if borders[0] != 0 or borders[-1] != length or min(given, default=0) < 0:
            raise ValueError(
                f"Invalid cu_seqlens: expected borders that do not fall, from 0 to {length}, got {borders}"
            )
    for b, prefix in enumerate(prefixes):
        if not 0 <= prefix <= capacity:
            raise ValueError(f"Invalid prefix_lens[{b}]: expected 0 to {capacity} (the cache's slots), got {prefix}")
    for b, append in enumerate([] if append_lens is None else append_lens.tolist()):
        most = min(given[b], capacity - prefixes[b])
        if not 0 <= append <= most:
            raise ValueError(
                f"Invalid append_lens[{b}]: expected 0 to {most} ({given[b]} tokens in the pass, "
                f"{capacity - prefixes[b]} free slots), got {append}"
            )


def as_scale(scale: float) -> float:
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"Invalid scale: expected a number, got {type(scale).__name__}")
    if not math.isfinite(scale):
        raise ValueError(f"Invalid scale: expected a finite number, got {scale}")
    return float(scale)


def values_are_free(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or is_functorch_wrapped_tensor(tensor):
        return False  # no values to look at
    return tensor.is_cpu or (not tensor.is_meta and os.environ.get("LSP_CHECK") == "1")


def check_index(name: str, tensor: Tensor, size: int | None, rows: Tensor) -> None:
    check_tensor(name, tensor)
    if tensor.dim() != 1 or (tensor.size(0) < 1 if size is None else tensor.size(0) != size):
        fail_shape(name, "[B + 1]" if size is None else f"[{size}]", tensor)
    if tensor.dtype != torch.int32:
        fail_dtype(name, "int32", tensor)
    if not tensor.is_contiguous():
        raise ValueError(f"Invalid strides of {name}: expected contiguous, got {tensor.stride()}")
    check_device(name, tensor, rows)


def check_workspace(workspace: Workspace | None) -> None:
    if workspace is not None:
        check_kind("workspace", workspace, Workspace)


def check_tensor(name: str, value: object) -> None:
    check_kind(name, value, Tensor)
    if value.layout != torch.strided or value.is_nested:  # type: ignore[attr-defined]
        raise ValueError(f"Invalid layout of {name}: expected a dense tensor, got {value.layout}")  # type: ignore[attr-defined]


def check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"Invalid {name}: expected a {kind.__name__}, got {type(value).__name__}")


def check_device(name: str, tensor: Tensor, other: Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(f"Invalid device of {name}: expected {other.device}, got {tensor.device}")


def fail_shape(name: str, expected: str, tensor: Tensor) -> NoReturn:
    raise ValueError(f"Invalid shape of {name}: expected {expected}, got {list(tensor.shape)}")


def fail_dtype(name: str, expected: str, tensor: Tensor) -> NoReturn:
    raise TypeError(f"Invalid dtype of {name}: expected {expected}, got {tensor.dtype}")

"""Checks of single arguments of the operations; the general ones are in `errors`.

Which of them an operator makes is in `_operands`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._shapes import batch_of
from .errors import (
    as_integer,
    check_borders,
    check_device,
    check_index,
    check_kind,
    check_tensor,
    fail_dtype,
    fail_shape,
)
from .rule import MILLION, PrefixRule
from .vocabulary import Vocabulary

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


MOST_ROWS = 2**31 - 1
LONGEST_ROW = 2**15  # that is normalised: a program on a GPU holds one in registers
LONGEST_HEAD = 256
HIGHEST_TEMPERATURE = 1e30  # the largest noise, 22.9 times that, is still a float32


def check_logits(logits: Tensor) -> None:
    check_tensor("logits", logits)
    if logits.dim() not in (2, 3):
        fail_shape("logits", "[B, L, V] or [R, V]", logits)
    size = logits.size(-1)
    if size == 0:
        fail_shape("logits", "at least one id in the last dimension", logits)
    if size > MOST_ROWS:
        fail_shape("logits", "at most 2^31 - 1 ids in the last dimension", logits)
    if logits.dtype not in FLOATS:
        fail_dtype("logits", "float32, bfloat16 or float16", logits)
    _check_last_stride("logits", logits)


def check_head(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises unless these are hidden states [B, L, d] or [R, d], a weight [V, d] and a bias [V] of one dtype."""
    check_tensor("hidden", hidden)
    check_tensor("weight", weight)
    if hidden.dim() not in (2, 3):
        fail_shape("hidden", "[B, L, d] or [R, d]", hidden)
    size = hidden.size(-1)
    if size == 0:
        fail_shape("hidden", "at least one value in the last dimension", hidden)
    if weight.dim() != 2 or weight.size(1) != size:
        fail_shape("weight", f"[V, {size}]", weight)
    if not 1 <= weight.size(0) <= MOST_ROWS:
        fail_shape("weight", "1 to 2^31 - 1 ids in the first dimension", weight)
    if hidden.dtype not in FLOATS:
        fail_dtype("hidden", "float32, bfloat16 or float16", hidden)
    if weight.dtype != hidden.dtype:
        fail_dtype("weight", f"{hidden.dtype} as hidden", weight)
    check_device("weight", weight, hidden)
    _check_last_stride("hidden", hidden)
    _check_last_stride("weight", weight)
    if bias is not None:
        check_table("bias", bias, hidden.dtype)
        check_device("bias", bias, hidden)
        if bias.size(0) != weight.size(0):
            fail_shape("bias", f"[{weight.size(0)}]", bias)


def check_vocabulary(vocabulary: Vocabulary | None, size: int | None, other: Tensor) -> None:
    """Raises unless it is a vocabulary of `size` ids, any number if None, on the device of `other`."""
    if vocabulary is None:
        return
    check_kind("vocabulary", vocabulary, Vocabulary)
    if size is not None and vocabulary.size != size:
        raise ValueError(f"Invalid vocabulary: expected size V = {size}, got {vocabulary.size}")
    if vocabulary.device != other.device:
        raise ValueError(
            f"Invalid device of vocabulary: expected {other.device} as the rows, got {vocabulary.device}; "
            "use vocabulary.to(device)"
        )


def check_tables(flags: Tensor | None, suppressed: Tensor | None, size: int | None, other: Tensor) -> None:
    """Raises unless these are the tables of a vocabulary of `size` ids, any number if None."""
    for name, table, dtype in (("flags", flags, torch.uint8), ("suppressed", suppressed, torch.int32)):
        if table is None:
            continue
        check_table(name, table, dtype)
        check_device(name, table, other)
    if flags is not None and size is not None and flags.size(0) != size:
        fail_shape("flags", f"[{size}]", flags)


def check_table(name: str, table: Tensor, dtype: torch.dtype) -> None:
    """Raises unless `table` is contiguous, with one dimension and of this dtype."""
    check_tensor(name, table)
    if table.dim() != 1:
        fail_shape(name, "one dimension", table)
    if table.dtype != dtype:
        fail_dtype(name, str(dtype).removeprefix("torch."), table)
    if not table.is_contiguous():
        raise ValueError(f"Invalid strides of {name}: expected contiguous, got {table.stride()}")


def check_lowest(lowest: int, size: int) -> None:
    """Raises unless `lowest`, the id for rows without a logit above -inf, is one of `size` ids."""
    if not 0 <= lowest < size:
        raise ValueError(f"Invalid lowest: expected an id from 0 to {size - 1}, got {lowest}")


def check_offset(id_offset: int, size: int) -> None:
    """Raises unless all ids of a shard of `size` ids that begins with `id_offset` fit into 31 bits."""
    as_integer("id_offset", id_offset, 0)
    if id_offset > MOST_ROWS - size:
        raise ValueError(f"Invalid id_offset: expected at most {MOST_ROWS - size} with {size} ids, got {id_offset}")


def check_noise(noise: Tensor | None, rows: Tensor) -> None:
    """Raises unless `noise` is the table of a `Noise` for these rows [..., V] or [..., d]."""
    if noise is None:
        return
    check_tensor("noise", noise)
    check_device("noise", noise, rows)
    if noise.dtype != torch.int64:
        fail_dtype("noise", "int64", noise)
    if noise.shape != (*rows.shape[:-1], 3):
        fail_shape("noise", f"{[*rows.shape[:-1], 3]}, three numbers for each row", noise)
    if not noise.is_contiguous():
        raise ValueError(f"Invalid strides of noise: expected contiguous, got {noise.stride()}")


def check_noise_values(noise: Tensor | None) -> None:
    """Raises unless every row has a position, a pass and a temperature that `Noise` would accept."""
    if noise is None or noise.numel() == 0:
        return
    places, temperatures = noise[..., 1], noise[..., 2].int().view(torch.float32)
    for name, values in (("positions", places & 0xFFFFFFFF), ("passes", places >> 32)):
        if not 0 <= values.amin() <= values.amax() <= MOST_ROWS:
            got = f"{values.amin()} to {values.amax()}"
            raise ValueError(f"Invalid {name} of noise: expected 0 to 2^31 - 1, got {got}")
    if not 0 <= temperatures.amin() <= temperatures.amax() <= HIGHEST_TEMPERATURE:
        got = f"{temperatures.amin():g} to {temperatures.amax():g}"
        raise ValueError(f"Invalid temperature of noise: expected 0 to 1e30, got {got}")


def check_stats(margins: Tensor, tokens: Tensor) -> None:
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


def check_rule_numbers(
    alpha: int, beta: int, min_length: int, window: int, floor: float | None, snap: bool, keep: bool
) -> None:
    """Raises unless these are arguments that a `PrefixRule` can have."""
    bounds = [
        ("beta_ppm", beta, 1, MILLION),
        ("min_length", min_length, 1, MOST_ROWS),
        ("window", window, 0, MOST_ROWS),
    ]
    if floor is None:
        bounds.append(("alpha_ppm", alpha, 1, beta))
    for name, value, least, most in bounds:
        if not least <= value <= most:
            raise ValueError(f"Invalid {name}: expected {least} to {most}, got {value}")
    if floor is not None and not floor >= 0:
        raise ValueError(f"Invalid floor: expected a number >= 0 or None, got {floor}")


def check_sequences(
    rows: Tensor, row_dims: int, cu_rows: Tensor | None, n_active: Tensor | None, starts: Tensor | None
) -> None:
    """Checks the arguments that say which rows belong to which sequence, as far as shapes tell.

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
    if math.prod(rows.shape[:row_dims]) + batch > MOST_ROWS:
        fail_shape("rows", "fewer than 2^31 rows and sequences together", rows)


def check_sequence_values(
    rows: Tensor,
    row_dims: int,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    rule: PrefixRule,
) -> None:
    """Raises unless borders, starts and counts fit the rows; the arguments are those of `check_sequences`."""
    length, batch = rows.size(row_dims - 1), batch_of(rows, row_dims, cu_rows)
    given = [length] * batch
    if cu_rows is not None:
        given = check_borders("cu_rows", cu_rows, length, from_zero=False)
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
    slots: Tensor | None,
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
    if k_cache.dim() != 4 or k_cache.size(1) != k.size(-2) or k_cache.size(3) != size:
        fail_shape("k_cache", f"[{'B' if slots is None else 'rows'}, {k.size(-2)}, S, {size}]", k_cache)
    if slots is None and k_cache.size(0) != batch:
        fail_shape("k_cache", f"{batch} rows, one for each sequence (or slots)", k_cache)
    if slots is not None and k_cache.size(0) == 0 < batch:
        fail_shape("k_cache", "at least one row", k_cache)
    if v_cache.shape != k_cache.shape:
        fail_shape("v_cache", f"{list(k_cache.shape)} as k_cache", v_cache)
    for name, tensor in (("q", q), ("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        _check_last_stride(name, tensor)
    check_index("prefix_lens", prefix_lens, batch, q)
    if append_lens is not None:
        check_index("append_lens", append_lens, batch, q)
    if slots is not None:
        check_index("slots", slots, batch, q)
    if math.prod(tokens) * heads + batch > MOST_ROWS:
        fail_shape("q", "fewer than 2^31 rows and sequences together", q)
    if k_cache.size(2) > MOST_ROWS - q.size(-3):
        fail_shape("k_cache", "fewer than 2^31 slots and tokens together", k_cache)


def check_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> None:
    """Raises unless these are rows [T, d] or [T, H, d], what they are added to, and the weight [d] of a norm."""
    _check_rows("x", x, (2, 3), "[T, d] or [T, H, d]")
    size = x.size(-1)
    if not 1 <= size <= LONGEST_ROW:
        fail_shape("x", f"1 to {LONGEST_ROW} values in the last dimension", x)
    if residual is not None:
        _check_like("residual", residual, x, "x")
        if residual.shape != x.shape:
            fail_shape("residual", f"{list(x.shape)} as x", residual)
        _check_last_stride("residual", residual)
    _check_norm_weight("weight", weight, x, "x")
    _check_eps(eps)


def _check_norm_weight(name: str, weight: Tensor, x: Tensor, of: str) -> None:
    _check_like(name, weight, x, of)
    if weight.shape != x.shape[-1:]:
        fail_shape(name, f"[{x.size(-1)}]", weight)
    _check_last_stride(name, weight)


def _check_eps(eps: float) -> None:
    if not 0 <= eps < math.inf:
        raise ValueError(f"Invalid eps: expected a finite number >= 0, got {eps}")


def check_rotation(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Raises unless these are heads [T, H, D] of one size and the tables [T, D / 2] of their angles."""
    for name, x in (("q", q), ("k", k)):
        _check_rows(name, x, (3,), "[T, H, D]")
        if x.size(2) % 2 or not 2 <= x.size(2) <= LONGEST_HEAD:
            fail_shape(name, f"an even head dimension from 2 to {LONGEST_HEAD}", x)
    _check_like("k", k, q, "q")
    tokens, _, size = q.shape
    if (k.size(0), k.size(2)) != (tokens, size):
        fail_shape("k", f"[{tokens}, H, {size}]", k)
    if tokens * (q.size(1) + k.size(1)) > MOST_ROWS:
        fail_shape("k", "less than 2^31 heads of all tokens together with those of q", k)
    dtype = torch.promote_types(q.dtype, torch.float32)
    for name, table in (("cos", cos), ("sin", sin)):
        check_tensor(name, table)
        check_device(name, table, q)
        if table.dtype != dtype:
            fail_dtype(name, f"{dtype} with heads of {q.dtype}", table)
        if table.shape != (tokens, size // 2):
            fail_shape(name, f"[{tokens}, {size // 2}]", table)
        if not table.is_contiguous():
            raise ValueError(f"Invalid strides of {name}: expected contiguous, got {table.stride()}")


def check_head_norms(q: Tensor, norms: dict[str, Tensor], eps: float) -> None:
    """Raises unless there are weights [D] for heads of both kinds, or none."""
    if len(norms) == 1:
        raise ValueError(f"Invalid {next(iter(norms))}: expected norms of q and of k or neither, got one")
    for name, weight in norms.items():
        _check_norm_weight(name, weight, q, "q")
    _check_eps(eps)


def check_gate_up(gate_up: Tensor) -> None:
    """Raises unless these are rows [T, 2 F]: gates and what they are multiplied by."""
    _check_rows("gate_up", gate_up, (2,), "[T, 2 F]")
    if gate_up.size(1) % 2 or not 2 <= gate_up.size(1) <= MOST_ROWS:
        fail_shape("gate_up", "2 F values in the last dimension, F of gates and F to multiply", gate_up)


def check_weight(weight: Tensor) -> None:
    """Raises unless this is a weight [F, d] of floats."""
    check_tensor("weight", weight)
    if weight.dim() != 2 or weight.numel() == 0:
        fail_shape("weight", "[F, d], both at least 1", weight)
    if weight.dtype not in (*FLOATS, torch.float64):
        fail_dtype("weight", "float32, bfloat16, float16 or float64", weight)


def check_product(x: Tensor, weight: Tensor, bias: Tensor | None, scales: Tensor | None) -> None:
    """Raises unless these are rows [.., d], a weight [F, d] of their dtype or int8 with scales, and a bias."""
    _check_rows("x", x, (2, 3), "[T, d] or [B, T, d]")
    check_tensor("weight", weight)
    if x.size(-1) == 0:
        fail_shape("x", "at least one value in the last dimension", x)
    if weight.dim() != 2 or weight.size(1) != x.size(-1):
        fail_shape("weight", f"[F, {x.size(-1)}]", weight)
    if not 1 <= weight.size(0) <= MOST_ROWS:
        fail_shape("weight", "1 to 2^31 - 1 rows", weight)
    if weight.dtype != (x.dtype if scales is None else torch.int8):
        fail_dtype("weight", f"{x.dtype} as x, or int8 with scales", weight)
    check_device("weight", weight, x)
    _check_last_stride("weight", weight)
    for name, table, dtype in (("bias", bias, x.dtype), ("scales", scales, torch.float32)):
        if table is not None:
            check_table(name, table, dtype)
            check_device(name, table, x)
            if table.size(0) != weight.size(0):
                fail_shape(name, f"[{weight.size(0)}]", table)


def _check_rows(name: str, x: Tensor, dims: tuple[int, ...], shape: str) -> None:
    """Raises unless it is a tensor of floats with contiguous rows, of which there are less than 2^31."""
    check_tensor(name, x)
    if x.dim() not in dims:
        fail_shape(name, shape, x)
    if x.dtype not in (*FLOATS, torch.float64):
        fail_dtype(name, "float32, bfloat16, float16 or float64", x)
    _check_last_stride(name, x)
    if math.prod(x.shape[:-1]) > MOST_ROWS:
        fail_shape(name, "less than 2^31 rows", x)


def _check_like(name: str, tensor: Tensor, other: Tensor, its_name: str) -> None:
    """Raises unless it is a tensor of the dtype and on the device of another."""
    check_tensor(name, tensor)
    if tensor.dtype != other.dtype:
        fail_dtype(name, f"{other.dtype} as {its_name}", tensor)
    check_device(name, tensor, other)


def check_leaves(k_cache: Tensor, v_cache: Tensor, append_lens: Tensor | None) -> None:
    """Raises if a cache that is written is a leaf which requires a gradient: autograd could not know of the writes."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if append_lens is not None and cache.requires_grad and cache.is_leaf:
            raise ValueError(
                f"Invalid {name}: expected a tensor that can be written, got a leaf that requires a gradient"
            )


def as_scale(scale: float) -> float:
    """The factor of the scores as a finite Python float."""
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"Invalid scale: expected a number, got {type(scale).__name__}")
    check_scale(scale)
    return float(scale)


def check_scale(scale: float) -> None:
    if not math.isfinite(scale):
        raise ValueError(f"Invalid scale: expected a finite number, got {scale}")


def _check_last_stride(name: str, tensor: Tensor) -> None:
    if tensor.size(-1) > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"Invalid strides of {name}: expected the last dimension to be contiguous, got {tensor.stride()}"
        )

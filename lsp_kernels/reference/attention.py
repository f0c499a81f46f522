"""The definition of suffix attention: one sequence after the other, in float32, or in float64 for float64 inputs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def suffix_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_seqlens: Tensor | None,
    prefix_lens: Tensor,
    append_lens: Tensor | None = None,
    *,
    slots: Tensor | None = None,
    scale: float | None = None,
    out: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention to the frozen prefix and the pass, and the append; arguments as in `lsp_kernels.suffix_attention`."""
    n_rows, capacity = k_cache.size(0), k_cache.size(2)
    scale = q.size(-1) ** -0.5 if scale is None else scale
    out = q.new_empty(q.shape) if out is None else out
    lse = q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))
    sequences = zip(*(_split(x, cu_seqlens) for x in (q, k, v, out, lse)), strict=True)
    for b, (queries, keys, values, result, sums) in enumerate(sequences):
        row = b if slots is None else min(max(int(slots[b]), 0), n_rows - 1)
        prefix = min(max(int(prefix_lens[b]), 0), capacity)
        wanted = 0 if append_lens is None else int(append_lens[b])
        append = min(max(wanted, 0), keys.size(0), capacity - prefix)
        seen_k, seen_v = (
            torch.cat([cache[row, :, :prefix], new.transpose(0, 1)], dim=1)  # [Hkv, P + n, D]
            for cache, new in ((k_cache, keys), (v_cache, values))
        )
        attended, scores = _attend(queries, seen_k, seen_v, scale)
        result.copy_(attended)
        sums.copy_(scores.logsumexp(-1).transpose(0, 1))
        k_cache[row, :, prefix : prefix + append] = keys[:append].transpose(0, 1)
        v_cache[row, :, prefix : prefix + append] = values[:append].transpose(0, 1)
    if cu_seqlens is not None:  # rows past the last border belong to nobody
        out[max(int(cu_seqlens[-1]), 0) :] = 0
        lse[max(int(cu_seqlens[-1]), 0) :] = -math.inf
    return (out, lse) if return_lse else out


def _split(x: Tensor, cu_seqlens: Tensor | None) -> list[Tensor]:
    """Views of the sequences of a batch [B, N, ...] or of packed tokens [T, ...]."""
    if cu_seqlens is None:
        return list(x.unbind(0))
    borders = cu_seqlens.clamp(0, x.size(0)).tolist()
    return [x[begin:end] for begin, end in pairwise(borders)]


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of one sequence, queries [n, Hq, D] on keys and values [Hkv, m, D], and the scores [Hq, n, m]."""
    exact = torch.promote_types(q.dtype, torch.float32)
    group = q.size(1) // k.size(0)
    k, v = (x.to(exact).repeat_interleave(group, dim=0) for x in (k, v))
    scores = q.to(exact).transpose(0, 1) @ k.transpose(1, 2) * scale  # [Hq, n, m]
    nothing = (scores == -math.inf).all(-1, keepdim=True)  # softmax is NaN there
    weights = scores.softmax(-1).masked_fill(nothing, 0.0)
    return (weights @ v).transpose(0, 1), scores

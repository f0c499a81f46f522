"""Attention of a pass to the frozen prefix and to itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import reference
from ._checks import as_scale, check_attention, check_leaves
from ._operands import explain
from ._ops import operators, triton_reason
from .triton.configs.attention import workspace_of
from .workspace import Workspace, reserve

NOTHING = None, None  # no workspace
# Looked up once: it takes longer than the checks.
_suffix_attention = operators.suffix_attention.default
_suffix_attention_into = operators.suffix_attention_into.default


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
    workspace: Workspace | None = None,
    out: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Attends to the frozen prefix in the cache and to the tokens of the pass, and appends to the cache, in one launch.

    Every query of sequence b sees the first ``prefix_lens[b]`` tokens of its row of the cache and all tokens of its own
    sequence in the pass, in both directions. The K/V of the first ``append_lens[b]`` tokens of the pass are written to
    the cache after the prefix. Nothing else is written, and nothing past the prefix is read, so that may be anything.

    Parameters
    ----------
    q : Tensor, float32, bfloat16 or float16, [T, Hq, D] or [B, N, Hq, D]
        Packed tokens of all sequences, or a batch of equal lengths. D is a multiple of 16 from 32 to 256. Any strides,
        as long as the last dimension is contiguous: views of a fused projection are not copied. The reference serves
        float64, for checks.
    k, v : Tensor, as q, with Hkv heads
        Hq is a multiple of Hkv. K has its rotary embedding applied.
    k_cache, v_cache : Tensor, [B, Hkv, S, D], or with `slots` [rows, Hkv, S, D]
        Written in place if there is an append, which autograd notices. Then neither may be a leaf that requires a
        gradient, and no element may share memory with another one, with the other cache or with q, k and v.
    cu_seqlens : Tensor, int32 [B + 1], or None
        Borders of the packed sequences, from 0 to at most T. A sequence may be empty. Tokens past the last border
        belong to nobody: no query sees them, and their output is 0. None with a batch [B, N, Hq, D].
    prefix_lens : Tensor, int32 [B]
        How many tokens of each sequence are in the cache: its frozen prefix.
    append_lens : Tensor, int32 [B], optional
        How many tokens of each sequence, from its first in the pass on, are appended. By default none.
    slots : Tensor, int32 [B], optional
        Which row of the cache each sequence has; by default sequence b has row b. Sequences with tokens in the pass
        have distinct rows.
    scale : float, optional
        Factor of the scores, by default 1 / sqrt(D).
    workspace : Workspace, optional
        Saves an allocation and a memset on a GPU, where several programs share a long prefix.
    out : Tensor, shape and dtype of q, contiguous, optional
        Where to write the output. It may share no memory with the other tensors.
    return_lse : bool
        Whether to return the log-sum-exp of the scores too, by which two partial attentions can be merged.

    Returns
    -------
    Tensor
        Shape and dtype of q, contiguous. A key that scores -inf has weight 0; where all keys of a query score -inf,
        the output is 0, as torch's attention defines it. A score that is NaN or +inf makes the output NaN.
    lse : Tensor, float32 [T, Hq] or [B, N, Hq], with `return_lse` only
        log sum exp(scale q k) over the keys that the query sees; -inf where all of them score -inf, and past the last
        border.

    Notes
    -----
    How exact it is, as tested against the definition in float64: for q and k of unit size, an element is wrong by at
    most 1e-5 in float32, and in bfloat16 and float16 by 2^-8 and 2^-11 times the largest absolute value in v plus 1e-5
    on a CPU. On a GPU the 16-bit dtypes may be wrong by twice as much, because the weights of the softmax are rounded
    too. On any operands the error is at most that of torch's own attention in the same dtype on the same keys plus 1e-5
    on a CPU, and twice that plus 1e-5 on a GPU. `lse` is wrong by at most 1e-5 plus 1e-6 times its size.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import suffix_attention
    >>> k_cache, v_cache = torch.zeros(2, 1, 1, 16, 32)
    >>> q, k, v = torch.randn(3, 5, 1, 32)
    >>> border, prefix, append = (torch.tensor(x, dtype=torch.int32) for x in ([0, 5], [0], [3]))
    >>> out = suffix_attention(q, k, v, k_cache, v_cache, border, prefix, append)
    >>> torch.equal(k_cache[0, :, :3], k[:3].transpose(0, 1)), bool(k_cache[0, :, 3:].any())
    (True, False)
    """
    tensors = (q, k, v, k_cache, v_cache, cu_seqlens, prefix_lens, append_lens, slots)
    try:
        if scale is None:
            scale = q.size(-1) ** -0.5
        elif type(scale) is not float:
            scale = as_scale(scale)
        shared = NOTHING if workspace is None else reserve(workspace, q.device, workspace_of, q, k_cache, prefix_lens)
        if k_cache.requires_grad or v_cache.requires_grad:
            check_leaves(k_cache, v_cache, append_lens)
        if out is None and not return_lse:
            result = _suffix_attention(*tensors, scale, *shared)
        else:
            result = q.new_empty(q.shape) if out is None else out
            lse = q.new_empty(q.shape[:-1], dtype=torch.float32) if return_lse else None
            if result.requires_grad:  # a leaf is refused, which C++ cannot tell
                explain("suffix_attention_into", *tensors, scale, *NOTHING, result, lse)
            _suffix_attention_into(*tensors, scale, *shared, result, lse)
    except Exception:
        check_attention(*tensors)
        scale = q.size(-1) ** -0.5 if scale is None else as_scale(scale)
        explain("suffix_attention_into", *tensors, scale, *NOTHING, q.new_empty(q.shape) if out is None else out, None)
        if q.dtype != torch.float64:
            raise
        with torch.no_grad():
            result, lse = reference.suffix_attention(*tensors[:-1], slots=slots, scale=scale, out=out, return_lse=True)
    if not torch.compiler.is_compiling():  # compiled code knows from the schema what is written
        if append_lens is not None:
            increment_version((k_cache, v_cache))
        if out is not None:
            increment_version(out)
    return (result, lse) if return_lse else result


def warmup_attention(
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
    return_lse: bool = False,
) -> None:
    """Compiles the GPU kernels for calls of `suffix_attention` like this one, with any number of tokens and lengths.

    The first call of an operation compiles its kernel, which takes seconds and fails inside a CUDA graph capture. The
    arguments are those of `suffix_attention`; the cache stays as it is. All tiles are compiled, with and without
    splits. On a CPU there is nothing to compile.

    Other kernels serve calls with another dtype or number of heads, with or without `cu_seqlens`, `append_lens`,
    `slots` and `return_lse`, and with strides of another divisibility by 16. So do addresses of q, k, v and the caches
    of another divisibility by 16 bytes, an `out` whose address is not divisible, and on AMD tensors of 2 GiB and more.
    Warm up once for each kind of call. Lengths and slots may lie anywhere.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import warmup_attention
    >>> k_cache, v_cache = torch.zeros(2, 1, 1, 16, 32)
    >>> q, k, v = torch.randn(3, 1, 5, 1, 32)
    >>> warmup_attention(q, k, v, k_cache, v_cache, None, torch.zeros(1, dtype=torch.int32))
    """
    check_attention(q, k, v, k_cache, v_cache, cu_seqlens, prefix_lens, append_lens, slots)
    if q.device.type != "cuda" or triton_reason(q.device) is not None:
        return
    from .triton import attention as kernels

    none = torch.zeros_like(prefix_lens)
    lengths = (cu_seqlens, none, None if append_lens is None else none, slots)
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32) if return_lse else None
    with torch.cuda.device(q.device):
        kernels.warmup(q, k, v, k_cache, v_cache, *lengths, 1.0, None, None, out, lse)

"""Attention of a pass to the frozen prefix and to itself."""

from __future__ import annotations

import torch
from torch import Tensor

from lsp_kernels import _checks, reference
from lsp_kernels._ops import triton_reason
from lsp_kernels.types import Workspace


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
    scale: float | None = None,
    workspace: Workspace | None = None,
) -> Tensor:
    """Attends to the frozen prefix in the cache and to the tokens of the pass, and appends to the cache, in one launch.

    Every query of sequence b sees the first ``prefix_lens[b]`` slots of the cache and all tokens of its own sequence in
    the pass, in both directions. The K/V of the first ``append_lens[b]`` tokens are then the next slots of the cache.
    No other slot is written, and none past the prefix is read, whatever it holds.

    Parameters
    ----------
    q : Tensor, float32, bfloat16 or float16, [T, Hq, D] or [B, N, Hq, D]
        Packed tokens of all sequences, or a batch of equal lengths. D is a multiple of 16 from 32 to 256. Views of a
        fused projection are not copied: any strides, as long as the last dimension is contiguous. float64 is served by
        the reference, for checks.
    k, v : Tensor, as q, with Hkv heads
        Hq is a multiple of Hkv. K with its rotary embedding applied. They must not overlap the cache.
    k_cache, v_cache : Tensor, [B, Hkv, S, D]
        Written in place.
    cu_seqlens : Tensor, int32 [B + 1], or None
        Borders of the packed sequences, from 0 to T. A sequence may be empty. None for a batch [B, N, H, D].
    prefix_lens : Tensor, int32 [B]
        How many slots of each sequence's cache are frozen.
    append_lens : Tensor, int32 [B], optional
        How many of the first tokens of the pass are appended. By default none.
    scale : float, optional
        Of the scores, by default 1 / sqrt(D).
    workspace : Workspace, optional
        Saves an allocation and a memset on a GPU, where long prefixes are shared by several programs.

    Returns
    -------
    Tensor
        As q, contiguous.

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
    _checks.check_attention(q, k, v, k_cache, v_cache, cu_seqlens, prefix_lens, append_lens)
    scale = q.size(-1) ** -0.5 if scale is None else _checks.as_scale(scale)
    shared = _reserve(workspace, q, k_cache)
    if q.dtype == torch.float64:
        with torch.no_grad():
            return reference.suffix_attention(
                q, k, v, k_cache, v_cache, cu_seqlens, prefix_lens, append_lens, scale=scale
            )
    out: Tensor = torch.ops.lsp.suffix_attention.default(
        q, k, v, k_cache, v_cache, cu_seqlens, prefix_lens, append_lens, scale, *shared
    )
    return out


def warmup_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_seqlens: Tensor | None,
    prefix_lens: Tensor,
    append_lens: Tensor | None = None,
) -> None:
    """Compiles the GPU kernels for calls like this one, with any number of tokens and any lengths.

    A first call compiles, which fails inside a CUDA graph capture and takes seconds elsewhere. The arguments are those
    of `suffix_attention`; the cache stays as it is. Other heads, a missing `append_lens` or strides of another
    divisibility by 16 are other kernels. On a CPU there is nothing to compile.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import warmup_attention
    >>> k_cache, v_cache = torch.zeros(2, 1, 1, 16, 32)
    >>> q, k, v = torch.randn(3, 1, 5, 1, 32)
    >>> warmup_attention(q, k, v, k_cache, v_cache, None, torch.zeros(1, dtype=torch.int32))
    """
    _checks.check_attention(q, k, v, k_cache, v_cache, cu_seqlens, prefix_lens, append_lens)
    if q.device.type != "cuda" or triton_reason() is not None:
        return
    from lsp_kernels.triton import attention as kernels
    from lsp_kernels.triton import configs

    none = torch.zeros_like(prefix_lens)
    lengths = (cu_seqlens, none, None if append_lens is None else none)
    with torch.cuda.device(q.device):
        for config in configs.attention_tiles(q):
            for splits in (1, 2):
                kernels.suffix_attention(
                    q, k, v, k_cache, v_cache, *lengths, 1.0, None, None, splits=splits, config=config
                )


def _reserve(workspace: Workspace | None, q: Tensor, k_cache: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What the caller's workspace holds for a launch, if there is one and the device has a use for it."""
    _checks.check_workspace(workspace)
    if workspace is None or q.device.type != "cuda":
        return None, None
    from lsp_kernels.triton import configs

    return workspace.reserve(q.device, *configs.attention_workspace_of(q, k_cache))

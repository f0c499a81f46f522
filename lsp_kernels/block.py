"""What surrounds the products and the attention of a transformer's block: norm, rotary embedding and SwiGLU.

Each operation reads its operands once and writes its result once. Inside it computes in float32 and rounds at the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import _ops
from ._operands import explain

# Looked up once: it takes longer than the checks.
_add_norm = _ops.operators.add_norm.default
_rotate_ = _ops.operators.rotate_.default
_silu_mul = _ops.operators.silu_mul.default


def add_norm(x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> Tensor:
    """RMSNorm of x, or with `residual` the addition ``residual += x`` and the RMSNorm of the sum.

    Every row is divided by the root of its mean square and multiplied by the weight.

    Parameters
    ----------
    x : Tensor, float32, bfloat16 or float16, [T, d] or [T, H, d]
        Rows of d values, 1 to 32768. Any strides, as long as the last dimension is contiguous. The reference serves
        float64, for checks.
    weight : Tensor, [d], dtype of x
    eps : float
        Added to the mean square.
    residual : Tensor, shape and dtype of x, optional
        Written in place, which autograd notices. It may not be a leaf that requires a gradient, and may share no
        memory with itself, x or the weight.

    Returns
    -------
    Tensor
        Shape and dtype of x, contiguous. A row that holds a NaN is NaN.

    Notes
    -----
    The sum is that of torch to the bit: it is rounded to the dtype, and what is normalised is the rounded sum. The
    norm is rounded once, at the end, as ``torch.nn.functional.rms_norm`` does, and errs no more than that plus 1e-5.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import add_norm
    >>> residual = torch.tensor([[1.0, 2.0]])
    >>> add_norm(torch.tensor([[2.0, 2.0]]), torch.ones(2), eps=0.0, residual=residual)
    tensor([[0.8485, 1.1314]])
    >>> residual
    tensor([[3., 4.]])
    """
    operands = (x, residual, weight, eps)
    try:
        if residual is not None and residual.requires_grad:  # a leaf is refused, which C++ cannot tell
            explain("add_norm", *operands)
        out: Tensor = _in_float64("add_norm", *operands) if x.dtype == torch.float64 else _add_norm(*operands)
    except Exception:
        explain("add_norm", *operands)
        raise
    if residual is not None:
        _written(residual)
    return out


def rotate_(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Applies the rotary embedding to q and k, in place: turns the pairs (j, j + D / 2) of every head.

    ``a, b = a cos - b sin, b cos + a sin`` for the two values of a pair. With weights every head is normalised first,
    as `add_norm` does it (Qwen3 has such norms), and rounded only after the turn.

    Parameters
    ----------
    q, k : Tensor, float32, bfloat16 or float16, [T, Hq, D] and [T, Hk, D]
        Heads of all tokens, D even and at most 256. Any strides, as long as the last dimension is contiguous: views of
        a fused projection are turned where they are. Neither may be a leaf that requires a gradient, and they may
        share no memory with each other. The reference serves float64, for checks.
    cos, sin : Tensor, float32 (with float64 heads float64), [T, D / 2], contiguous
        Of every token's angles.
    q_norm, k_norm : Tensor, [D], dtype of q, optional
        The weights of RMSNorms of the heads of q and of k, both or neither.
    eps : float
        Added to the mean square of a head.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import rotate_
    >>> q, k = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, 2.0]]])
    >>> rotate_(q, k, cos=torch.tensor([[0.0]]), sin=torch.tensor([[1.0]]))  # a quarter turn
    >>> q, k
    (tensor([[[0., 1.]]]), tensor([[[-2.,  1.]]]))
    """
    operands = (q, k, cos, sin, q_norm, k_norm, eps)
    try:
        if q.requires_grad or k.requires_grad:
            explain("rotate_", *operands)
        if q.dtype == torch.float64:
            _in_float64("rotate_", *operands)
        else:
            _rotate_(*operands)
    except Exception:
        explain("rotate_", *operands)
        raise
    _written(q, k)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of a fused projection, the gate of SwiGLU: silu(z) = z / (1 + exp(-z)).

    Parameters
    ----------
    gate_up : Tensor, float32, bfloat16 or float16, [T, 2 F]
        The gates of a row, then what they are multiplied by. Any stride of the rows, as long as the last dimension is
        contiguous. The reference serves float64, for checks.

    Returns
    -------
    Tensor, [T, F]
        Contiguous. Rounded once, where ``torch.nn.functional.silu(gate) * up`` rounds 16-bit values twice. A gate of
        -inf gives NaN.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import silu_mul
    >>> silu_mul(torch.tensor([[0.0, 1.0, 5.0, 2.0]]))
    tensor([[0.0000, 1.4621]])
    """
    try:
        out: Tensor = _in_float64("silu_mul", gate_up) if gate_up.dtype == torch.float64 else _silu_mul(gate_up)
    except Exception:
        explain("silu_mul", gate_up)
        raise
    return out


def warmup_block(
    x: Tensor,
    weight: Tensor,
    q: Tensor,
    k: Tensor,
    gate_up: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
) -> None:
    """Compiles the GPU kernels for calls of the operations of a block like these, with any number of tokens.

    The first call of an operation compiles its kernel, which takes seconds and fails inside a CUDA graph capture. Given
    are operands of `add_norm` (compiled with a residual that lies as x does, and without one), of `rotate_` and of
    `silu_mul`; nothing is written to them. On a CPU there is nothing to compile.

    Other kernels serve calls with another dtype, hidden size or head dimension, with or without `q_norm` and `k_norm`,
    where a stride stops or starts being a multiple of 16 elements (as that of a single token may) or an address one of
    16 bytes, and on AMD tensors of 2 GiB and more. Warm up once for each kind of call.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import warmup_block
    >>> q, k, v = torch.randn(6, 4, 32).split([2, 1, 1], dim=1)
    >>> warmup_block(torch.randn(6, 64), torch.ones(64), q, k, torch.randn(6, 2 * 96))
    """
    angles = torch.zeros(q.size(0), q.size(-1) // 2, device=q.device)
    explain("add_norm", x, None, weight, 0.0)
    explain("rotate_", q, k, angles, angles, q_norm, k_norm, 0.0)
    explain("silu_mul", gate_up)
    if x.device.type != "cuda" or _ops.triton_reason(x.device) is not None:
        return
    from .triton.warmup import compile_block

    with torch.cuda.device(x.device):
        compile_block(x, weight, q, k, gate_up, q_norm, k_norm)


def _in_float64(name: str, *operands: Any) -> Any:
    """The definition itself, which is exact there; for checks of whole models."""
    explain(name, *operands)
    with torch.no_grad():
        return getattr(_ops, f"_{name}")(*operands)


def _written(*tensors: Tensor) -> None:
    """Tells autograd; compiled code knows from the schema what is written, and inference tensors have no version."""
    if not torch.compiler.is_compiling():
        increment_version([tensor for tensor in tensors if not tensor.is_inference()])

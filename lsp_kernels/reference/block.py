"""The definition of what surrounds products and attention in a transformer's block, in float32 (float64 for float64).

16-bit values are widened first, and every result is rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def add_norm(x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> Tensor:
    """RMSNorm of x, or of `residual` after x was added to it in place; arguments as in `lsp_kernels.add_norm`.

    The sum is rounded before it is normalised. A NaN or an infinity in a row makes NaN of what it meets there: all of
    the row for a NaN, the infinite values themselves for an infinity, beside which the others are 0.
    """
    if residual is not None:
        x = residual.add_(x)
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    size = (exact.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (exact * size * weight).to(x.dtype).contiguous()


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
    """Rotary embedding of q and k in place: turns the pairs (j, j + D / 2); arguments as in `lsp_kernels.rotate_`.

    With weights the heads are normalised first, and not rounded before they are turned.
    """
    cos, sin = cos[:, None], sin[:, None]  # the same for all heads
    for x, weight in ((q, q_norm), (k, k_norm)):
        exact = x.to(cos.dtype)
        if weight is not None:
            exact = add_norm(exact, weight.to(cos.dtype), eps=eps)
        a, b = exact.chunk(2, dim=-1)
        x.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1))


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, with silu(z) = z / (1 + exp(-z)); arguments as in `lsp_kernels.silu_mul`.

    A gate of -inf gives NaN, as torch's silu does.
    """
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)

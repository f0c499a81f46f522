"""The definition of a linear: products and sums in float32 (float64 for float64), rounded once at the end."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, scales: Tensor | None = None) -> Tensor:
    """x times the transposed weight, plus the bias; arguments as in `lsp_kernels.linear`."""
    exact = torch.promote_types(x.dtype, torch.float32)
    out = F.linear(x.to(exact), weight.to(exact))
    if scales is not None:
        out = out * scales
    if bias is not None:
        out = out + bias
    return out.to(x.dtype)

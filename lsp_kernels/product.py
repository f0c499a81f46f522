"""A linear for few rows, on CPUs: x W^T + b by the tiles of the LM head, also with int8 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from ._checks import check_weight
from ._operands import explain
from ._ops import operators

_linear = operators.linear.default  # looked up once: it takes longer than the checks


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, scales: Tensor | None = None) -> Tensor:
    """x times the transposed weight, plus the bias, as `torch.nn.functional.linear`.

    Parameters
    ----------
    x : Tensor, float32, bfloat16 or float16, [T, d] or [B, T, d]
        Any strides, as long as the last dimension is contiguous. The reference serves float64, for checks.
    weight : Tensor, [F, d], dtype of x, or int8 with `scales`
        Any stride of the rows, as long as the last dimension is contiguous.
    bias : Tensor, [F], dtype of x, optional
    scales : Tensor, float32 [F], optional
        Of the rows of an int8 weight: row f stands for ``weight[f] * scales[f]``. `quantise` makes both.

    Returns
    -------
    Tensor, [T, F] or [B, T, F]
        Contiguous.

    Notes
    -----
    Products are added in float32 and rounded once. On a CPU a row of the result does not depend on the other rows: it
    is the same bits in every batch and with any number of threads. Made for few rows: with several hundred it is no
    faster than torch. On other devices the reference serves, which is for checks: use torch's own function there.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import linear
    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[11., 17.]])
    """
    try:
        if x.dtype == torch.float64:
            explain("linear", x, weight, bias, scales)
            with torch.no_grad():
                return reference.linear(x, weight, bias, scales=scales)
        out: Tensor = _linear(x, weight, bias, scales)
    except Exception:
        explain("linear", x, weight, bias, scales)
        raise
    return out


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """An int8 weight and its scales, for `linear`: the largest value of a row becomes 127 or -127.

    Parameters
    ----------
    weight : Tensor, floating point [F, d]
        Finite.

    Returns
    -------
    (Tensor, Tensor)
        int8 [F, d], contiguous, and float32 [F]. Every value is wrong by at most half the scale of its row, 1/254 of
        the largest, as long as that scale is a normal number.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import quantise
    >>> quantise(torch.tensor([[2.54, -1.0], [0.0, 0.0]]))
    (tensor([[127, -50],
            [  0,   0]], dtype=torch.int8), tensor([0.0200, 0.0000]))
    """
    check_weight(weight)
    exact = weight.float()
    scales = exact.abs().amax(-1) / 127
    if not bool(scales.isfinite().all()):
        raise ValueError("Invalid weight: expected finite values, got others")
    steps = (exact / scales.where(scales > 0, 1.0)[:, None]).round_()
    # Clamped, as a scale that is no normal number is rounded to a few bits.
    return steps.clamp_(-127, 127).to(torch.int8).contiguous(), scales

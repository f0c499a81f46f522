"""The products of a block: torch's, or on a CPU those of `lsp_kernels.linear` where they are faster; int8 weights."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsp_kernels import linear, quantise
from lsp_kernels.info import served_by_cpp

MOST_ROWS = 128
"""Up to so many rows our products are faster than torch's in float32."""


class Linear(nn.Linear):
    """As torch's, with the faster of two products. Inference only."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias) if ours_is_faster(x) else F.linear(x, self.weight, self.bias)


def ours_is_faster(x: Tensor) -> bool:
    """By what was measured: on CPUs without products of 16 bits, for few rows in float32, and in 16 bits always."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or x.dtype == torch.float64:
        return False
    if x.dtype == torch.float32:
        return 1 < len(x) <= MOST_ROWS and served_by_cpp()
    return served_by_cpp() and not _multiplies_16_bits()


@functools.cache
def _multiplies_16_bits() -> bool:
    """Whether torch has fast products of 16-bit values on this processor."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


class Int8Linear(nn.Module):
    """A linear whose weight is held in int8, with a scale per row; half the memory of 16 bits."""

    scales: Tensor

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        device = like.weight.device
        self.weight = nn.Parameter(torch.empty(like.weight.shape, dtype=torch.int8, device=device), requires_grad=False)
        self.register_buffer("scales", torch.empty(len(like.weight), dtype=torch.float32, device=device))
        self.bias = like.bias

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, scales=self.scales)

    def fill(self, rows: slice, values: Tensor) -> None:
        """Takes some rows of the weight."""
        self.weight[rows], self.scales[rows] = quantise(values)

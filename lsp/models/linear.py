"""The products of a block: torch's, or on a CPU those of `lsp_kernels.linear` where they are faster; int8 weights."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsp_kernels import linear, quantise
from lsp_kernels.info import served_by_cpp

MOST_ROWS = 128
"""Up to so many rows our products are faster than torch's in float32, wherever both have the same instructions."""


class Linear(nn.Linear):
    """As torch's, with the faster of two products. Inference only."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias) if ours_is_faster(x) else F.linear(x, self.weight, self.bias)


def ours_is_faster(x: Tensor) -> bool:
    """By what was measured on CPUs.

    In 16 bits: where torch has no instructions for them. In float32: for few rows, or for more than one where torch's
    library leaves AVX-512 unused.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or x.dtype == torch.float64 or not served_by_cpp():
        return False
    if x.dtype == torch.float32:
        return len(x) > 1 and (len(x) <= MOST_ROWS or _leaves_avx512_unused())
    return not _multiplies(x.dtype)


@functools.cache
def _multiplies(dtype: torch.dtype) -> bool:
    """Whether torch has fast products of these 16-bit values on this processor."""
    if dtype == torch.float16:
        return torch.cpu._is_amx_fp16_supported() or "avx512_fp16" in _processor()
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@functools.cache
def _leaves_avx512_unused() -> bool:
    """Whether torch's float32 products take half of the processor: MKL has AVX-512 for Intel's alone."""
    return torch.cpu._is_avx512_supported() and "AuthenticAMD" in _processor()


def _processor() -> frozenset[str]:
    """The vendor and the instruction sets of the first processor, where Linux tells them."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text("utf-8").partition("\n\n")
    except OSError:
        return frozenset()
    return frozenset(first.split())


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

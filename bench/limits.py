"""Limits of this machine, by the fastest code in torch: reading all bytes, and the rate of a matrix product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.sizes import sized


def read_bytes(tensor: Tensor) -> Tensor:
    """Reads every byte once, at memory speed: float32 sums are vectorised where integer and 16-bit ones are not."""
    return tensor.flatten().view(torch.float32).sum()


GEMM = sized(1024, tiny=32)


def gemm(dtype: torch.dtype) -> tuple[Callable[[], Tensor], int]:
    """A large product of matrices, which runs at the machine's best rate, and its floating-point operations."""
    a, b = torch.randn(2, GEMM, GEMM).to(dtype)
    return lambda: a @ b, 2 * GEMM**3

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
READ, PRODUCT = "read", "product "


def gemm(dtype: torch.dtype) -> Callable[[], Tensor]:
    """A large product of matrices, which runs at the machine's best rate."""
    a, b = torch.randn(2, GEMM, GEMM).to(dtype)
    return lambda: a @ b


def limits(dtype: torch.dtype, elements: int) -> dict[str, Callable[[], Tensor]]:
    """To be timed beside the others: a large product in this dtype and in float32, and a read of so many elements."""
    operands = torch.ones(elements, dtype=dtype)  # zeros may share one page of memory
    products = {f"{PRODUCT}{str(each)[6:]}": gemm(each) for each in dict.fromkeys((dtype, torch.float32))}
    return products | {READ: lambda: read_bytes(operands)}


def taken_out(times: dict[str, float]) -> tuple[float, float]:
    """Takes the times of the limits out of the others: operations per second, and seconds of the read.

    The rate is that of the faster product: some processors have no products in 16 bits.
    """
    products = [times.pop(name) for name in list(times) if name.startswith(PRODUCT)]
    return 2 * GEMM**3 / min(products), times.pop(READ)

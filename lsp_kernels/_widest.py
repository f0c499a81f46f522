"""The widest floating point numbers of a device, for sums that must not lose anything."""

from __future__ import annotations

from torch import Tensor


def widest(x: Tensor) -> Tensor:
    """`x` in float64, or in float32 where there is nothing wider: Apple's GPUs (``mps``)."""
    return x.float() if x.is_mps else x.double()

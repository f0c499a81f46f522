"""What no kernel can beat here: reading the bytes. The fastest plain read that torch has is the limit."""

from __future__ import annotations

import torch
from torch import Tensor


def read_bytes(tensor: Tensor) -> Tensor:
    """Reads every byte once, at memory speed: float32 sums are vectorised where integer and 16-bit ones are not."""
    return tensor.flatten().view(torch.float32).sum()

"""What a launch read and wrote, counted per element of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .dtypes import Array
from .memory import Access, GlobalMemory


@dataclass(frozen=True)
class Traffic:
    """The global accesses of a finished launch."""

    memory: GlobalMemory

    def reads(self, tensor: torch.Tensor) -> Array:
        """How many times each element was loaded, in the tensor's shape."""
        segment, offset = self.memory.segment_of(tensor)
        return _per_element(tensor, segment.loads, offset)

    def writes(self, tensor: torch.Tensor) -> Array:
        """How many times each element was stored (atomics not counted), in the tensor's shape."""
        segment, offset = self.memory.segment_of(tensor)
        return _per_element(tensor, segment.stores, offset)

    def bytes_read(self, tensor: torch.Tensor) -> int:
        """Bytes loaded from the tensor's allocation, gaps between its rows and repeats included."""
        segment, _ = self.memory.segment_of(tensor)
        return sum(access.width * access.offsets.size for access in segment.loads)


def _per_element(tensor: torch.Tensor, accesses: Sequence[Access], offset: int) -> Array:
    """Count the accesses to each element. Sparse, so that a tensor may span terabytes."""
    size = tensor.element_size()
    touched = [(a.offsets[:, None] + np.arange(0, max(a.width, size), size)).reshape(-1) for a in accesses]
    if not touched:
        return np.zeros(tensor.shape, np.int64)
    where, times = np.unique(np.concatenate(touched), return_counts=True)
    places = _offsets(tensor) + offset
    found = np.searchsorted(where, places).clip(max=where.size - 1)
    return np.where(where[found] == places, times[found], 0)


def _offsets(tensor: torch.Tensor) -> Array:
    """Byte offset of each element from the first."""
    offsets = np.zeros(tensor.shape, np.int64)
    for axis, (n, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = np.arange(n, dtype=np.int64) * (stride * tensor.element_size())
        offsets += steps.reshape([-1 if d == axis else 1 for d in range(tensor.dim())])
    return offsets

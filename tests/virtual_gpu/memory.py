"""Global and shared memory of an emulated launch: bounds, alignment, and who read what.

Global memory is made of *segments*, one per group of overlapping tensors. The bytes stay where the
tensors have them, but kernels see virtual addresses a tebibyte apart, so that a wrong offset cannot
land in a neighbour by luck, and 32-bit address arithmetic cannot work by luck either. An address
keeps the tensor's own alignment.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from .dtypes import Array
from .errors import AccessError

SHARED_BASE = 1024  # address of the dynamic shared array
POISON = 0xFF  # fresh shared memory: NaN in every float type, -1 as an integer
_WINDOW = 32  # windows start and end at multiples of the widest access
_SPACING = 1 << 40
_ALIGNMENT = 256


@dataclass(frozen=True)
class Access:
    """One executed global access: byte offsets into its segment, one per participating thread."""

    cta: int
    time: int  # the CTA's instruction counter
    threads: Array
    offsets: Array
    width: int

    @cached_property
    def span(self) -> tuple[int, int]:
        return int(self.offsets.min()), int(self.offsets.max()) + self.width


@dataclass(eq=False)
class Segment:
    """A range of virtual addresses backed by tensor memory. Offsets count from the window's start,
    up to 31 bytes before the first valid byte, so that aligned accesses are rows of a table."""

    name: str
    base: int  # virtual address of the window
    first: int  # offsets [first, end) are valid
    end: int
    window: Array  # uint8
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)

    def rows(self, width: int) -> Array:
        """The window as a table of `width`-byte rows."""
        return self.window.reshape(-1, width)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last-plus-one byte that a tensor's elements touch."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + ((reach + 1) * tensor.element_size() if tensor.numel() else 0)


def _window(start: int, end: int) -> Array:
    low, high = start // _WINDOW * _WINDOW, -(-end // _WINDOW) * _WINDOW
    return np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))


class GlobalMemory:
    """The segments of one launch, made from its tensor arguments."""

    def __init__(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.tensors = [tensor for _, tensor in tensors]  # kept alive with their memory
        self.segments: list[Segment] = []
        spans = sorted((*_span(t), name) for name, t in tensors if t.numel())
        merged: list[list] = []
        for start, end, name in spans:
            if merged and start < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
                merged[-1][2] += f" and {name}"
            else:
                merged.append([start, end, name])
        self._starts = [start // _WINDOW * _WINDOW for start, _, _ in merged]
        for index, (start, end, name) in enumerate(merged):
            low = self._starts[index]
            base = (index + 1) * _SPACING + low % _ALIGNMENT
            self.segments.append(Segment(name, base, start - low, end - low, _window(start, end)))

    def pointer(self, tensor: torch.Tensor) -> int:
        """The virtual address of a tensor; an empty one gets an address where nothing is."""
        address = tensor.data_ptr()
        for start, segment in zip(self._starts, self.segments, strict=True):
            if tensor.numel() and start <= address < start + segment.end:
                return segment.base + address - start
        return (len(self.segments) + 1) * _SPACING

    def real(self, addresses: Array) -> Array:
        """The addresses of this process behind virtual ones; nonsense for those of no tensor."""
        if not self.segments:
            return addresses
        shifts = np.array([s.window.ctypes.data - s.base for s in self.segments])
        return addresses + shifts[_nearest(addresses).clip(0, len(shifts) - 1)]

    def segment_of(self, tensor: torch.Tensor) -> tuple[Segment, int]:
        """The segment that holds a tensor, and the tensor's offset in it."""
        address = self.pointer(tensor)
        segment = self.segments[address // _SPACING - 1]
        return segment, address - segment.base

    def locate(self, addresses: Array, width: int, what: str) -> Iterator[tuple[Segment, Array | None, Array]]:
        """Split an access by segment: (segment, lanes or None for all, offsets). Checks bounds."""
        if (addresses % width).any():
            raise AccessError(f"misaligned {what} of {width} bytes at {_hex(addresses % width)}")
        homes = _nearest(addresses)
        if (homes == homes[0]).all():
            segment = self._segment(int(homes[0]), addresses, what)
            yield segment, None, self._checked(segment, addresses, width, what)
            return
        for home in np.unique(homes):
            lanes = np.nonzero(homes == home)[0]
            segment = self._segment(int(home), addresses[lanes], what)
            yield segment, lanes, self._checked(segment, addresses[lanes], width, what)

    def _segment(self, index: int, addresses: Array, what: str) -> Segment:
        if not 0 <= index < len(self.segments):
            raise AccessError(f"{what} outside of every tensor at {_hex(addresses)}")
        return self.segments[index]

    @staticmethod
    def _checked(segment: Segment, addresses: Array, width: int, what: str) -> Array:
        offsets = addresses - segment.base
        low, high = int(offsets.min()), int(offsets.max())
        if low < segment.first or high + width > segment.end:
            before, past = segment.first - low, high + width - segment.end
            where = f"{before} bytes before" if before > 0 else f"{past} bytes past the end of"
            raise AccessError(f"out-of-bounds {what} of {width} bytes, {where} {segment.name}")
        return offsets


def _nearest(addresses: Array) -> Array:
    """Index of the segment that an address belongs to, or would if it were in bounds."""
    return (addresses + _SPACING // 2) // _SPACING - 1


class SharedMemory:
    """The shared array of one CTA, poisoned at the start. Addresses become offsets on access."""

    def __init__(self, size: int) -> None:
        self.size = size
        words = -(-size // _WINDOW) * _WINDOW // 8
        self.bytes = np.full(words, 0, np.uint64).view(np.uint8)
        self.bytes[:] = POISON

    def rows(self, width: int) -> Array:
        return self.bytes.reshape(-1, width)

    def locate(self, addresses: Array, width: int, what: str) -> Array:
        """Offsets of an access, checked."""
        offsets = addresses.astype(np.int64) - SHARED_BASE
        if (offsets % width).any():
            raise AccessError(f"misaligned {what} of {width} bytes at {_hex(addresses)}")
        if offsets.min() < 0 or offsets.max() + width > self.size:
            raise AccessError(f"out-of-bounds {what} at {_hex(addresses)}: {self.size} bytes from {SHARED_BASE}")
        return offsets


def _hex(addresses: Array) -> str:
    return ", ".join(hex(int(address)) for address in addresses[:4])

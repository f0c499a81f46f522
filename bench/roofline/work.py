"""What a kernel must do, and the least time in which a GPU can."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.roofline.gpus import LAUNCH, Gpu


@dataclass(frozen=True)
class Work:
    """One launch, counted.

    Attributes
    ----------
    read, written : int
        Bytes that have to travel between memory and GPU: each operand and each result once.
    loaded, stored : int
        Bytes that the programs load and store, repeats and what they share with each other included. What exceeds
        `read` and `written` can stay in the L2 cache.
    products : int
        Additions and multiplications in tensor cores, padding of tiles included.
    """

    name: str
    read: int
    written: int
    products: int = 0
    loaded: int = 0
    stored: int = 0

    @property
    def moved(self) -> int:
        return self.read + self.written

    def seconds(self, gpu: Gpu) -> float:
        return max(self.moved / gpu.bandwidth, self.products / gpu.products)


@dataclass(frozen=True)
class Time:
    """The least time of launches one after the other, and what it is bound by."""

    seconds: float
    bound: str


def least(works: Iterable[Work], gpu: Gpu, launch: float = LAUNCH) -> Time:
    """Kernels take the longer of their bytes and their products; the host has to launch them all meanwhile.

    Examples
    --------
    >>> from bench.roofline.gpus import GPUS
    >>> least([Work("read a gigabyte", 10**9, 0)], GPUS[1])
    Time(seconds=0.00029850746268656717, bound='memory')
    >>> least([Work("nothing", 0, 0)] * 3, GPUS[1])
    Time(seconds=1.5e-05, bound='launches')
    """
    each = list(works)
    by_memory = sum(work.seconds(gpu) for work in each if work.moved / gpu.bandwidth >= work.products / gpu.products)
    total = sum(work.seconds(gpu) for work in each)
    if launch * len(each) > total:
        return Time(launch * len(each), "launches")
    return Time(total, "memory" if 2 * by_memory >= total else "tensor cores")

"""The virtual GPU: Triton and torch see a GPU, and its kernels are executed by the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import triton
from triton.runtime import driver as triton_driver

from .cuda import Cuda
from .devices import Device
from .driver import VirtualDriver
from .tensors import OnGpu, uncompiled


@contextmanager
def virtual_gpu(
    architecture: str,
    *,
    processors: int = 4,
    seed: int | None = 0,
    races: bool = True,
    keep: int | None = None,
) -> Iterator[VirtualDriver]:
    """Within it ``kernel[grid](…)`` compiles for an architecture and executes, checked, on CPU memory.

    Tensors may be CPU tensors, or tensors that torch makes for ``device="cuda"``, which say that they are on a GPU.
    What the context yields has the `launches`: each knows its kernel, grid, types, options, PTX and traffic.

    Parameters
    ----------
    architecture
        "sm_80", "sm_86", "sm_89", "sm_90", "sm_100" or "sm_120".
    processors
        The number of processors that the GPU says it has.
    seed
        Shuffles the order of the programs of each launch, another way each time; None runs them in ascending order.
    races
        Check that accesses are ordered.
    keep
        How many of the last launches are kept, each with a log of its accesses; None keeps all.

    Examples
    --------
    >>> with virtual_gpu("sm_90") as gpu:
    ...     kernel[(8,)](x, out, 100, BLOCK=16)
    >>> gpu.launches[-1].reads(x).max()
    1
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("Invalid TRITON_INTERPRET: expected it to be unset, because interpreted kernels have no PTX")
    device = Device.of(architecture, processors)
    gpu = VirtualDriver(device, seed, races, keep)
    active = mock.patch.object(triton_driver, "_active", gpu)
    cuda = mock.patch.multiple(torch.cuda, **Cuda(device).replacements())
    eager = mock.patch.object(torch, "compile", uncompiled)
    with active, cuda, eager, OnGpu():
        yield gpu

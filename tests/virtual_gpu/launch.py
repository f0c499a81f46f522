"""Launch compiled PTX on CPU tensors: the grid's CTAs one after the other, in any order.

Because each CTA runs to its end before the next starts, kernels that wait for one another cannot
finish here; kernels in which the last to arrive does the rest can.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from .cta import Cta, Program
from .dtypes import TYPES, Array, bits_of
from .errors import UnsupportedPtx
from .memory import GlobalMemory
from .races import CtaOrder, LaunchOrder
from .traffic import Traffic


class CompiledKernel(Protocol):
    """What `launch` needs of a compiled kernel; `lsp_kernels.triton.aot.Compiled` has it."""

    text: str
    shared: int


@dataclass(frozen=True)
class Launch(Traffic):
    """A finished launch: its traffic, and how many instructions its CTAs executed."""

    instructions: int


def launch(
    kernel: CompiledKernel | str,
    grid: Sequence[int],
    args: Sequence[object],
    *,
    shared: int | None = None,
    names: Sequence[str] | None = None,
    seed: int | None = None,
    races: bool = True,
) -> Launch:
    """Execute a kernel's PTX; tensors among `args` are read and written in place.

    Parameters
    ----------
    kernel
        A compiled kernel, or PTX text together with `shared`, its bytes of shared memory.
    grid
        Up to three numbers of CTAs.
    args
        CPU tensors, integers and floats in the order of the kernel's parameters (compile-time
        constants left out). Parameters beyond them, Triton's scratch pointers, are null.
    names
        What errors call the arguments; by default "argument 0" and so on.
    seed
        Shuffles the order of the CTAs; None runs them in ascending order.
    races
        Check that accesses are ordered, and that shared memory is written before it is read.

    Raises
    ------
    UnsupportedPtx, AccessError, RaceError
        See `tests.virtual_gpu.errors`.
    """
    text, size = (kernel, shared) if isinstance(kernel, str) else (kernel.text, kernel.shared)
    program = Program.load(text)
    called = names or [f"argument {i}" for i in range(len(args))]
    tensors = [(name, a) for name, a in zip(called, args, strict=True) if isinstance(a, torch.Tensor)]
    memory = GlobalMemory(tensors)
    params = _params(program, args, memory)
    extent = tuple(grid) + (1,) * (3 - len(grid))
    positions = list(itertools.product(*(range(n) for n in extent)))
    if seed is not None:
        random.Random(seed).shuffle(positions)
    order = LaunchOrder() if races else None
    executed = 0
    for index, position in enumerate(positions):
        mine = CtaOrder(order, index) if order else None
        cta = Cta(program, params, memory, size or 0, index, position, extent, mine)
        cta.run()
        executed += cta.time
    return Launch(memory, executed)


def _params(program: Program, args: Sequence[object], memory: GlobalMemory) -> dict[str, Array]:
    declared = program.kernel.params
    if len(args) > len(declared):
        raise UnsupportedPtx(f"{len(args)} arguments for {len(declared)} parameters")
    values = {}
    for (name, type_name), arg in itertools.zip_longest(declared, args, fillvalue=0):
        number = memory.pointer(arg) if isinstance(arg, torch.Tensor) else arg
        if isinstance(number, float) != (type_name[0] == "f"):
            raise UnsupportedPtx(f"{number!r} for parameter {name} of type .{type_name}")
        if type_name[0] != "f":
            number = _wrapped(int(number), type_name)
        values[name] = np.full(program.kernel.threads, number, TYPES[type_name])
    return values


def _wrapped(number: int, type_name: str) -> int:
    """The two's complement of an integer argument, which must fit the parameter."""
    bits = bits_of(type_name)
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        raise UnsupportedPtx(f"argument {number} for a parameter of type .{type_name}")
    return number & ((1 << bits) - 1)

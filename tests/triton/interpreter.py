"""Run Triton kernels under the interpreter with every global access checked.

>>> with checked(seed=3) as launches:
...     kernel[grid](x, out, n, BLOCK=128)
>>> launches[-1].reads(x)

While the context is active, launches run their programs in a shuffled order; every load, store and
atomic is checked against the extents of the tensors that were passed, and against the accesses of
the other programs: what another program wrote may be touched only after an acquire of its release,
which the acquire-release ticket of the last program done provides and a relaxed one does not. The
arithmetic is corrected too (`numerics`). Afterwards the interpreter is as it was.

The process must have been started with TRITON_INTERPRET=1. Programs are sequential here, so missing
barriers *within* a program cannot be seen; the emulator of `tests.virtual_gpu` sees those.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import (
    GridExecutor,
    InterpreterBuilder,
    InterpreterOptions,
    TensorHandle,
)

from tests.triton.numerics import CORRECTIONS
from tests.virtual_gpu.dtypes import Array
from tests.virtual_gpu.errors import AccessError, RaceError
from tests.virtual_gpu.memory import Access, GlobalMemory, Segment
from tests.virtual_gpu.races import CtaOrder, LaunchOrder
from tests.virtual_gpu.traffic import Traffic

__all__ = ["AccessError", "RaceError", "checked"]

_ir = triton_interpreter._ir


@dataclass
class _Program:
    """The running program: its launch's memory, and the order of its accesses."""

    memory: GlobalMemory
    order: CtaOrder | None
    index: int
    time: int = 0


class _Checker:
    """Replaces the interpreter's launch and memory operations while a context is active."""

    def __init__(self, seed: int | None, races: bool, overflow: bool) -> None:
        self.random = None if seed is None else random.Random(seed)
        self.races = races
        self.options = InterpreterOptions(debug=overflow, sanitize_overflow=overflow)
        self.launches: list[Traffic] = []
        self.program: _Program | None = None
        self.original_load = InterpreterBuilder.create_masked_load
        self.original_store = InterpreterBuilder.create_masked_store
        self.original_rmw = InterpreterBuilder.create_atomic_rmw
        self.original_cas = InterpreterBuilder.create_atomic_cas

    def patches(self) -> Iterator[tuple[object, str, Any]]:
        """(owner, attribute, replacement); methods get the interpreter's object first."""

        def method(function: Any) -> Any:
            return lambda *args, **kwargs: function(*args, **kwargs)

        yield from CORRECTIONS
        yield triton_interpreter.interpreter_builder, "options", self.options
        yield GridExecutor, "__call__", method(self.launch)
        yield InterpreterBuilder, "create_masked_load", method(self.load)
        yield InterpreterBuilder, "create_masked_store", method(self.store)
        yield InterpreterBuilder, "create_atomic_rmw", method(self.atomic_rmw)
        yield InterpreterBuilder, "create_atomic_cas", method(self.atomic_cas)

    def launch(self, executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        """Run a grid in shuffled order on virtual addresses."""
        names = inspect.getfullargspec(executor.fn).args
        kwargs = {name: value for name, value in kwargs.items() if name in names}
        given = inspect.getcallargs(executor.fn, *args, **kwargs)
        memory = GlobalMemory([(n, a) for n, a in given.items() if isinstance(a, torch.Tensor)])
        self.launches.append(Traffic(memory))
        order = LaunchOrder() if self.races else None
        scope = triton_interpreter._patch_lang(_Globals)
        try:
            values = {
                name: arg if name in executor.constexprs else _argument(arg, memory) for name, arg in given.items()
            }
            grid = executor.grid(values) if callable(executor.grid) else executor.grid
            with (
                np.errstate(all="ignore"),
                mock.patch.object(triton_interpreter, "_patch_lang", _already_patched),
            ):
                for index, position in enumerate(self._positions(grid)):
                    mine = CtaOrder(order, index) if order else None
                    self.program = _Program(memory, mine, index)
                    triton_interpreter.interpreter_builder.set_grid_idx(*position)
                    executor.fn(**values)
        except InterpreterError as error:
            raise _root(error) from error
        finally:
            self.program = None
            scope.restore()

    def _positions(self, grid: tuple[int, ...]) -> list[tuple[int, ...]]:
        extent = tuple(grid) + (1,) * (3 - len(grid))
        triton_interpreter.interpreter_builder.set_grid_dim(*extent)
        positions = list(itertools.product(*(range(n) for n in extent)))
        if self.random:
            self.random.shuffle(positions)
        return positions

    def load(self, builder: Any, pointers: TensorHandle, mask: TensorHandle, *rest: Any) -> TensorHandle:
        for segment, access, _ in self._accesses(pointers, mask, "load"):
            if self.program.order:
                self.program.order.after_writes(segment, access, "load")
            segment.loads.append(access)
        return self.original_load(builder, self._real(pointers), mask, *rest)

    def store(self, builder: Any, pointers: TensorHandle, value: TensorHandle, mask: Any, *rest: Any) -> Any:
        values = np.broadcast_to(value.data, pointers.data.shape).reshape(-1)
        for segment, access, lanes in self._accesses(pointers, mask, "store"):
            if self.program.order:
                self.program.order.after_writes(segment, access, "store")
                self.program.order.after_reads(segment, access, "store")
                self.program.order.wrote(segment, access, atomic=False)
            segment.stores.append(access)
            _one_value_each(access.offsets, values[lanes])
        return self.original_store(builder, self._real(pointers), value, mask, *rest)

    def atomic_rmw(
        self,
        builder: Any,
        operation: Any,
        pointers: TensorHandle,
        value: TensorHandle,
        mask: TensorHandle,
        semantic: Any,
        scope: Any,
    ) -> TensorHandle:
        self._atomic(pointers, mask, semantic, scope)
        real = self._real(pointers)
        return self.original_rmw(builder, operation, real, value, mask, semantic, scope)

    def atomic_cas(
        self, builder: Any, pointers: TensorHandle, old: Any, new: Any, semantic: Any, scope: Any
    ) -> TensorHandle:
        everywhere = TensorHandle(np.ones(pointers.data.shape, bool), tl.int1)
        self._atomic(pointers, everywhere, semantic, scope)
        return self.original_cas(builder, self._real(pointers), old, new, semantic, scope)

    def _atomic(self, pointers: TensorHandle, mask: TensorHandle, semantic: Any, scope: Any) -> None:
        if scope == _ir.MEM_SYNC_SCOPE.CTA:
            raise RaceError("an atomic of CTA scope orders nothing between programs")
        both = _ir.MEM_SEMANTIC.ACQUIRE_RELEASE
        acquire = semantic in (_ir.MEM_SEMANTIC.ACQUIRE, both)
        release = semantic in (_ir.MEM_SEMANTIC.RELEASE, both)
        for segment, access, _ in self._accesses(pointers, mask, "atomic"):
            if order := self.program.order:
                order.after_writes(segment, access, "atomic")
                order.after_reads(segment, access, "atomic")
                order.wrote(segment, access, atomic=True)
                for address in np.unique(access.offsets + segment.base).tolist():
                    order.atomic(address, 0, access.time, acquire, release)
                order.barrier(access.time)

    def _accesses(self, pointers: TensorHandle, mask: Any, what: str) -> Iterator[tuple[Segment, Access, Array]]:
        """Bounds-check the lanes that are not masked off, and split them by segment."""
        program = self.program
        active = np.asarray(getattr(mask, "data", mask)).astype(bool)
        lanes = np.nonzero(np.broadcast_to(active, pointers.data.shape).reshape(-1))[0]
        if lanes.size == 0:
            return
        program.time += 1
        if program.order:
            program.order.barrier(program.time - 1)  # a program is sequential
        width = triton_interpreter._get_np_dtype(pointers.get_element_ty()).itemsize
        addresses = pointers.data.reshape(-1)[lanes].astype(np.int64)
        for segment, part, offsets in program.memory.locate(addresses, width, what):
            threads = np.zeros(offsets.size, np.int64)
            access = Access(program.index, program.time, threads, offsets, width)
            yield segment, access, lanes if part is None else lanes[part]

    def _real(self, pointers: TensorHandle) -> TensorHandle:
        """Virtual addresses as addresses of this process."""
        real = self.program.memory.real(pointers.data.astype(np.int64))
        return TensorHandle(real.astype(np.uint64), pointers.dtype)


class _Globals:
    """Stands for a kernel from which both language modules are visible, so that the interpreter
    patches them once per launch and not once per device function call."""

    __globals__: ClassVar = {"tl": tl, "core": tl.core}


def _already_patched(fn: Any) -> None:
    """Takes the place of the patching while a launch runs."""


def _argument(arg: Any, memory: GlobalMemory) -> Any:
    """A kernel argument as the interpreter wants it, pointers virtual."""
    converted = triton_interpreter._implicit_cvt(arg)
    if isinstance(arg, torch.Tensor):
        if arg.device.type != "cpu":
            raise ValueError(f"expected a CPU tensor, got one on {arg.device}")
        converted.handle.data = np.array([memory.pointer(arg)], np.uint64)
    return converted


def _one_value_each(offsets: Array, values: Array) -> None:
    """Lanes that store to one address must agree on what."""
    where, first = np.unique(offsets, return_inverse=True)
    last = np.empty(where.size, values.dtype)
    last[first] = values
    if where.size != offsets.size and last[first].tobytes() != values.tobytes():
        raise RaceError("one store with different values for one address")


def _root(error: BaseException) -> BaseException:
    """The cause under the interpreter's own wrappers, one per device function."""
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


@contextmanager
def checked(seed: int | None = 0, *, races: bool = True, overflow: bool = False) -> Iterator[list[Traffic]]:
    """Check every launch made inside of the ``with``; yields what each launch read and wrote.

    Parameters
    ----------
    seed
        Seed of the order in which programs run; None runs them in ascending order.
    races
        Check the order between programs' accesses too, not only bounds.
    overflow
        Raise an AssertionError where 32-bit integer arithmetic overflows, masked lanes included
        (slower by a third).
    """
    if not triton.knobs.runtime.interpret:
        raise RuntimeError("start the process with TRITON_INTERPRET=1 to interpret kernels")
    if InterpreterBuilder.create_masked_load.__module__ != triton_interpreter.__name__:
        raise RuntimeError("checked() does not nest")
    checker = _Checker(seed, races, overflow)
    with ExitStack() as stack:
        for patch in checker.patches():
            stack.enter_context(mock.patch.object(*patch))
        yield checker.launches

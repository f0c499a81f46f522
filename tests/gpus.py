"""The GPU of a test: the real one, or a virtual one of each architecture on a machine that has none.

A test asks for the fixture `gpu` and has the marker `gpu`. Its arguments are the architectures on which the ordinary
tests run it, `make test-targets` runs it on the others. ``attention=True`` leaves out architectures whose tensor-core
instructions the emulator does not know.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import pytest
import torch
from hypothesis import Phase, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from lsp_kernels import Noise, Vocabulary, _ops
from lsp_kernels.triton.configs import device
from tests.support import examples

T = TypeVar("T")
ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
LARGE_TILES = {"sm_90": "wgmma", "sm_100": "tcgen05"}  # what attention uses from 64 rows on; mma elsewhere
IS_REAL = torch.cuda.is_available()
# Functions of aten that launch nothing, beside views.
SILENT = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach", "alias")


def executed_architectures() -> list[str]:
    """Those whose attention kernels the emulator executes in every tile."""
    from tests.virtual_gpu.table import knows

    return [name for name in ARCHITECTURES if name not in LARGE_TILES or knows(LARGE_TILES[name])]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Gives a test with the marker `gpu` its GPUs."""
    marker = metafunc.definition.get_closest_marker("gpu")
    if marker is None:
        return
    if IS_REAL or metafunc.definition.get_closest_marker("real_gpu"):
        metafunc.parametrize("gpu", ["real"], indirect=True)
        return
    names = executed_architectures() if marker.kwargs.get("attention") else ARCHITECTURES
    chosen = [pytest.param(name, marks=() if name in marker.args else pytest.mark.targets) for name in names]
    metafunc.parametrize("gpu", chosen, indirect=True)


def times(real: int, virtual: int) -> settings:
    """How many examples are tried: an emulated launch takes a tenth of a second and more, and a new kernel seconds.

    There an example that fails is shown as it is, because to find a smaller one would take minutes.
    """
    if IS_REAL:
        return examples(real)
    return settings(examples(virtual), phases=[Phase.explicit, Phase.generate])


class RealGpu:
    """The GPU of this machine."""

    def sized(self, real: T, virtual: T) -> T:
        return real

    def launched(self, run: Callable[[], object]) -> list[str]:
        """Names of everything that a call starts on the GPU."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


class VirtualGpu:
    """A GPU that is not there. `driver` has the launches."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def sized(self, real: T, virtual: T) -> T:
        return virtual

    def launched(self, run: Callable[[], object]) -> list[str]:
        """Names of the kernels that a call launches, and of the functions of torch that would launch one."""
        from tests.virtual_gpu import tensors

        before, torchs = self.driver.executed, _Recorder()

        def compute(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
            with torchs:
                return func(*args, **kwargs)

        with mock.patch.object(tensors, "compute", compute):
            run()
        count = self.driver.executed - before
        ours = list(self.driver.launches)[-count:] if count else []
        return [*torchs.names, *(launch.name for launch in ours)]


class _Recorder(TorchDispatchMode):
    """Notes which functions of torch are called, except those that only describe or allocate memory."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if func.namespace == "aten" and not func.is_view and name not in SILENT:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class Moved:
    """Operations whose tensors are moved to the GPU, and their results back. `backend` has them by name."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            moved = [to_gpu(argument) for argument in arguments]
            named = {key: to_gpu(value) for key, value in options.items()}
            out = getattr(self.backend, name)(*moved, **named)
            for here, there in zip((*arguments, *options.values()), (*moved, *named.values()), strict=True):
                if isinstance(here, torch.Tensor):
                    here.copy_(there)  # an operation may write to its arguments
            return tree_map(lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, out)

        return call


def to_gpu(value: Any) -> Any:
    """On the GPU: the whole storage of a tensor, so that its strides and what lies around it come along."""
    if isinstance(value, Vocabulary):
        return value.to("cuda")
    if isinstance(value, Noise):
        moved = copy.copy(value)
        moved.table = value.table.cuda()
        return moved
    if not isinstance(value, torch.Tensor):
        return value
    whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).cuda()
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def forget() -> None:
    """Makes the package ask anew which GPU a device is."""
    for known in (device.device_of, device.unknown_architecture, _ops.triton_reason):
        known.cache_clear()


@contextmanager
def gpu_of(name: str, **options: Any) -> Iterator[RealGpu | VirtualGpu]:
    """The real GPU for "real", else a virtual one of this architecture that the kernels' launchers take for real."""
    if name == "real":
        yield RealGpu()
        return
    from tests.virtual_gpu import virtual_gpu

    forget()
    try:
        with virtual_gpu(name, **{"keep": 8, **options}) as driver:
            yield VirtualGpu(driver)
    finally:
        forget()

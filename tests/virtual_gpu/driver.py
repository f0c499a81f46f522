"""A Triton driver without a GPU: `kernel[grid](…)` compiles as always, and the PTX is executed by the emulator.

Binding and specialising arguments, compiling (ptxas included), the cache of compiled kernels, the limits of shared
memory and threads are Triton's own code. What would call the CUDA driver is here: devices, streams, loading and
launching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.driver import ty_to_cpp
from triton.runtime import driver as triton_driver
from triton.runtime.cache import get_cache_manager

from .devices import Device
from .dtypes import Array
from .errors import UnsupportedPtx
from .launch import Launch, launch
from .tensors import CUDA, memory_of

MOST_PROGRAMS = (2**31 - 1, 65535, 65535)  # of a grid, by axis
MOST_THREADS = 1024
NAME_LENGTH = 150  # Triton cuts the names of its files there


@dataclass(frozen=True)
class Launched:
    """One launch: what was compiled, what it was called with, and what it did.

    Attributes
    ----------
    name, grid
        The kernel's function and the numbers of programs.
    signature : dict
        The type of each argument; "constexpr" for constants, also None and integers equal to 1.
    constants, divisible
        Values of the constants, and the arguments that were divisible by 16.
    options
        The compiler's metadata: `num_warps`, `num_stages`, `maxnreg`, `shared` and more.
    """

    name: str
    grid: tuple[int, int, int]
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: frozenset[str]
    options: Any
    ptx: str = field(repr=False)
    run: Launch = field(repr=False)

    @property
    def instructions(self) -> int:
        return self.run.instructions

    def reads(self, tensor: torch.Tensor) -> Array:
        """How many times each element was loaded, in the tensor's shape."""
        return self.run.reads(memory_of(tensor))

    def writes(self, tensor: torch.Tensor) -> Array:
        """How many times each element was stored (atomics not counted), in the tensor's shape."""
        return self.run.writes(memory_of(tensor))

    def bytes_read(self, tensor: torch.Tensor) -> int:
        """Bytes loaded from the tensor's allocation, repeats included."""
        return self.run.bytes_read(memory_of(tensor))


class VirtualDriver(DriverBase):
    """What Triton asks of a GPU, answered for one that is not there."""

    def __init__(self, device: Device, seed: int | None, races: bool, keep: int | None) -> None:
        self.device, self.seed, self.races = device, seed, races
        self.launches: deque[Launched] = deque(maxlen=keep)
        self.executed = 0  # launches so far, kept or not
        self.utils = _Utils(device)
        self.launcher_cls = _Launcher

    @classmethod
    def is_active(cls) -> bool:
        return False  # Triton never chooses it by itself

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.device.capability, 32)

    def get_current_device(self) -> int:
        """The capability: Triton keeps compiled kernels per device, and those of two architectures must not mix."""
        return self.device.capability

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return self.device.major, self.device.minor

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty_to_cpp(ty)

    def get_benchmarker(self) -> NoReturn:
        raise NotImplementedError(
            "An emulated kernel has no speed to measure; choose a configuration without autotuning"
        )

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        return args

    def execute(self, ptx: str, shared: int, grid: Sequence[int], arguments: Mapping[str, Any]) -> Launch:
        seed = None if self.seed is None else self.seed + self.executed
        self.executed += 1
        names, values = list(arguments), list(arguments.values())
        return launch(ptx, grid, values, shared=shared, names=names, seed=seed, races=self.races)


class _Utils:
    """The functions of a driver that Triton calls when it loads a kernel."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[str, str, int, int, int]:
        """Module, function, registers, spills and threads. The emulator needs the PTX alone, see `_Launcher`."""
        return name, name, 0, 0, MOST_THREADS

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self.device.shared,
            "multiprocessor_count": self.device.multi_processor_count,
            "max_num_regs": 65536,
            "warpSize": 32,
        }


class _Launcher:
    """Launches one compiled kernel. Triton keeps it as long as the kernel, so it asks for the driver in each call."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.source, self.metadata = source, metadata
        name = source.name[:NAME_LENGTH]
        files = get_cache_manager(metadata.hash).get_group(f"{name}.json")
        self.ptx = Path(files[f"{name}.ptx"]).read_text()
        if metadata.global_scratch_size or metadata.num_ctas != 1 or metadata.launch_cooperative_grid:
            raise UnsupportedPtx(f"{name}: scratch memory, clusters and cooperative grids")

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: Any, packed: Any, about: Any, enter: Any, leave: Any,
        *arguments: Any,
    ) -> None:  # fmt: skip
        grid, gpu = (x, y, z), triton_driver.active
        if 0 in grid:
            return  # as in the CUDA launcher
        if any(n < 0 or n > most for n, most in zip(grid, MOST_PROGRAMS, strict=True)):
            raise ValueError(f"Invalid grid: expected at most {MOST_PROGRAMS} programs, got {grid}")
        kinds = self.source.signature
        passed = {
            name: _argument(name, kind, argument)
            for (name, kind), argument in zip(kinds.items(), arguments, strict=True)
            if kind != "constexpr"
        }
        if enter is not None:
            enter(about)
        run = gpu.execute(self.ptx, self.metadata.shared, grid, passed)
        if leave is not None:
            leave(about)
        names = self.source.fn.arg_names
        constants = {names[path[0]]: value for path, value in self.source.constants.items()}
        divisible = frozenset(names[path[0]] for path, found in self.source.attrs.items() if found)
        facts = (dict(kinds), constants, divisible, self.metadata)
        gpu.launches.append(Launched(self.source.fn.__name__, grid, *facts, self.ptx, run))


def _argument(name: str, kind: str, value: Any) -> Any:
    """A run-time argument as the emulator takes it. An integer that the CUDA launcher would wrap is refused."""
    if isinstance(kind, str) and kind.startswith("*"):
        return 0 if value is None else memory_of(value)
    if kind in ("fp32", "fp64"):
        return float(value)
    if not isinstance(kind, str) or kind[0] not in "iu" or not kind[1:].isdigit():
        raise UnsupportedPtx(f"argument {name} of type {kind}")
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), 1 << bits - 1) if kind[0] == "i" else (0, 1 << bits)
    if not low <= int(value) < high:
        raise OverflowError(f"Invalid {name}: expected a number that fits {kind}, got {value}")
    return int(value)

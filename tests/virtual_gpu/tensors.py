"""Tensors that say they are on the GPU "cuda:0" while their elements lie in CPU memory.

A function of torch that meets one is computed by the CPU, and its results are such tensors again. An operator of
another library, `torch.ops.lsp` for instance, is given to what the library registered for CUDA. Tensors of both devices
in one call are refused as torch refuses them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
MOVERS = ("to", "cpu", "cuda", "copy_", "type_as", "__getitem__", "__setitem__")  # may meet tensors of both devices
HOST_ONLY = ("numpy", "__array__", "__dlpack__", "from_numpy")


class GpuTensor(Tensor):
    """A tensor on the virtual GPU; `memory` is the CPU tensor with its elements."""

    memory: Tensor

    @staticmethod
    def __new__(cls, memory: Tensor) -> GpuTensor:
        layout = {"strides": memory.stride(), "storage_offset": memory.storage_offset(), "dtype": memory.dtype}
        self = Tensor._make_wrapper_subclass(cls, memory.shape, **layout, device=CUDA)
        self.memory = memory
        return self

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator that torch's dispatcher was asked for: its kernel for CUDA."""
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        with torch._C._EnableTorchFunction(), OnGpu():
            return func.redispatch(keys, *args, **(kwargs or {}))


class OnGpu(TorchFunctionMode):
    """Makes tensors for ``device="cuda"``, ``.cuda()`` and ``.to("cuda")``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def memory_of(tensor: Tensor) -> Tensor:
    """The CPU tensor with a tensor's elements: itself, unless it is on the virtual GPU."""
    return tensor.memory if isinstance(tensor, GpuTensor) else tensor


def uncompiled(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """Takes the place of `torch.compile`, which would look for a real GPU."""
    if not function.__module__.startswith("torch."):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*called without torch.compile", UserWarning)
            return _call(function, args, kwargs)

    return call


def _call(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function of torch, on the memory of tensors that are on the GPU."""
    leaves = tree_leaves((args, kwargs))
    ours = [leaf for leaf in leaves if isinstance(leaf, GpuTensor)]
    if _is_foreign(func):
        if not ours:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return func(*args, **kwargs)
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}  # needs a real GPU
    name = getattr(func, "__name__", "")
    if name == "pin_memory" and not ours:
        return args[0].clone()  # all memory of this process is as good
    wanted = _device(name, args, kwargs)
    if not ours and wanted != CUDA:
        return func(*args, **kwargs)
    if ours and name in HOST_ONLY:
        raise TypeError(f"can't convert {CUDA} device type tensor to numpy")
    theirs = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, GpuTensor)]
    if ours and name not in MOVERS and any(tensor.dim() for tensor in theirs):
        raise RuntimeError(f"Expected all tensors to be on the same device, got {CUDA} and cpu in {name}")
    if name == "cuda":
        func, args, kwargs = Tensor.to, (args[0], CPU), {}
    here, options = tree_map(_on_host, (args, kwargs))
    if isinstance(options.get("device"), (str, int)):
        options["device"] = CPU
    out = compute(func, here, options)
    if name.endswith("_") and not name.endswith("__"):
        return args[0]  # computed in place
    return _results(out, wanted or CUDA, ours, theirs)


def compute(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Computes for the virtual GPU what torch's own kernels would compute on a real one."""
    return func(*args, **kwargs)


def _is_foreign(func: Any) -> bool:
    """Whether it is an operator that another library registered."""
    if isinstance(func, OpOverload):
        return func.namespace not in ("aten", "prims")
    return isinstance(func, OpOverloadPacket) and func._qualified_op_name.split("::")[0] not in ("aten", "prims")


def _device(name: str, args: Any, kwargs: dict[str, Any]) -> torch.device | None:
    """The device that a call asks for, or None if it names none."""
    if name in ("cpu", "cuda"):
        return CPU if name == "cpu" else CUDA
    named = [kwargs.get("device"), *(args[1:] if name == "to" else ())]
    for value in named:
        if isinstance(value, (str, torch.device)):
            return CUDA if torch.device(value).type == "cuda" else CPU
        if isinstance(value, Tensor):
            return value.device
    return None


def _on_host(value: Any) -> Any:
    """An argument for a function that the CPU computes."""
    if isinstance(value, GpuTensor):
        return value.memory
    if value in ("cuda", "cuda:0") if isinstance(value, str) else isinstance(value, torch.device):
        return CPU
    return value


def _results(out: Any, device: torch.device, ours: Iterable[GpuTensor], theirs: Iterable[Tensor]) -> Any:
    """What the CPU returned, on a device. A tensor that was an argument stays itself, or is copied to its device."""
    known = {id(tensor.memory): tensor for tensor in ours}
    plain = {id(tensor) for tensor in theirs}

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if device == CPU:
            return value.clone() if id(value) in known else value
        if id(value) in known:
            return known[id(value)]
        return GpuTensor(value.clone() if id(value) in plain else value)

    return tree_map(place, out, is_leaf=lambda value: isinstance(value, torch.Size))

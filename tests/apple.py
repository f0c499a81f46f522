"""A stand-in for Apple's GPU: tensors that say they are on ``mps`` and lie in the memory of the CPU.

It lacks what a Mac's GPU lacks: float64, pinned memory, addresses. Operators are dispatched by torch's own table, as on
a Mac, and what they call is computed by the CPU. It shows that code runs without asking for what is not there and
without mixing devices; it does not show what Apple's kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from lsp_kernels._namespace import NAMESPACE

BETWEEN_DEVICES = ("copy_", "_to_copy", "to")
NO_DRIVER = ("not linked with support for mps devices", "not supported for tensor subclasses", "from the 'MPS' backend")


class AppleTensor(torch.Tensor):
    """A tensor of the stand-in; `held` is its memory."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> AppleTensor:
        if held.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        shape = held.shape, held.stride(), held.storage_offset()
        out = torch.Tensor._make_wrapper_subclass(cls, *shape, dtype=held.dtype, device=torch.device("mps", 0))
        out.held = held
        return out

    def __repr__(self) -> str:
        return f"AppleTensor({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"Invalid call of {func}: expected one while the stand-in is active, got one after it")


def to_apple(x: Any) -> Any:
    """A copy of a tensor on the stand-in; anything else as it is."""
    return AppleTensor(x.clone()) if isinstance(x, Tensor) else x


def is_apple(x: Any) -> bool:
    return isinstance(x, str | torch.device) and str(x).startswith("mps")


def on_cpu(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Computes a call by the CPU, in the memory of its tensors."""
    leaves = list(tree_iter((args, kwargs)))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    here = any(isinstance(x, AppleTensor) for x in tensors)
    if here and name not in BETWEEN_DEVICES and any(not isinstance(x, AppleTensor) and x.dim() for x in tensors):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found mps:0 and cpu in {func}")
    if kwargs.get("pin_memory") or name == "_pin_memory":
        raise RuntimeError("Cannot pin memory: there is no CUDA here")
    devices = [x for x in leaves if isinstance(x, torch.device) or is_apple(x)]
    stays = any(map(is_apple, devices)) if devices else here
    out = func(*tree_map(there, args), **tree_map(there, kwargs))
    if name.endswith("_") and not name.endswith("__"):
        return args[0]  # in place
    if stays and not here:
        out = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, out)  # a copy to the device
    return tree_map(lambda x: AppleTensor(x) if isinstance(x, Tensor) else x, out) if stays else out


def there(x: Any) -> Any:
    """An argument as the CPU takes it."""
    return x.held if isinstance(x, AppleTensor) else torch.device("cpu") if is_apple(x) else x


@cache
def handle(address: int) -> int:
    """What ``data_ptr`` of a buffer is there: not its address but that of a small object, near those of others."""
    return 2**20 + 64 * next(NUMBERS)


def handle_of(held: Tensor) -> int:
    return handle(held.untyped_storage().data_ptr())


NUMBERS = count()
HANDLES: dict[Any, Callable[[Tensor], Any]] = {
    torch.Tensor.data_ptr: lambda held: handle_of(held) + held.storage_offset() * held.element_size(),
    torch.Tensor.untyped_storage: lambda held: SimpleNamespace(data_ptr=lambda: handle_of(held)),
}


class Functions(TorchFunctionMode):
    """Some functions ask the driver of a device before they are dispatched, and there is none: they are served here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in HANDLES and isinstance(args[0], AppleTensor):
            return HANDLES[func](args[0].held)
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(func, OpOverload) or not any(each in str(error) for each in NO_DRIVER):
                raise
        return on_cpu(func, func.__name__, args, kwargs)


class AppleGpu(TorchDispatchMode):
    """While it is active, the device ``mps`` is there. `served` are the operators of this package that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.served: list[str] = []
        self._functions = Functions()

    def __enter__(self) -> AppleGpu:
        self._functions.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._functions.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.__name__.split(".")[0]
        if func.namespace == NAMESPACE and any(isinstance(x, AppleTensor) for x in tree_iter((args, kwargs))):
            self.served.append(name)
            with self:  # what the kernel calls is here too
                return func.redispatch(DispatchKeySet(DispatchKey.MPS), *args, **kwargs)
        return on_cpu(func, name, args, kwargs)

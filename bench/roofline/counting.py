"""The work of code in torch, counted while it runs on tensors without memory: one kernel per function.

Each function reads its operands and writes its results once. So this is what torch's code must move at least; what
kernels read twice is not counted. Attention and RMSNorm are one kernel each, as they are on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bench.roofline.work import Work

# Functions of aten that launch nothing, beside views.
SILENT = (
    "empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view", "detach", "alias", "lift_fresh",
    "promote_types",
)  # fmt: skip
CHOOSING = ("embedding", "index_select", "gather")  # read only what they return, and the indices
WRITING = ("zeros", "ones", "full", "arange", "fill_", "zero_", "scalar_tensor")  # read nothing


def count(run: Callable[[], object]) -> list[Work]:
    """The kernels that a function launches, torch's and those of this project's blocks."""
    counter = _Kernels()
    with counter, _Fused(counter):
        run()
    return counter.works


def touched(tensors: Iterable[Any]) -> int:
    """Bytes of tensors; those that are repeated (a stride of 0) and those that are the same count once."""
    seen = {}
    for each in tree_leaves(list(tensors)):
        if isinstance(each, Tensor):
            size = each.element_size()
            for n, stride in zip(each.shape, each.stride(), strict=True):
                size *= n if stride else 1
            seen[id(each)] = size
    return sum(seen.values())


class _Kernels(TorchDispatchMode):
    """Notes the kernels of aten and our own; of these it meets those of a block, which read and write all once."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []
        self.fused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if func.namespace == "aten" and not self.fused and not func.is_view and name not in SILENT:
            self.works.append(self._work(func, name, args, kwargs, out))
        if func.namespace == "lsp":
            inside = [arg for arg, what in zip(args, func._schema.arguments) if what.alias_info is not None]  # noqa: B905
            self.works.append(Work(func._schema.name, touched([args, kwargs]), touched([out, inside])))
        return out

    def _work(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> Work:
        written = touched([out])
        if name in CHOOSING:
            (indices,) = (x for x in args if isinstance(x, Tensor) and not x.is_floating_point())
            read = touched([out, indices])
        elif name == "copy_":
            read = touched([args[1]])
        else:
            read = 0 if name in WRITING else touched([args, kwargs])
        flops = flop_registry.get(func._overloadpacket)
        return Work(name, read, written, flops(*args, **kwargs, out_val=out) if flops else 0)


class _Fused(TorchFunctionMode):
    """Attention and RMSNorm as one kernel each: without a GPU torch divides them."""

    def __init__(self, counter: _Kernels) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (F.rms_norm, torch.rms_norm, F.scaled_dot_product_attention) or self.counter.fused:
            return func(*args, **kwargs)
        self.counter.fused = True
        try:
            out = func(*args, **kwargs)
        finally:
            self.counter.fused = False
        products = 0
        if func is F.scaled_dot_product_attention:
            q, k = args[:2]
            products = 4 * q.numel() * k.size(-2)  # scores, and values added up
        self.counter.works.append(Work(func.__name__, touched([args, kwargs]), touched([out]), products))
        return out

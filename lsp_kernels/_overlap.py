"""Whether tensors share memory that a kernel would write. `csrc/overlap.h` is the same for C++.

A cache that is written must not share elements with itself (as after `expand`), with the other cache, or with the
tokens of the pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor

Layout = list[tuple[int, int]]  # (stride, size) of every dimension with more than one element, by falling stride


def check_overlap(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    for name, cache in caches.items():
        if overlaps_itself(cache):
            raise ValueError(
                f"Invalid strides of {name}: expected an element of its own for every index, got {cache.stride()}"
            )
    if torch.compiler.is_compiling() or any(not has_address(x) for x in (q, k, v, k_cache, v_cache)):
        return
    for cache_name, cache in caches.items():
        for name, tokens in (("q", q), ("k", k), ("v", v)):
            if meet(cache, tokens):
                raise ValueError(f"Invalid {name}: expected memory outside of the caches, got memory of {cache_name}")
    if share(k_cache, v_cache):
        raise ValueError("Invalid v_cache: expected memory of its own, got memory of k_cache")


def has_address(tensor: Tensor) -> bool:
    return not (tensor.is_meta or isinstance(tensor, FakeTensor) or is_functorch_wrapped_tensor(tensor))


def layout(tensor: Tensor) -> Layout:
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    return sorted(((stride, size) for stride, size in dims if size != 1), reverse=True)


def reach(dims: Layout) -> int:
    """The distance in elements between the first and the last element."""
    return sum((size - 1) * stride for stride, size in dims)


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two indices may have one element. A layout in which dimensions interlock counts as one that has."""
    dims = layout(tensor)
    return tensor.numel() > 0 and any(stride <= reach(dims[d + 1 :]) for d, (stride, _) in enumerate(dims))


def meet(a: Tensor, b: Tensor) -> bool:
    """Whether the ranges of memory of two tensors meet."""
    (a_begin, a_end), (b_begin, b_end) = (
        (x.data_ptr(), x.data_ptr() + (reach(layout(x)) + 1) * x.element_size()) for x in (a, b)
    )
    return min(a.numel(), b.numel()) > 0 and a_begin < b_end and b_begin < a_end


def share(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share memory: exact for those of one layout, such as two slices of one block.

    Others share memory if their ranges meet.
    """
    if not meet(a, b):
        return False
    distance, rest = divmod(b.data_ptr() - a.data_ptr(), a.element_size())
    return rest != 0 or layout(a) != layout(b) or contains(layout(a), distance)


def contains(dims: Layout, distance: int) -> bool:
    """Whether two indices differ by `distance` elements in memory."""
    if not dims:
        return distance == 0
    (stride, size), inner = dims[0], dims[1:]
    rest = reach(inner)
    steps = range(max(1 - size, (distance - rest) // stride), min(size, (distance + rest) // stride + 1))
    return any(contains(inner, distance - step * stride) for step in steps)

"""Whether tensors share memory that a kernel would write. `csrc/overlap.h` is the same for C++.

What is written must not share elements with itself (as after `expand`), with what else is written, or with what is
read: caches with the tokens of a pass, heads with tables, a residual with what is added to it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor

from .errors import check_device, check_tensor, fail_dtype, fail_shape

Layout = list[tuple[int, int]]  # (stride, size) of every dimension with more than one element, by falling stride


def check_overlap(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    """Raises if a cache that is written shares memory."""
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    for name, cache in caches.items():
        if overlaps_itself(cache):
            raise ValueError(
                f"Invalid strides of {name}: expected an element of its own for every index, got {cache.stride()}"
            )
    if not have_addresses(q, k, v, k_cache, v_cache):
        return
    for cache_name, cache in caches.items():
        for name, tokens in (("q", q), ("k", k), ("v", v)):
            if meet(cache, tokens):
                raise ValueError(f"Invalid {name}: expected memory outside of the caches, got memory of {cache_name}")
    if share(k_cache, v_cache):
        raise ValueError("Invalid v_cache: expected memory of its own, got memory of k_cache")


def check_results(operands: dict[str, Tensor], out: Tensor, lse: Tensor | None) -> None:
    """Raises unless `out` and `lse` are contiguous, of the right shape and dtype, and memory of their own."""
    q = operands["q"]
    sums = torch.promote_types(q.dtype, torch.float32)
    for name, result, shape, dtype in (("out", out, q.shape, q.dtype), ("lse", lse, q.shape[:-1], sums)):
        if result is None:
            continue
        check_tensor(name, result)
        check_device(name, result, q)
        if result.shape != shape:
            fail_shape(name, str(list(shape)), result)
        if result.dtype != dtype:
            fail_dtype(name, str(dtype), result)
        if not result.is_contiguous():
            raise ValueError(f"Invalid strides of {name}: expected contiguous, got {result.stride()}")
        if result.requires_grad and result.is_leaf:
            raise ValueError(
                f"Invalid {name}: expected a tensor that can be written, got a leaf that requires a gradient"
            )
        for other, operand in operands.items():
            if have_addresses(result, operand) and meet(result, operand):
                raise ValueError(f"Invalid {name}: expected memory of its own, got memory of {other}")
        operands[name] = result


def check_written(written: dict[str, Tensor], read: dict[str, Tensor]) -> None:
    """Raises unless tensors that are written in place can be, and are memory of their own."""
    for name, tensor in written.items():
        if tensor.requires_grad and tensor.is_leaf:
            raise ValueError(
                f"Invalid {name}: expected a tensor that can be written, got a leaf that requires a gradient"
            )
        if overlaps_itself(tensor):
            raise ValueError(
                f"Invalid strides of {name}: expected an element of its own for every index, got {tensor.stride()}"
            )
        for other, operand in read.items():
            if have_addresses(tensor, operand) and meet(tensor, operand):
                raise ValueError(f"Invalid {name}: expected memory of its own, got memory of {other}")


def check_apart(q: Tensor, k: Tensor) -> None:
    """Raises if heads [T, H, D] of one kind may share memory with those of the other.

    Side by side in every token, as in a fused projection, they do not. Heads that take turns count as shared.
    """
    if not have_addresses(q, k) or not meet(q, k):
        return
    step, size = q.stride(0), q.element_size()
    distance, rest = divmod(k.data_ptr() - q.data_ptr(), size)
    ends = [reach(layout(x[0])) for x in (q, k)]  # of the heads of one token
    apart = step > 0 and k.stride(0) == step and ends[0] < distance % step < step - ends[1]
    if rest or not apart:
        raise ValueError("Invalid k: expected memory of its own, got memory of q")


def have_addresses(*tensors: Tensor) -> bool:
    """Whether all tensors have memory; while torch traces, and on meta tensors, there is none."""
    return not torch.compiler.is_compiling() and not any(
        x.is_meta or isinstance(x, FakeTensor) or is_functorch_wrapped_tensor(x) for x in tensors
    )


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
    if a.is_mps and a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False  # an address there is a buffer's handle, which says nothing of other buffers
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

"""Checks of arguments that are not about one operation, for this package and for packages built on it.

Every error names the argument, what was expected and what came: "Invalid X: expected Y, got Z". A check raises before
anything has been written. Shapes, dtypes, devices and strides are checked always; values are checked where reading them
is free (`values_are_free`).
"""

from __future__ import annotations

import operator
import os
import warnings
from itertools import pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor

__all__ = [
    "as_integer",
    "check_attention_lengths",
    "check_borders",
    "check_device",
    "check_index",
    "check_kind",
    "check_slots",
    "check_tensor",
    "deprecated",
    "fail_dtype",
    "fail_shape",
    "values_are_free",
]


def as_integer(name: str, value: Any, least: int) -> int:
    """The value as a Python int from `least` to 2^31 - 1; integers of other libraries are accepted."""
    try:
        out = operator.index(value)
    except TypeError:
        raise TypeError(f"Invalid {name}: expected an integer, got {value!r}") from None
    if isinstance(value, bool) or not least <= out < 2**31:
        raise ValueError(f"Invalid {name}: expected an integer from {least} to 2^31 - 1, got {value!r}")
    return out


def check_kind(name: str, value: object, kind: type) -> None:
    """Raises unless the value is an instance of `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"Invalid {name}: expected a {kind.__name__}, got {type(value).__name__}")


def check_tensor(name: str, value: object) -> None:
    """Raises unless the value is a dense tensor."""
    check_kind(name, value, Tensor)
    if value.layout != torch.strided or value.is_nested:  # type: ignore[attr-defined]
        raise ValueError(f"Invalid layout of {name}: expected a dense tensor, got {value.layout}")  # type: ignore[attr-defined]


def check_device(name: str, tensor: Tensor, other: Tensor) -> None:
    """Raises unless both tensors are on the same device."""
    if tensor.device != other.device:
        raise ValueError(f"Invalid device of {name}: expected {other.device}, got {tensor.device}")


def check_index(name: str, tensor: Tensor, size: int | None, other: Tensor) -> None:
    """Raises unless `tensor` is contiguous int32 [size] on the device of `other`; size None means [B + 1], B >= 0."""
    check_tensor(name, tensor)
    if tensor.dim() != 1 or (tensor.size(0) < 1 if size is None else tensor.size(0) != size):
        fail_shape(name, "[B + 1]" if size is None else f"[{size}]", tensor)
    if tensor.dtype != torch.int32:
        fail_dtype(name, "int32", tensor)
    if not tensor.is_contiguous():
        raise ValueError(f"Invalid strides of {name}: expected contiguous, got {tensor.stride()}")
    check_device(name, tensor, other)


def check_borders(name: str, borders: Tensor, length: int, *, from_zero: bool) -> list[int]:
    """The lengths of the sequences between these borders of `length` packed rows.

    Raises unless the borders are non-decreasing and within the rows. `from_zero`: the first one must also be 0.
    """
    values = borders.tolist()
    lengths = [end - begin for begin, end in pairwise(values)]
    outside = (values[0] != 0 if from_zero else values[0] < 0) or values[-1] > length
    if outside or min(lengths, default=0) < 0:
        raise ValueError(f"Invalid {name}: expected non-decreasing borders from 0 to at most {length}, got {values}")
    return lengths


def check_attention_lengths(
    length: int, capacity: int, cu_seqlens: Tensor | None, prefix_lens: Tensor, append_lens: Tensor | None
) -> list[int]:
    """How many tokens of the pass each sequence has.

    Raises unless the values of these lengths fit `length` tokens per pass and `capacity` tokens per row of the cache.
    """
    prefixes = prefix_lens.tolist()
    given = [length] * len(prefixes)
    if cu_seqlens is not None:
        given = check_borders("cu_seqlens", cu_seqlens, length, from_zero=True)
    for b, prefix in enumerate(prefixes):
        if not 0 <= prefix <= capacity:
            raise ValueError(f"Invalid prefix_lens[{b}]: expected 0 to {capacity} (the cache's capacity), got {prefix}")
    for b, append in enumerate([] if append_lens is None else append_lens.tolist()):
        most = min(given[b], capacity - prefixes[b])
        if not 0 <= append <= most:
            raise ValueError(
                f"Invalid append_lens[{b}]: expected 0 to {most} ({given[b]} tokens in the pass, "
                f"{capacity - prefixes[b]} free in the cache), got {append}"
            )
    return given


def check_slots(rows: int, slots: Tensor, given: list[int]) -> None:
    """Raises unless every slot is a row of the cache, and those of sequences with tokens in the pass are distinct."""
    seen: dict[int, int] = {}
    for b, (slot, tokens) in enumerate(zip(slots.tolist(), given, strict=True)):
        if not 0 <= slot < rows:
            raise ValueError(f"Invalid slots[{b}]: expected 0 to {rows - 1} (the cache's rows), got {slot}")
        if tokens and slot in seen:
            raise ValueError(f"Invalid slots[{b}]: expected a row of its own, got {slot} as sequence {seen[slot]}")
        if tokens:
            seen[slot] = b


def values_are_free(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be checked without a synchronisation, or ``LSP_CHECK=1`` asks for it."""
    if torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or is_functorch_wrapped_tensor(tensor):
        return False  # there are no values to read
    return tensor.is_cpu or (not tensor.is_meta and os.environ.get("LSP_CHECK") == "1")


def fail_shape(name: str, expected: str, tensor: Tensor) -> NoReturn:
    """Raises the error for a tensor of the wrong shape."""
    raise ValueError(f"Invalid shape of {name}: expected {expected}, got {list(tensor.shape)}")


def fail_dtype(name: str, expected: str, tensor: Tensor) -> NoReturn:
    """Raises the error for a tensor of the wrong dtype."""
    raise TypeError(f"Invalid dtype of {name}: expected {expected}, got {tensor.dtype}")


def deprecated(old: str, new: str) -> None:
    """Warns that `old` is deprecated in favour of `new`, at the line that called the function which calls this one."""
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)

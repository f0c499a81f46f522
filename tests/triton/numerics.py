"""Corrections to the arithmetic of Triton's interpreter, installed by `interpreter.checked`.

Triton 3.7 interprets bfloat16 on its raw bits, truncates where it should round, lets NaN pass
through plain minimum and maximum, and walks generic reductions and scans element by element. The
functions here compute what compiled code computes, vectorised. `argmax` and `argmin` of a NaN
depend on the layout in compiled code, so they are an error here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.interpreter import (
    InterpreterBuilder,
    ReduceOps,
    ReduceScanOpInterface,
    ScanOps,
    TensorHandle,
)

from tests.virtual_gpu.dtypes import Array, bf16_to_f32, f32_to_bf16

BF16 = tl.bfloat16


def _float(handle: TensorHandle) -> Array:
    """A handle's numbers, bfloat16 widened to float32."""
    return bf16_to_f32(handle.data) if handle.dtype.scalar == BF16 else handle.data


def _rounded(values: Array, dtype: tl.dtype) -> TensorHandle:
    if values.dtype == bool:
        return TensorHandle(values, tl.int1)
    return TensorHandle(f32_to_bf16(values.astype(np.float32)), dtype)


_original_cast = InterpreterBuilder.cast_impl
_original_fp_to_fp = InterpreterBuilder.create_fp_to_fp
_original_binary = InterpreterBuilder.binary_op
_original_unary = InterpreterBuilder.unary_op
_original_dot = InterpreterBuilder.create_dot
_original_fma = InterpreterBuilder.create_fma
_original_min_max = ReduceOps.min_max


def cast_impl(self: Any, source: TensorHandle, target: Any) -> TensorHandle:
    of, to = source.dtype.scalar, target.scalar
    if of == to or BF16 not in (of, to):
        return _original_cast(self, source, target)
    if to == BF16:
        return _rounded(source.data.astype(np.float32), BF16)
    return TensorHandle(_float(source).astype(triton_interpreter._get_np_dtype(target)), to)


def create_fp_to_fp(self: Any, source: TensorHandle, target: Any, rounding: Any) -> TensorHandle:
    standard = (BF16, tl.float16, tl.float32, tl.float64)
    if source.dtype.scalar in standard and target.scalar in standard:
        return cast_impl(self, source, target)
    return _original_fp_to_fp(self, source, target, rounding)


def binary_op(self: Any, left: TensorHandle, right: TensorHandle, function: Any) -> TensorHandle:
    if left.dtype.scalar != BF16:
        return _original_binary(self, left, right, function)
    return _rounded(function(_float(left), _float(right)), BF16)


def unary_op(self: Any, value: TensorHandle, function: Any) -> TensorHandle:
    if value.dtype.scalar != BF16:
        return _original_unary(self, value, function)
    return _rounded(function(_float(value)), BF16)


def create_minnumf(self: Any, left: TensorHandle, right: TensorHandle) -> TensorHandle:
    return self.binary_op(left, right, np.fmin)


def create_maxnumf(self: Any, left: TensorHandle, right: TensorHandle) -> TensorHandle:
    return self.binary_op(left, right, np.fmax)


def create_fma(self: Any, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
    if z.dtype.scalar != BF16:
        return _original_fma(self, x, y, z)
    return _rounded(_float(x) * _float(y) + _float(z), BF16)


def create_dot(
    self: Any, a: TensorHandle, b: TensorHandle, start: TensorHandle, precision: Any, limit: Any
) -> TensorHandle:
    """16-bit products are exact in float32, which is how tensor cores accumulate them."""
    if a.dtype.scalar not in (BF16, tl.float16):
        return _original_dot(self, a, b, start, precision, limit)
    product = np.matmul(_float(a).astype(np.float32), _float(b).astype(np.float32))
    return TensorHandle((product + start.data).astype(start.data.dtype), start.dtype.scalar)


def get_all_ones_value(self: Any, type_: Any) -> TensorHandle:
    dtype = triton_interpreter._get_np_dtype(type_)
    ones = np.ones(1, bool) if dtype.kind == "b" else ~np.zeros(1, dtype)
    return TensorHandle(ones, type_.scalar)


def min_max(self: Any, values: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
    values = values[0] if isinstance(values, tuple) else values
    data = values.handle.data
    if idx_reduce_op is None:
        function = np.fmin if val_reduce_op is np.nanmin else np.fmax
        reduced = function.reduce(data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(reduced, values.dtype)
    if data.dtype.kind == "f" and np.isnan(data).any():
        raise ValueError("argmax or argmin of a NaN: compiled code gives no particular answer")
    return _original_min_max(self, values, val_reduce_op, idx_reduce_op)


def _combine(
    operation: ReduceScanOpInterface, left: list[Array], right: list[Array], types: list[tl.dtype]
) -> list[Array]:
    """Apply the kernel's combine function to whole arrays at once."""

    def tensors(arrays: list[Array]) -> list[tl.tensor]:
        return [operation.to_tensor(a, t) for a, t in zip(arrays, types, strict=True)]

    combined = operation.combine_fn.fn(*tensors(left), *tensors(right))
    results = combined if isinstance(combined, tuple) else (combined,)
    return [np.asarray(r.handle.data).reshape(left[0].shape) for r in results]


def generic_reduce(self: ReduceOps, values: tuple[tl.tensor, ...]) -> list[tl.tensor]:
    """Reduce by halves, which a combine function must allow because compiled code does the like."""
    shape = values[0].handle.data.shape
    flat, axis = self.unravel(values, self.axis)
    types = [value.dtype for value in flat]
    current = [np.moveaxis(value.handle.data, axis, 0) for value in flat]
    while (n := current[0].shape[0]) > 1:
        left, right = [c[: n // 2] for c in current], [c[n // 2 :] for c in current]
        current = _combine(self, left, right, types)
    results = []
    for result, type_ in zip((c[0] for c in current), types, strict=True):
        if self.keep_dims:
            result = result.reshape((1,) * len(shape)) if self.axis is None else np.expand_dims(result, axis)
        results.append(self.to_tensor(result, type_))
    return results


def generic_scan(self: ScanOps, values: tuple[tl.tensor, ...]) -> list[tl.tensor]:
    """Prefix scan by doubling: element i takes in element i - step, the earlier one on the left."""
    types = [value.dtype for value in values]
    current = [np.moveaxis(value.handle.data, self.axis, 0) for value in values]
    step = 1
    while step < current[0].shape[0]:
        earlier = [np.concatenate([c[:step], c[:-step]]) for c in current]
        combined = _combine(self, earlier, current, types)
        current = [np.concatenate([c[:step], new[step:]]) for c, new in zip(current, combined, strict=True)]
        step *= 2
    return [self.to_tensor(np.moveaxis(c, 0, self.axis), t) for c, t in zip(current, types, strict=True)]


CORRECTIONS: tuple[tuple[type, str, Any], ...] = (
    (InterpreterBuilder, "cast_impl", cast_impl),
    (InterpreterBuilder, "create_fp_to_fp", create_fp_to_fp),
    (InterpreterBuilder, "binary_op", binary_op),
    (InterpreterBuilder, "unary_op", unary_op),
    (InterpreterBuilder, "create_minnumf", create_minnumf),
    (InterpreterBuilder, "create_maxnumf", create_maxnumf),
    (InterpreterBuilder, "create_fma", create_fma),
    (InterpreterBuilder, "create_dot", create_dot),
    (InterpreterBuilder, "get_all_ones_value", get_all_ones_value),
    (ReduceOps, "min_max", min_max),
    (ReduceOps, "generic_reduce", generic_reduce),
    (ScanOps, "generic_scan", generic_scan),
)

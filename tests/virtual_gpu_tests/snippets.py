"""Small kernels around hand-written PTX, for the emulator's own tests."""

from __future__ import annotations

import numpy as np
import torch

from tests.virtual_gpu import Launch, launch
from tests.virtual_gpu.dtypes import RAW, Array

HEADER = """
.version 8.7
.target sm_100a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
"""

REGISTERS = """
    .reg .pred %p<32>;
    .reg .b16 %rs<32>;
    .reg .b32 %r<64>;
    .reg .b64 %rd<64>;
"""


def kernel(body: str, params: int, threads: int = 64) -> str:
    """A kernel with pointer parameters p0, p1, ... in %rd0, %rd1, ... and the thread in %r0."""
    names = ", ".join(f".param .u64 .ptr .global .align 1 p{i}" for i in range(params))
    loads = "\n".join(f"ld.param.b64 %rd{i}, [p{i}];" for i in range(params))
    return (
        f"{HEADER}.visible .entry snippet({names})\n.reqntid {threads}\n{{{REGISTERS}"
        f"{loads}\nmov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n"
    )


def run(
    body: str,
    *tensors: torch.Tensor,
    threads: int = 64,
    grid: tuple[int, ...] = (1,),
    shared: int = 0,
    seed: int | None = None,
    races: bool = True,
    tensor_fences: bool = False,
) -> Launch:
    text = kernel(body, len(tensors), threads)
    options = {"seed": seed, "races": races, "tensor_fences": tensor_fences}
    return launch(text, grid, list(tensors), shared=shared, **options)


def evaluate(body: str, *inputs: Array, out: np.dtype | str, shared: int = 0) -> Array:
    """Run `body` once per element: it reads %a, %b, ... and writes %out, all of their own widths.

    Predicates among inputs and output are arrays of bool.
    """
    result = np.dtype(out)
    sources = [_stored(np.asarray(i)) for i in inputs]
    tensors = [torch.from_numpy(s.copy()) for s in sources]
    target = np.zeros(inputs[0].size, np.uint8 if result.kind == "b" else RAW[8 * result.itemsize])
    tensors.append(torch.from_numpy(target))
    code = [_read(name, i, value) for i, (name, value) in enumerate(zip("abcd", inputs, strict=False))]
    run(
        "\n".join([*code, _declare("%out", result), body, _write(len(inputs), result)]),
        *tensors,
        threads=inputs[0].size,
        shared=shared,
    )
    return target.view(bool if result.kind == "b" else result)


def _stored(values: Array) -> Array:
    return values.view(np.uint8 if values.dtype.kind == "b" else RAW[8 * values.dtype.itemsize])


def _bits(dtype: np.dtype) -> int:
    return 8 * dtype.itemsize


def _declare(name: str, dtype: np.dtype) -> str:
    return f".reg .pred {name};" if dtype.kind == "b" else f".reg .b{max(_bits(dtype), 16)} {name};"


def _read(name: str, index: int, values: Array) -> str:
    size = values.dtype.itemsize
    pointer = f"mad.wide.u32 %rd60, %r0, {size}, %rd{index};"
    if values.dtype.kind == "b":
        load = f"ld.global.b8 %rs31, [%rd60]; setp.ne.b16 %{name}, %rs31, 0;"
    else:
        load = f"ld.global.b{8 * size} %{name}, [%rd60];"
    return f"{_declare('%' + name, values.dtype)}\n{pointer}\n{load}"


def _write(index: int, dtype: np.dtype) -> str:
    pointer = f"mad.wide.u32 %rd60, %r0, {dtype.itemsize}, %rd{index};"
    if dtype.kind == "b":
        return f"{pointer}\nselp.b16 %rs31, 1, 0, %out;\nst.global.b8 [%rd60], %rs31;"
    return f"{pointer}\nst.global.b{_bits(dtype)} [%rd60], %out;"

"""Products for few rows, against torch's own, also in int8, a read of the weight and the rate of a large product."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from bench.limits import limits, taken_out
from bench.ratios import LIMIT, OURS, Report, interleave
from bench.sizes import sized
from bench.support import DTYPES, compiled
from lsp_kernels import linear, quantise, reference

ROWS = sized([1, 4, 16, 64, 128, 256], tiny=[1, 5])
SHAPES = sized([(768, 2304), (768, 4608), (4096, 4096), (4096, 24576)], tiny=[(32, 50)])  # inputs and outputs
FASTER = range(2, 129)  # rows for which models use it in float32
EIGHT_BITS, TORCHS_EIGHT_BITS = "ours, int8 weight", "int8 weight and activations (_int_mm)"


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def bench_linear(benchmark, report: Report, rows: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    size, outputs = shape
    weight = (torch.randn(outputs, size) * size**-0.5).to(dtype)
    held, scales = quantise(weight)
    x = torch.randn(rows, size).to(dtype)
    exact = F.linear(x.double(), weight.double())
    allowed = 1.5 * (F.linear(x, weight).double() - exact).abs().max() + 1e-5
    assert (linear(x, weight).double() - exact).abs().max() <= allowed
    assert (linear(x, held, scales=scales).double() - exact).abs().max() < 0.05 * exact.abs().max()
    contenders = {
        OURS: lambda: linear(x, weight),
        "torch": lambda: F.linear(x, weight),
        EIGHT_BITS: lambda: linear(x, held, scales=scales),
        TORCHS_EIGHT_BITS: lambda: in_eight_bits(x, held, scales),
        "compiled reference": compiled(reference.linear, x, weight),
        "reference": lambda: reference.linear(x, weight),
    }
    times = interleave(contenders | limits(dtype, weight.numel()), rounds=7, seconds=1.0)
    rate, read = taken_out(times)
    times[LIMIT] = max(2 * rows * weight.numel() / rate, read)
    name = f"{rows} rows, {size} to {outputs}, {str(dtype)[6:]}"
    facts = {"rows": rows, "dtype": str(dtype)[6:], "shape": f"{size} to {outputs}"}
    report.compare("linear", name, times, over=LIMIT, ours=(OURS, EIGHT_BITS), **facts)
    if rows in FASTER:
        report.target(f"linear, {name}, ours / torch", times[OURS] / times["torch"], at_most=1.0)
    benchmark.pedantic(contenders[OURS], rounds=3)


def in_eight_bits(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Activations are rounded to int8 too, with a scale per row, so that integers can be multiplied."""
    sizes = x.abs().amax(-1, keepdim=True).float() / 127
    products = torch._int_mm((x / sizes).round().to(torch.int8), weight.T)
    return (products * sizes * scales).to(x.dtype)

"""The operations of a block, against the functions of torch that they stand for, and against reading their operands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bench.limits import read_bytes
from bench.ratios import LIMIT, OURS, Contender, Report, interleave, repeated
from bench.sizes import sized
from bench.support import DTYPES, compiled
from lsp_kernels import add_norm, reference, rotate_, silu_mul

ROWS = sized([1, 16, 64, 256, 1024], tiny=[1, 5])
D_MODEL, HEADS, HEAD_DIM, MLP = sized((4096, (32, 8), 128, 12288), tiny=(64, (4, 2), 32, 96))
EPS = 1e-6


Operation = Callable[..., object]


def compare(
    benchmark,
    report: Report,
    ours: Operation,
    run: Callable[[Operation], object],
    torchs: Contender,
    read: list[Tensor],
    with_norms: bool = False,
) -> None:
    """Times of an operation, its definition and torch's functions over reading the operands once."""
    name, rows, dtype = ours.__name__, len(read[0]), str(read[0].dtype)[6:]
    definition = getattr(reference, name)
    contenders = {
        OURS: lambda: run(ours),
        "torch": torchs,
        "reference": lambda: run(definition),
        "compiled reference": compiled(run, definition),
        LIMIT: lambda: [read_bytes(x) for x in read],
    }
    calls = 1 + sized(2**20, tiny=0) // sum(x.numel() for x in read)
    times = interleave({who: repeated(each, calls) for who, each in contenders.items()}, seconds=0.5)
    times = {who: seconds / calls for who, seconds in times.items()}
    case = f"{rows} rows of {read[0][0].numel()}, {dtype}{', norms of heads' if with_norms else ''}"
    report.compare(name, case, times, over=LIMIT, rows=rows, dtype=dtype)
    report.target(f"{name}, {case}, ours / torch", times[OURS] / times["torch"], at_most=1.0)
    benchmark.extra_info.update(times)
    benchmark.pedantic(contenders[OURS], rounds=3)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def bench_add_norm(benchmark, report: Report, rows: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, D_MODEL).to(dtype), torch.randn(D_MODEL).to(dtype)
    residual = torch.zeros_like(x)
    expected = F.rms_norm(residual + x, x.shape[-1:], weight, 1e-5)
    torch.testing.assert_close(add_norm(x, weight, eps=1e-5, residual=residual.clone()), expected, rtol=1e-2, atol=1e-2)

    def torchs() -> Tensor:
        residual.copy_(residual + x)  # as a model keeps the sum
        return F.rms_norm(residual, x.shape[-1:], weight, 1e-5)

    def run(operation: Operation) -> object:
        return operation(x, weight, eps=1e-5, residual=residual)

    compare(benchmark, report, add_norm, run, torchs, [x, residual])


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def bench_rotate(benchmark, report: Report, rows: int, dtype: torch.dtype) -> None:
    rotate(benchmark, report, rows, dtype, with_norms=False)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def bench_rotate_with_norms(benchmark, report: Report, rows: int, dtype: torch.dtype) -> None:
    """As Qwen3 has them: every head of q and k is normalised first."""
    rotate(benchmark, report, rows, dtype, with_norms=True)


def rotate(benchmark, report: Report, rows: int, dtype: torch.dtype, *, with_norms: bool) -> None:
    n_q, n_k = HEADS
    fused, angles = torch.randn(rows, n_q + 2 * n_k, HEAD_DIM).to(dtype), torch.randn(rows, HEAD_DIM // 2)
    q, k, _ = fused.split([n_q, n_k, n_k], dim=1)
    cos, sin = angles.cos(), angles.sin()
    weights = torch.rand(2, HEAD_DIM).add(0.5).to(dtype)
    norms = {"q_norm": weights[0], "k_norm": weights[1], "eps": EPS} if with_norms else {}

    def torchs() -> Tensor:
        exact = fused[:, : n_q + n_k].float()
        if with_norms:
            pairs = zip(exact.split([n_q, n_k], dim=1), weights.float(), strict=True)
            exact = torch.cat([F.rms_norm(x, x.shape[-1:], weight, EPS) for x, weight in pairs], dim=1)
        a, b = exact.chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1).to(dtype)

    expected = torchs()
    rotate_(q, k, cos, sin, **norms)
    torch.testing.assert_close(fused[:, : n_q + n_k], expected, rtol=1e-2, atol=1e-2)
    read = [fused[:, : n_q + n_k].contiguous()]

    def run(operation: Operation) -> object:
        return operation(q, k, cos, sin, **norms)

    compare(benchmark, report, rotate_, run, torchs, read, with_norms)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def bench_silu_mul(benchmark, report: Report, rows: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(rows, 2 * MLP).to(dtype)

    def torchs() -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    torch.testing.assert_close(silu_mul(gate_up), torchs(), rtol=1e-2, atol=1e-2)
    compare(benchmark, report, silu_mul, lambda operation: operation(gate_up), torchs, [gate_up])

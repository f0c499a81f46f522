"""The operations of a block against the functions of torch that they stand for, on the sizes of published models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.gpu.case import OURS, Case, Contender, Plan, Run
from bench.gpu.checks import different, farther, first
from bench.gpu.plain import plain_add_norm, plain_rotate_, plain_silu_mul
from bench.gpu.shapes import NAMES, Shapes
from lsp.models.config import ModelConfig
from lsp_kernels import add_norm, reference, rotate_, silu_mul

EPS = 1e-5
ROOM = 1e-5  # beside the error of torch's functions
LOOSE = 8.0  # others may err so many times as much: usual code rounds angles and intermediate results too


def plans(shapes: Shapes) -> Iterator[Plan]:
    for make, group in NAMED.items():
        for model, config in shapes.models.items():
            for rows in shapes.rows:
                for dtype in shapes.dtypes:
                    facts = {"sizes of": model, "rows": rows, "dtype": NAMES[dtype]}
                    yield Plan(
                        group, f"{model}, {rows} rows, {NAMES[dtype]}", facts, partial(make, config, rows, dtype)
                    )


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def moving(elements: int, dtype: torch.dtype) -> dict[str, tuple[Run, int]]:
    """A copy that moves as many elements, half of them read and half written."""
    source, target = torch.empty(2, max(elements // 2, 1), dtype=dtype, device="cuda")
    return {"move": (lambda: target.copy_(source), 1)}


def error(got: Tensor, truth: Tensor) -> float:
    return float((got.double() - truth).abs().max())


def norm_case(config: ModelConfig, rows: int, dtype: torch.dtype) -> Case:
    """A residual sum and its norm. Every run adds x once more, so a check knows the residual of the run before."""
    x, residual = (normal(rows, config.d_model, dtype=dtype) for _ in range(2))
    weight, held = normal(config.d_model, dtype=dtype), residual.clone()

    def check(factor: float, out: Tensor) -> str | None:
        expected = held + x
        wide = expected.double()
        truth = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
        allowed = error(F.rms_norm(expected, (config.d_model,), weight, EPS), truth) + ROOM
        near = farther("norm", out, truth, factor * allowed)
        found = first(different(["residual"], [residual], [expected]), near)
        held.copy_(residual)
        return found

    def run(operation: Callable[..., Tensor]) -> Tensor:
        return operation(x, weight, eps=EPS, residual=residual)

    return case_of(run, (add_norm, plain_add_norm, reference.add_norm), check, moving(4 * x.numel(), dtype))


def rotation_case(config: ModelConfig, rows: int, dtype: torch.dtype) -> Case:
    """Heads of a fused projection, turned in place once more by every run."""
    heads = [config.n_heads, config.n_kv_heads, config.n_kv_heads]
    fused, angles = normal(rows, sum(heads), config.head_dim, dtype=dtype), torch.randn(rows, config.head_dim // 2)
    q, k, _ = fused.split(heads, dim=1)
    cos, sin, held = angles.cos().cuda(), angles.sin().cuda(), fused.clone()

    def check(factor: float, _: None) -> str | None:
        truth, torchs = held.double(), held.clone()
        reference.rotate_(*truth.split(heads, dim=1)[:2], cos.double(), sin.double())
        reference.rotate_(*torchs.split(heads, dim=1)[:2], cos, sin)
        found = farther("heads", fused, truth, factor * (error(torchs, truth) + ROOM))
        held.copy_(fused)
        return found

    def run(operation: Callable[..., None]) -> None:
        operation(q, k, cos, sin)

    turned = 2 * rows * (heads[0] + heads[1]) * config.head_dim
    return case_of(run, (rotate_, plain_rotate_, reference.rotate_), check, moving(turned, dtype))


def gate_case(config: ModelConfig, rows: int, dtype: torch.dtype) -> Case:
    gate_up = normal(rows, 2 * config.mlp_size, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    truth = gate * torch.sigmoid(gate) * up
    allowed = error(plain_silu_mul(gate_up), truth) + ROOM

    def check(factor: float, out: Tensor) -> str | None:
        return farther("gated product", out, truth, factor * allowed)

    def run(operation: Callable[[Tensor], Tensor]) -> Tensor:
        return operation(gate_up)

    return case_of(run, (silu_mul, plain_silu_mul, reference.silu_mul), check, moving(3 * gate.numel(), dtype))


def case_of(
    run: Callable[[Callable[..., Any]], Any],
    operations: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]],
    check: Callable[[float, Any], str | None],
    limits: dict[str, tuple[Run, int]],
) -> Case:
    """Ours, torch's functions and the definition, which torch also compiles."""
    ours, torchs, definition = operations
    torch.compiler.reset()  # or it would give up after so many shapes
    compiled = torch.compile(definition, fullgraph=True)
    others = {"torch": torchs, "compiled reference": compiled, "reference": definition}
    loosely = [Contender(name, partial(run, each), partial(check, LOOSE)) for name, each in others.items()]
    return Case([Contender(OURS, partial(run, ours), partial(check, 1.0)), *loosely], limits)


NAMED: dict[Callable[..., Case], str] = {norm_case: "add_norm", rotation_case: "rotate_", gate_case: "silu_mul"}

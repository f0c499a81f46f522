"""The operations of a block on every CPU path: as exact as torch, in place where they say so, and citizens of torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn import functional as F

import lsp_kernels
from lsp_kernels import add_norm, reference, rotate_, silu_mul
from tests.block_cases import (
    GateCase,
    NormCase,
    RotationCase,
    gate_cases,
    norm_cases,
    rotation_cases,
    values,
)
from tests.strategies import DTYPES
from tests.support import OPERATORS, examples, same


@examples(120)
@given(case=norm_cases())
def test_a_norm_is_as_exact_as_torch_and_the_sum_is_right_to_the_bit(backend, case: NormCase) -> None:
    case.check(backend)


@examples(80)
@given(case=rotation_cases())
def test_a_rotation_is_as_exact_as_torch_and_values_stay_as_they_were(backend, case: RotationCase) -> None:
    case.check(backend)


@examples(80)
@given(case=gate_cases())
def test_a_gated_product_is_as_exact_as_torch(backend, case: GateCase) -> None:
    case.check(backend)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_longest_rows_are_served(backend, dtype: torch.dtype) -> None:
    NormCase(values((2, 32768), dtype, 0), values((2, 32768), dtype, 1), values((32768,), dtype, 2), 1e-6).check(
        backend
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_round_as_torch_does_wherever_they_fall(backend, dtype: torch.dtype) -> None:
    """Ties, overflow, subnormal numbers, infinities and NaN."""
    largest, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    some = [
        0.0,
        -0.0,
        1.0,
        1 / 256,
        3 / 256,
        2**-11,
        3 * 2**-11,
        largest,
        -largest,
        least,
        least / 4,
        math.inf,
        math.nan,
    ]
    x, y = (torch.tensor(some).to(dtype).repeat(len(some)), torch.tensor(some).to(dtype).repeat_interleave(len(some)))
    residual = y.clone()[None]
    backend.add_norm(x[None], torch.ones(len(x), dtype=dtype), eps=1e-6, residual=residual)
    same(residual[0], y + x)


def test_what_is_not_finite(backend) -> None:
    x = torch.tensor([[1.0, math.nan, 2.0], [1.0, math.inf, 2.0], [3.0, 4.0, 0.0]])
    out = backend.add_norm(x, torch.ones(3), eps=0.0)
    assert out[0].isnan().all()
    assert out[1].isnan().tolist() == [False, True, False]
    assert out[1, [0, 2]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(out[2], x[2] / math.sqrt(25 / 3))
    gates = torch.tensor([[math.nan, -math.inf, math.inf, -1e4, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, math.nan]])
    out = backend.silu_mul(gates)[0]
    assert out.isnan().tolist() == [True, True, False, False, False, True]
    assert out[2:5].tolist() == [math.inf, 0.0, 1e4]


def test_gates_so_low_that_their_exponential_nearly_overflows(backend) -> None:
    gate = torch.linspace(-88.72, -80.0, 100)
    exact = gate.double() / (1 + torch.exp(-gate.double()))
    out = backend.silu_mul(torch.stack([gate, torch.full_like(gate, 1e37)], dim=1))[:, 0]
    torch.testing.assert_close(out.double(), exact * 1e37, rtol=1e-5, atol=0)
    assert backend.silu_mul(torch.tensor([[-88.3, math.inf]])).item() == -math.inf


def test_heads_in_another_order_are_normalised_into_contiguous_memory(backend) -> None:
    x, weight = values((3, 5, 8), torch.float32, 0).transpose(0, 1), values((8,), torch.float32, 1)
    for residual in (None, x.clone()):  # both keep the order
        out = backend.add_norm(x, weight, eps=1e-6, residual=residual)
        assert out.is_contiguous()
        rows = x if residual is None else residual
        torch.testing.assert_close(out, F.rms_norm(rows, (8,), weight, 1e-6))


def test_one_thread_and_two_give_the_same_bits(backend) -> None:
    threads, found = torch.get_num_threads(), []
    x, weight, gate_up = (
        values((70, 1500), torch.bfloat16, 0),
        values((1500,), torch.bfloat16, 1),
        values((70, 3000), torch.bfloat16, 2),
    )
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            q, k = (values((70, n, 128), torch.bfloat16, n) for n in (8, 2))
            backend.rotate_(q, k, *values((2, 70, 64), torch.float32, 3))
            found.append((backend.add_norm(x, weight, eps=1e-6), backend.silu_mul(gate_up), q, k))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*found, strict=True):
        same(one, two)


def test_float64_is_served_by_the_reference() -> None:
    x, residual, weight = (
        torch.randn(3, 4, 6, dtype=torch.float64).unbind()[0],
        torch.randn(4, 6).double(),
        torch.ones(6).double(),
    )
    expected = residual + x
    out = add_norm(x, weight, eps=1e-6, residual=residual)
    assert torch.equal(residual, expected)
    torch.testing.assert_close(
        out, expected / (expected.square().mean(-1, keepdim=True) + 1e-6).sqrt(), rtol=1e-14, atol=0
    )
    q, k = torch.randn(2, 3, 1, 4, dtype=torch.float64)
    before, angles = q.clone(), torch.randn(3, 2, dtype=torch.float64)
    rotate_(q, k, angles.cos(), angles.sin())
    torch.testing.assert_close(q.norm(dim=-1), before.norm(dim=-1), rtol=1e-14, atol=0)
    assert silu_mul(torch.ones(1, 2).double()).item() == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-15)


def meta(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def test_meta_tensors_give_the_shapes_of_real_ones() -> None:
    x, weight, gate_up = values((3, 2, 8), torch.half, 0, gap=8), torch.ones(8).half(), torch.zeros(3, 8)
    for real, there in (
        (add_norm(x, weight, eps=1e-6), add_norm(meta(x), meta(weight), eps=1e-6, residual=meta(x))),
        (silu_mul(gate_up), silu_mul(meta(gate_up))),
    ):
        assert (there.shape, there.dtype, there.stride()) == (real.shape, real.dtype, real.stride())
    rotate_(meta(x), meta(x), *torch.empty(2, 3, 4, device="meta"))


def test_opcheck() -> None:
    x, residual, weight = values((5, 8), torch.float32, 0), values((5, 8), torch.float32, 1), torch.ones(8)
    q, k, cos, sin = torch.randn(5, 3, 8), torch.randn(5, 1, 8), torch.randn(5, 4), torch.randn(5, 4)
    torch.library.opcheck(OPERATORS.add_norm.default, (x, residual, weight, 1e-6))
    torch.library.opcheck(OPERATORS.add_norm.default, (x.requires_grad_(), None, weight.requires_grad_(), 1e-6))
    torch.library.opcheck(OPERATORS.rotate_.default, (q, k, cos, sin, None, None, 0.0))
    torch.library.opcheck(OPERATORS.rotate_.default, (q, k, cos, sin, torch.ones(8), torch.ones(8), 1e-6))
    torch.library.opcheck(OPERATORS.silu_mul.default, (torch.randn(5, 8, requires_grad=True),))


def layer(x: Tensor, residual: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """All three, with heads that are views of one tensor."""
    fused = add_norm(x, weight, eps=1e-6, residual=residual).view(len(x), 4, -1) * 2
    q, k, v = fused.split([2, 1, 1], dim=1)
    rotate_(q, k, cos, sin)
    rotate_(q, k, cos, sin, q_norm=weight[:8], k_norm=weight[8:16], eps=1e-6)
    return silu_mul(fused.flatten(1)), q, k, v


def operands(tokens: int, seed: int = 0) -> list[Tensor]:
    return [
        values(shape, torch.float32, seed + i)
        for i, shape in enumerate([(tokens, 32), (tokens, 32), (32,), (tokens, 4), (tokens, 4)])
    ]


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(dynamic: bool, compiler: str) -> None:
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=compiler)
    for tokens in (6, 9):
        here, there = operands(tokens), operands(tokens)
        for got, expected in zip((*compiled(*here), here[1]), (*layer(*there), there[1]), strict=True):
            torch.testing.assert_close(got, expected)


def test_autograd_knows_what_is_written() -> None:
    x, residual, weight, cos, sin = operands(3)
    q, k = residual.clone().view(3, 4, 8), residual.clone().view(3, 4, 8)
    before = [t._version for t in (residual, q, k, x)]
    add_norm(x, weight, eps=1e-6, residual=residual)
    rotate_(q, k, cos, sin)
    assert [t._version for t in (residual, q, k, x)] == [before[0] + 1, before[1] + 1, before[2] + 1, before[3]]
    with torch.inference_mode():
        fresh = torch.ones(3, 32)
        add_norm(x, weight, eps=1e-6, residual=fresh)
        assert torch.equal(fresh, x + 1)


def test_outputs_never_require_a_gradient(backend) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    with torch.no_grad() if backend is reference else torch.enable_grad():
        assert not backend.add_norm(x, torch.ones(8), eps=1e-6).requires_grad
        assert not backend.silu_mul(x).requires_grad


def leaf(*shape: int) -> Tensor:
    return torch.zeros(shape, requires_grad=True)


SOUND_NORM = {"x": torch.zeros(4, 6), "weight": torch.ones(6), "eps": 1e-6, "residual": torch.zeros(4, 6)}
SOUND_ROTATION = {
    "q": torch.zeros(4, 3, 6),
    "k": torch.zeros(4, 1, 6),
    "cos": torch.zeros(4, 3),
    "sin": torch.zeros(4, 3),
}
WHOLE = torch.zeros(4, 4, 6)
ONE = torch.zeros(4, 6).as_strided((1, 4, 6), (0, 6, 1))  # a token has no stride
ANGLES = torch.zeros(1, 3)
REFUSED: list[tuple[Callable[..., object], dict[str, object], str]] = [
    (add_norm, {"x": torch.zeros(6)}, r"Invalid shape of x: expected \[T, d\] or \[T, H, d\], got \[6\]"),
    (add_norm, {"x": None}, "Invalid x: expected a Tensor, got NoneType"),
    (add_norm, {"x": torch.zeros(4, 6).int()}, "Invalid dtype of x: expected float32, bfloat16, float16 or float64"),
    (add_norm, {"x": torch.zeros(6, 4).T}, "Invalid strides of x: expected the last dimension to be contiguous"),
    (add_norm, {"x": torch.zeros(4, 0)}, "Invalid shape of x: expected 1 to 32768 values"),
    (add_norm, {"x": torch.zeros(1, 40000), "weight": torch.ones(40000)}, r"expected 1 to 32768 .*got \[1, 40000\]"),
    (add_norm, {"weight": torch.ones(5)}, r"Invalid shape of weight: expected \[6\], got \[5\]"),
    (add_norm, {"weight": torch.ones(6).half()}, "Invalid dtype of weight: expected torch.float32 as x"),
    (add_norm, {"residual": torch.zeros(4, 5)}, r"Invalid shape of residual: expected \[4, 6\] as x, got \[4, 5\]"),
    (add_norm, {"residual": torch.zeros(4, 6).bfloat16()}, "Invalid dtype of residual: expected torch.float32 as x"),
    (add_norm, {"residual": torch.zeros(1, 6).expand(4, 6)}, "Invalid strides of residual: expected an element"),
    (add_norm, {"residual": SOUND_NORM["x"]}, "Invalid residual: expected memory of its own, got memory of x"),
    (add_norm, {"residual": leaf(4, 6)}, "Invalid residual: .*got a leaf that requires a gradient"),
    (add_norm, {"eps": -1.0}, "Invalid eps: expected a finite number >= 0, got -1.0"),
    (add_norm, {"eps": math.nan}, "Invalid eps: expected a finite number >= 0, got nan"),
    (rotate_, {"q": torch.zeros(4, 6)}, r"Invalid shape of q: expected \[T, H, D\], got \[4, 6\]"),
    (rotate_, {"q": torch.zeros(4, 3, 7)}, "Invalid shape of q: expected an even head dimension from 2 to 256"),
    (rotate_, {"k": torch.zeros(5, 1, 6)}, r"Invalid shape of k: expected \[4, H, 6\], got \[5, 1, 6\]"),
    (rotate_, {"k": torch.zeros(4, 1, 6).half()}, "Invalid dtype of k: expected torch.float32 as q, got torch.float16"),
    (rotate_, {"cos": torch.zeros(4, 6)}, r"Invalid shape of cos: expected \[4, 3\], got \[4, 6\]"),
    (rotate_, {"sin": torch.zeros(4, 3).half()}, "Invalid dtype of sin: expected torch.float32 with heads"),
    (rotate_, {"sin": torch.zeros(3, 4).T}, "Invalid strides of sin: expected contiguous"),
    (rotate_, {"q_norm": torch.ones(6)}, "Invalid q_norm: expected norms of q and of k or neither, got one"),
    (rotate_, {"q_norm": torch.ones(6), "k_norm": torch.ones(3)}, r"Invalid shape of k_norm: expected \[6\]"),
    (rotate_, {"q_norm": torch.ones(6).half(), "k_norm": torch.ones(6)}, "Invalid dtype of q_norm: .* as q"),
    (rotate_, {"q_norm": WHOLE[0, 0], "k_norm": torch.ones(6), "q": WHOLE[:, :3], "k": WHOLE[:, 3:]},
     "Invalid q: expected memory of its own, got memory of q_norm"),
    (rotate_, {"eps": math.inf}, "Invalid eps: expected a finite number >= 0, got inf"),
    (rotate_, {"q": leaf(4, 3, 6)}, "Invalid q: .*got a leaf that requires a gradient"),
    (rotate_, {"k": torch.zeros(4, 1, 6).expand(4, 3, 6)}, "Invalid strides of k: expected an element of its own"),
    (rotate_, {"q": WHOLE[:, :3], "k": WHOLE[:, 2:]}, "Invalid k: expected memory of its own, got memory of q"),
    (rotate_, {"q": WHOLE[:, ::2], "k": WHOLE[:, 1::2]}, "Invalid k: expected memory of its own, got memory of q"),
    (rotate_, {"q": ONE[:, ::2], "k": ONE[:, 1::2], "cos": ANGLES, "sin": ANGLES},
     "Invalid k: expected memory of its own, got memory of q"),
    (silu_mul, {"gate_up": torch.zeros(4, 7)}, "Invalid shape of gate_up: expected 2 F values in the last dimension"),
    (silu_mul, {"gate_up": torch.zeros(4, 2, 6)}, r"Invalid shape of gate_up: expected \[T, 2 F\], got \[4, 2, 6\]"),
    (silu_mul, {"gate_up": torch.zeros(6, 4).T}, "Invalid strides of gate_up"),
]  # fmt: skip


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(
    ("call", "wrong", "message"), REFUSED, ids=[f"{c.__name__} {i}" for i, (c, *_) in enumerate(REFUSED)]
)
def test_bad_arguments_are_refused_by_name(call: Callable[..., object], wrong: dict, message: str) -> None:
    sound = {"add_norm": SOUND_NORM, "rotate_": SOUND_ROTATION, "silu_mul": {}}[call.__name__]
    with pytest.raises((ValueError, TypeError), match=message):
        call(**sound | wrong)


def test_heads_side_by_side_are_apart_in_every_layout() -> None:
    """Fused, behind each other, in one tensor of two halves, and K before Q."""
    cos, sin = torch.ones(4, 3), torch.zeros(4, 3)
    halves = torch.randn(8, 2, 6)
    for q, k in (
        (WHOLE[:, :3], WHOLE[:, 3:]),
        (WHOLE[:, 1:], WHOLE[:, :1]),
        (halves[:4], halves[4:]),
        (WHOLE[:, :2, :4], WHOLE[:, 2:, 2:]),
    ):
        half = q.size(2) // 2
        rotate_(q, k, cos[:, :half].contiguous(), sin[:, :half].contiguous())


def test_the_package_has_the_operations_of_the_reference() -> None:
    assert {"add_norm", "rotate_", "silu_mul"} <= {*lsp_kernels.__all__} & {*reference.__all__}

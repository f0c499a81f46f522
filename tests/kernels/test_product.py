"""`linear` on every CPU path: as exact as torch, the same bits in every batch, int8 weights, and a citizen of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import lsp_kernels
from lsp_kernels import linear, quantise, reference
from tests.block_cases import as_exact_as_torch, dtypes, gaps, seeds, values, wide
from tests.strategies import DTYPES
from tests.support import OPERATORS, examples, same

ROWS = (0, 1, 2, 4, 5, 17, 40, 300)
SIZES = (1, 2, 7, 16, 33, 64, 257, 1100)
OUTPUTS = (1, 3, 8, 16, 47, 100, 145)


@dataclass(frozen=True)
class LinearCase:
    """Rows, a weight, its scales if it is int8, and a bias."""

    x: Tensor
    weight: Tensor
    scales: Tensor | None
    bias: Tensor | None

    def check(self, backend: Any) -> None:
        out = backend.linear(self.x, self.weight, self.bias, scales=self.scales)
        weight = wide(self.weight) * (1.0 if self.scales is None else wide(self.scales)[:, None])
        exact = wide(self.x) @ weight.T + (0.0 if self.bias is None else wide(self.bias))
        widened = torch.from_numpy(weight).to(self.x.dtype)
        size = np.abs(wide(self.x)) @ np.abs(weight).T + 1e-30
        torchs = F.linear(self.x, widened, self.bias)
        if self.scales is not None:  # torch would round the weight first
            torchs = torch.from_numpy(exact).to(self.x.dtype)
        rounded = float(np.abs(exact).max(initial=0.0)) * torch.finfo(self.x.dtype).eps / 2
        sums = float(size.max(initial=0.0)) * 2.0**-24 * math.sqrt(self.x.size(-1) + 8)
        as_exact_as_torch(out, torchs, exact, slack=rounded + sums)


@st.composite
def cases(draw: st.DrawFn, rows: tuple[int, ...] = ROWS, sizes: tuple[int, ...] = SIZES) -> LinearCase:
    dtype, seed, size, outputs = draw(dtypes), draw(seeds), draw(st.sampled_from(sizes)), draw(st.sampled_from(OUTPUTS))
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    x = values((*batch, draw(st.sampled_from(rows)), size), dtype, seed, draw(st.sampled_from([0.1, 3.0])), draw(gaps))
    bias = values((outputs,), dtype, seed + 1) if draw(st.booleans()) else None
    if not draw(st.booleans()):
        return LinearCase(x, values((outputs, size), dtype, seed + 2, 1.0, draw(gaps)), None, bias)
    some = torch.Generator().manual_seed(seed)
    weight = torch.randint(-128, 128, (outputs, size + 5), dtype=torch.int8, generator=some)[:, :size]
    return LinearCase(x, weight, torch.rand(outputs, generator=some) / 64, bias)


@examples(120)
@given(case=cases())
def test_a_linear_is_as_exact_as_torch(backend, case: LinearCase) -> None:
    case.check(backend)


@pytest.mark.parametrize("quantised", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [96, 1500, 4096])
def test_a_row_is_the_same_bits_in_every_batch_and_with_any_number_of_threads(
    dtype, size: int, quantised: bool
) -> None:
    x, weight, bias = values((300, size), dtype, 0), values((100, size), dtype, 1), values((100,), dtype, 2)
    weight, scales = quantise(weight) if quantised else (weight, None)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        whole = linear(x, weight, bias, scales=scales)
        torch.set_num_threads(1)
        for rows in (slice(0, 1), slice(5, 9), slice(40, 57), slice(3, 100)):
            same(linear(x[rows], weight, bias, scales=scales), whole[rows])
    finally:
        torch.set_num_threads(threads)


def test_what_is_not_finite_stays_in_its_row(backend) -> None:
    x = torch.ones(5, 40)
    x[1, 3], x[3, 7] = math.nan, math.inf
    out = backend.linear(x, torch.ones(20, 40), torch.zeros(20))
    assert out.isnan().all(1).tolist() == [False, True, False, False, False]
    assert out[3].tolist() == [math.inf] * 20
    assert out[0].tolist() == [40.0] * 20


@given(seed=seeds, rows=st.integers(1, 9), size=st.integers(1, 60))
@examples(40)
def test_a_quantised_weight_is_wrong_by_at_most_half_a_step(seed: int, rows: int, size: int) -> None:
    weight = values((rows, size), torch.float32, seed)
    held, scales = quantise(weight)
    assert (held.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert held.abs().amax(1).tolist() == [127] * rows
    torch.testing.assert_close(scales, weight.abs().amax(1) / 127)
    assert ((held * scales[:, None] - weight).abs() <= 0.5001 * scales[:, None]).all()


def test_a_weight_of_any_layout_is_quantised_for_linear() -> None:
    weight = values((40, 6), torch.float32, 0).T
    held, scales = quantise(weight)
    assert held.is_contiguous()
    same(held, quantise(weight.contiguous())[0])
    assert linear(torch.ones(2, 40), held, scales=scales).shape == (2, 6)


def test_values_that_are_nearly_nothing_keep_their_sign() -> None:
    least = 2.0**-149
    held, _ = quantise(torch.tensor([[190 * least, -190 * least, 0.0], [least, -least, 0.0]]))
    assert held.tolist() == [[127, -127, 0], [0, 0, 0]]


def test_a_row_of_zeros_is_quantised_to_zeros() -> None:
    held, scales = quantise(torch.zeros(2, 3).half())
    assert (held.any().item(), scales.tolist()) == (False, [0.0, 0.0])
    assert linear(torch.ones(1, 3), held, scales=scales).tolist() == [[0.0, 0.0]]


def test_float64_is_served_by_the_reference() -> None:
    x, weight = values((3, 7), torch.float64, 0), values((5, 7), torch.float64, 1)
    torch.testing.assert_close(linear(x, weight), x @ weight.T, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("quantised", [False, True], ids=["float", "int8"])
def test_it_is_a_citizen_of_torch(quantised: bool) -> None:
    x, weight, bias = torch.randn(2, 5, 8, requires_grad=True), torch.randn(6, 8), torch.randn(6)
    weight, scales = quantise(weight) if quantised else (weight, None)
    torch.library.opcheck(OPERATORS.linear.default, (x, weight, bias, scales))
    assert not linear(x, weight, bias, scales=scales).requires_grad
    there = linear(x.to("meta"), weight.to("meta"), scales=None if scales is None else scales.to("meta"))
    assert (there.shape, there.dtype, there.stride()) == (torch.Size([2, 5, 6]), torch.float32, (30, 6, 1))
    compiled = torch.compile(lambda x: linear(x, weight, bias, scales=scales) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), linear(x, weight, bias, scales=scales) + 1)


SOUND = {"x": torch.zeros(4, 6), "weight": torch.zeros(3, 6), "bias": torch.zeros(3), "scales": None}
INT8 = {"weight": torch.zeros(3, 6).to(torch.int8), "scales": torch.ones(3)}
REFUSED: list[tuple[dict[str, object], str]] = [
    ({"x": None}, "Invalid x: expected a Tensor, got NoneType"),
    ({"x": torch.zeros(6)}, r"Invalid shape of x: expected \[T, d\] or \[B, T, d\], got \[6\]"),
    ({"x": torch.zeros(4, 0), "weight": torch.zeros(3, 0)}, "Invalid shape of x: expected at least one value"),
    ({"x": torch.zeros(4, 6).int()}, "Invalid dtype of x: expected float32, bfloat16, float16 or float64"),
    ({"x": torch.zeros(6, 4).T}, "Invalid strides of x: expected the last dimension to be contiguous"),
    ({"weight": torch.zeros(3, 5)}, r"Invalid shape of weight: expected \[F, 6\], got \[3, 5\]"),
    ({"weight": torch.zeros(0, 6)}, r"Invalid shape of weight: expected 1 to 2\^31 - 1 rows, got \[0, 6\]"),
    ({"weight": torch.zeros(3, 6).half()}, "Invalid dtype of weight: expected torch.float32 as x, or int8 with scales"),
    ({"weight": INT8["weight"]}, "Invalid dtype of weight: expected torch.float32 as x, or int8 with scales"),
    ({"scales": torch.ones(3)}, "Invalid dtype of weight: expected torch.float32 as x, or int8 with scales"),
    ({**INT8, "scales": torch.ones(2)}, r"Invalid shape of scales: expected \[3\], got \[2\]"),
    ({**INT8, "scales": torch.ones(3).half()}, "Invalid dtype of scales: expected float32, got torch.float16"),
    ({"bias": torch.zeros(4)}, r"Invalid shape of bias: expected \[3\], got \[4\]"),
    ({"bias": torch.zeros(3).half()}, "Invalid dtype of bias: expected float32, got torch.float16"),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("wrong", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_bad_arguments_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        linear(**SOUND | wrong)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(3), r"Invalid shape of weight: expected \[F, d\], both at least 1, got \[3\]"),
        (torch.zeros(3, 2).int(), "Invalid dtype of weight: expected float32"),
        (torch.tensor([[math.inf]]), "Invalid weight: expected finite values"),
        ([[1.0]], "Invalid weight: expected a Tensor, got list"),
    ],
)
def test_what_cannot_be_quantised_is_refused(weight: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        quantise(weight)


def test_the_package_has_the_operation_of_the_reference() -> None:
    assert "linear" in {*lsp_kernels.__all__} & {*reference.__all__}

"""Each seeded defect of the block kernels is noticed by the case named beside it; sound kernels pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lsp_kernels.triton import block
from tests.block_cases import GateCase, NormCase, RotationCase, values
from tests.triton.interpreter import checked
from tests.triton.mutants import NOTICED, Defect, damaged, tried
from tests.triton.served import Served


def added(served: Served) -> None:
    """More rows than a program has, of a size that no tile divides, with other values around them."""
    shape = (7, 3, 21)
    x, residual = (values(shape, torch.bfloat16, seed, 3.0, gap) for seed, gap in ((0, 2), (1, 5)))
    NormCase(x, residual, values((21,), torch.bfloat16, 2), 0.1).check(served)


def rounded(served: Served) -> None:
    """Sums from 1 to 2 that are not numbers of the dtype."""
    x, residual = values((3, 64), torch.bfloat16, 11).abs() / 64, values((3, 64), torch.bfloat16, 12).sigmoid() + 1
    NormCase(x, residual, torch.ones(64).bfloat16(), 1e-6).check(served)


def plain(served: Served) -> None:
    NormCase(values((5, 40), torch.float32, 3), None, values((40,), torch.float32, 4), 0.1).check(served)


def turned(served: Served) -> None:
    """Several tiles of heads of Q and of K, in one tensor with V."""
    fused = values((5, 29, 12), torch.float32, 5, gap=3)
    RotationCase(fused, (15, 7), values((5, 6), torch.float32, 6)).check(served)


def normed(served: Served) -> None:
    """The same of heads that are normalised first."""
    fused = values((5, 29, 12), torch.float32, 13, gap=3)
    weights = values((12,), torch.float32, 14), values((12,), torch.float32, 15)
    RotationCase(fused, (15, 7), values((5, 6), torch.float32, 16), weights, 0.1).check(served)


def aligned(served: Served) -> None:
    """The same with strides that are divisible by 16."""
    RotationCase(values((3, 9, 32), torch.half, 7), (5, 2), values((3, 16), torch.float32, 8)).check(served)
    GateCase(values((3, 160), torch.half, 9)).check(served)


def gated(served: Served) -> None:
    GateCase(values((3, 2 * 77), torch.float32, 10, 3.0, gap=4)).check(served)


CASES = {case.__name__: case for case in (added, rounded, plain, turned, normed, aligned, gated)}
DEFECTS = [
    Defect("rows past the last", "block", "m_r = o_r < rows - first", "m_r = o_r < rows - first + 1", ("plain",)),
    Defect("values past a row", "block", "m_d = o_d < D", "m_d = o_d <= D", ("added", "plain")),
    Defect("heads of a row mixed", "block", "(i % inner).to(tl.int64) * s_inner", "(i % inner).to(tl.int64) * 0",
           ("added",)),
    Defect("sum not rounded", "block", "x = (before.to(tl.float32) + x.to(tl.float32)).to(x.dtype)",
           "x = before.to(tl.float32) + x.to(tl.float32)", ("rounded",)),
    Defect("sum not stored", "block", "tl.store(p_r, x, mask=m)", "pass", ("added",)),
    Defect("sum not added", "block", "(before.to(tl.float32) + x.to(tl.float32))", "(x.to(tl.float32))", ("added",)),
    Defect("eps forgotten", "block", "(x * x, 1) / D + eps)", "(x * x, 1) / D)", ("added", "plain")),
    Defect("mean over the tile", "block", "tl.sum(x * x, 1) / D", "tl.sum(x * x, 1) / BLOCK", ("added", "plain")),
    Defect("weight forgotten", "block", "* factor[:, None] * weight[None, :]", "* factor[:, None]", ("plain",)),
    Defect("heads past the last", "block", "m = (o_h < heads)[:, None]", "m = (o_h <= heads)[:, None]", ("turned",)),
    Defect("pairs past the half", "block", "m_j = o_j < D // 2", "m_j = o_j <= D // 2", ("turned",)),
    Defect("turned the other way", "block", "a * cos - b * sin", "a * cos + b * sin", ("turned",)),
    Defect("right half from the turned left", "block", "b * cos + a * sin", "b * cos + (a * cos - b * sin) * sin",
           ("turned",)),
    Defect("angles of the first token", "block", "p = i_t * (D // 2) + o_j", "p = o_j", ("turned",)),
    Defect("keys by the stride of queries", "block", "n_k, s_kh, cos", "n_q, s_qh, cos", ("turned",)),
    Defect("tiles of keys begin late", "block", "(i - tiles_q) * HEADS", "i * HEADS", ("turned",)),
    Defect("unit of strides forgotten", "block", "s_h * STEP)[:, None]", "s_h)[:, None]", ("aligned",)),
    Defect("norm of the left half", "block", "tl.sum(a * a + b * b, 1)", "tl.sum(a * a, 1)", ("normed",)),
    Defect("mean over half a head", "block", "b * b, 1) / D + eps", "b * b, 1) / (D // 2) + eps", ("normed",)),
    Defect("eps of heads forgotten", "block", "b * b, 1) / D + eps", "b * b, 1) / D", ("normed",)),
    Defect("weight of the left half for the right", "block", "weight_ptr + D // 2 + o_j", "weight_ptr + o_j",
           ("normed",)),
    Defect("weight past the half", "block", "weight_ptr + D // 2 + o_j, mask=m_j", "weight_ptr + D + o_j, mask=m_j",
           ("normed",)),
    Defect("keys by the weight of queries", "block", "p_k, k_norm_ptr", "p_k, q_norm_ptr", ("normed",)),
    Defect("left half not normalised", "block", "a *= factor *", "a *=", ("normed",)),
    Defect("gates past the last", "block", "m = o < size", "m = o <= size", ("gated",)),
    Defect("gate and product exchanged", "block", "p_gate + size + o, mask", "p_gate + o, mask", ("gated",)),
    Defect("sign of the exponent", "block", "tl.exp(-gate)", "tl.exp(gate)", ("gated",)),
    Defect("unit of the size forgotten", "block", "size = size * STEP", "size = size * 1", ("aligned",)),
]  # fmt: skip


def run(case: str, served: Served) -> None:
    with checked(1, overflow=True):
        CASES[case](served)


@pytest.mark.parametrize("case", CASES)
def test_sound_kernels_pass(case: str) -> None:
    run(case, Served(block))


@pytest.mark.parametrize("defect", tried(DEFECTS))
def test_defect_is_noticed(defect: Defect, tmp_path: Path) -> None:
    module = damaged(defect, tmp_path, "block")
    for case in defect.cases:
        with pytest.raises(NOTICED):
            run(case, Served(module))

"""The block kernels, interpreted: as exact as torch, within bounds, without races, every value read once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels.triton import block, configs
from tests.block_cases import GateCase, NormCase, RotationCase, gate_cases, norm_cases, rotation_cases, values
from tests.support import examples, in_sparse_file
from tests.triton.interpreter import checked
from tests.triton.served import Served

seeds = st.integers(0, 1000)


@examples(40)
@given(case=norm_cases(), seed=seeds)
def test_a_norm_is_as_exact_as_torch_and_the_sum_is_right_to_the_bit(case: NormCase, seed: int) -> None:
    with checked(seed, overflow=True):
        case.check(Served(block))


@examples(30)
@given(case=rotation_cases(), seed=seeds)
def test_a_rotation_is_as_exact_as_torch_and_values_stay_as_they_were(case: RotationCase, seed: int) -> None:
    with checked(seed, overflow=True):
        case.check(Served(block))


@examples(20)
@given(case=gate_cases(), seed=seeds)
def test_a_gated_product_is_as_exact_as_torch(case: GateCase, seed: int) -> None:
    with checked(seed, overflow=True):
        case.check(Served(block))


def test_every_value_is_read_once() -> None:
    x, residual, weight = values((9, 40), torch.half, 0), values((9, 40), torch.half, 1), values((40,), torch.half, 2)
    with checked() as launches:
        Served(block).add_norm(x, weight, eps=1e-6, residual=residual)
        Served(block).silu_mul(x)
    for launch, tensor in ((0, x), (0, residual), (1, x)):
        assert (torch.from_numpy(launches[launch].reads(tensor)) == 1).all()
    assert len(launches) == 2


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (0, 2, 8)], ids=str)
def test_without_rows_nothing_is_launched(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    with checked() as launches:
        assert Served(block).add_norm(x, torch.ones(8), eps=1e-6, residual=x.clone()).shape == shape
        if x.dim() == 3:
            Served(block).rotate_(x, x.clone(), *torch.zeros(2, shape[0], 4))
        Served(block).silu_mul(torch.zeros(0, 8))
    assert launches == []


def test_elements_on_both_sides_of_two_to_the_31(tmp_path: Path) -> None:
    far = in_sparse_file(tmp_path / "far", (3, 32), (2**30 + 16, 1))
    near = values((3, 32), torch.half, 0)
    with checked(races=False, overflow=True):  # the race checker would need memory for every byte in between
        NormCase(near, far.copy_(values((3, 32), torch.half, 1)), values((32,), torch.half, 2), 1e-6).check(
            Served(block)
        )
        GateCase(far.copy_(near)).check(Served(block))
        RotationCase(far.copy_(near).view(3, 4, 8), (2, 1), values((3, 4), torch.float32, 3)).check(Served(block))


@pytest.mark.parametrize("size", [1, 3, 64, 100, 3584, 4096, 5000, 32768])
@pytest.mark.parametrize("dtype", configs.device.DTYPES, ids=str)
def test_a_program_has_whole_rows_and_a_thread_at_most_64_values(size: int, dtype: torch.dtype) -> None:
    for architecture, table in configs.block.BLOCK.items():
        options = table[dtype].norm(size) if architecture != "sm_80" else configs.block.BlockConfig().norm(size)
        threads = options["num_warps"] * (64 if architecture in configs.device.CDNA else 32)
        assert options["BLOCK"] >= size
        assert options["ROWS"] * options["BLOCK"] <= 64 * threads

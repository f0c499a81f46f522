"""Triton's own launch path on a virtual GPU: specialisation, limits, checks, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton
from triton.runtime import driver as triton_driver

from tests.virtual_gpu import AccessError, RaceError, virtual_gpu
from tests.virtual_gpu.driver import VirtualDriver
from tests.virtual_gpu_tests.kernels import scale_kernel, sum_kernel, transpose_kernel


@pytest.fixture
def gpu() -> Iterator[VirtualDriver]:
    with virtual_gpu("sm_90") as driver:
        yield driver


def scale(x: torch.Tensor, bias: torch.Tensor | None = None, n: int | None = None, factor: float = 2.0) -> torch.Tensor:
    out = torch.full((len(x), x.size(1)), torch.nan, dtype=x.dtype, device=x.device)
    scale_kernel[(len(x),)](x, out, bias, n or x.size(1), x.stride(0), factor, BLOCK=128, num_warps=1)
    return out


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_a_kernel_is_compiled_for_the_architecture_and_executed(architecture: str) -> None:
    x, bias = torch.randn(3, 100), torch.randn(100)
    with virtual_gpu(architecture) as gpu:
        assert torch.equal(scale(x, bias), 2 * x + bias)
    (launched,) = gpu.launches
    assert f".target {architecture}" in launched.ptx
    assert (launched.name, launched.grid, launched.options.num_warps) == ("scale_kernel", (3, 1, 1), 1)
    assert (launched.reads(x) == 1).all()
    assert (launched.reads(bias) == 3).all()
    assert launched.bytes_read(x) == x.nbytes


def test_arguments_are_specialised_as_on_a_gpu(gpu: VirtualDriver) -> None:
    wide = torch.randn(2, 65)
    scale(wide[:, 1:])
    unaligned = gpu.launches[-1]
    assert unaligned.divisible == {"out_ptr", "n"}  # 4 bytes off, and rows of 65
    assert unaligned.constants == {"bias_ptr": None, "BLOCK": 128}
    scale(torch.randn(1, 1))
    one = gpu.launches[-1]
    assert one.divisible == {"x_ptr", "out_ptr"}
    assert one.constants == {"bias_ptr": None, "n": 1, "stride": 1, "BLOCK": 128}
    assert one.signature["n"] == "constexpr"
    assert one.signature["factor"] == "fp32"


def test_a_launch_with_the_wrong_length_is_out_of_bounds(gpu: VirtualDriver) -> None:
    with pytest.raises(AccessError, match="16 bytes past the end of x_ptr"):
        scale(torch.randn(1, 100), n=104)


@pytest.mark.parametrize("barrier", [True, False])
def test_a_missing_barrier_is_a_race(gpu: VirtualDriver, barrier: bool) -> None:
    x = torch.randn(4, 100)
    partial, ticket, out = torch.empty(4, 100), torch.zeros(1, dtype=torch.int32), torch.empty(100)

    def run() -> None:
        sum_kernel[(4,)](x, partial, ticket, out, *x.shape, BLOCK=128, BARRIER=barrier, num_warps=4)

    if barrier:
        run()
        torch.testing.assert_close(out, x.sum(0))
    else:
        with pytest.raises(RaceError):
            run()


def test_races_can_be_allowed() -> None:
    x, ticket, out = torch.randn(4, 100), torch.zeros(1, dtype=torch.int32), torch.empty(100)
    with virtual_gpu("sm_90", races=False):
        sum_kernel[(4,)](x, torch.empty(4, 100), ticket, out, *x.shape, BLOCK=128, BARRIER=False, num_warps=4)
    torch.testing.assert_close(out, x.sum(0))


def test_the_order_of_programs_differs_from_launch_to_launch(gpu: VirtualDriver) -> None:
    x = torch.randn(6, 16)
    for _ in range(3):
        scale(x)
    orders = [[access.cta for access in run.run.memory.segment_of(x)[0].loads] for run in gpu.launches]
    rows = [[int(access.offsets[0]) for access in run.run.memory.segment_of(x)[0].loads] for run in gpu.launches]
    assert all(sorted(order) == order for order in orders)  # numbered in the order in which they run
    assert len({tuple(row) for row in rows}) > 1


def test_too_much_shared_memory_is_refused_as_triton_refuses_it() -> None:
    x = torch.randint(100, (256, 256), dtype=torch.int16)  # 128 KiB
    out = torch.empty_like(x)
    with virtual_gpu("sm_120"), pytest.raises(triton.runtime.errors.OutOfResources, match="shared memory"):
        transpose_kernel[(1,)](x, out, N=256, num_warps=16)
    with virtual_gpu("sm_90"):
        transpose_kernel[(1,)](x, out, N=256, num_warps=16)
    assert torch.equal(out, x.T)


@pytest.mark.parametrize("number", [2**31, 2**40, -(2**35)])
def test_integers_beyond_32_bits_become_64(gpu: VirtualDriver, number: int) -> None:
    x, out = torch.randn(1, 8), torch.empty(8)
    scale_kernel[(1,)](x, out, None, 8, number, 1.0, BLOCK=128, num_warps=1)
    assert gpu.launches[-1].signature["stride"] == "i64"
    assert torch.equal(out, x[0])


def test_an_integer_that_the_cuda_launcher_would_wrap_is_refused(gpu: VirtualDriver) -> None:
    x = torch.randn(1, 8)
    compiled = scale_kernel.warmup(x, x, None, 8, 9, 1.0, BLOCK=128, num_warps=1, grid=(1,))
    with pytest.raises(OverflowError, match="Invalid stride: expected a number that fits i32"):
        compiled[(1, 1, 1)](x, x, None, 8, 2**31, 1.0, 128)


def test_an_empty_grid_launches_nothing(gpu: VirtualDriver) -> None:
    x = torch.randn(1, 8)
    scale_kernel[(0,)](x, x, None, 8, 8, 1.0, BLOCK=128, num_warps=1)
    assert not gpu.launches


def test_a_grid_that_no_gpu_takes_is_refused(gpu: VirtualDriver) -> None:
    x = torch.randn(1, 8)
    with pytest.raises(ValueError, match="Invalid grid"):
        scale_kernel[(1, 65536)](x, x, None, 8, 8, 1.0, BLOCK=128, num_warps=1)


def test_only_the_last_launches_are_kept() -> None:
    with virtual_gpu("sm_90", keep=2) as gpu:
        for rows in (1, 2, 3):
            scale(torch.randn(rows, 8))
    assert [launched.grid[0] for launched in gpu.launches] == [2, 3]
    assert gpu.executed == 3


def test_everything_is_as_before_afterwards() -> None:
    functions = (torch.cuda.is_available, torch.cuda.Stream, torch.cuda.device, torch.compile)
    before = triton_driver._active
    with virtual_gpu("sm_80") as outer:
        with virtual_gpu("sm_90") as inner, pytest.raises(AccessError):
            scale(torch.randn(1, 8), n=9)
        assert inner.executed == 1
        assert triton_driver.active is outer
    assert triton_driver._active is before
    assert functions == (torch.cuda.is_available, torch.cuda.Stream, torch.cuda.device, torch.compile)
    assert torch.zeros(1).device.type == "cpu"


def test_an_unknown_architecture_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"Invalid architecture: expected one of sm_80, .* got 'gfx942'"),
        virtual_gpu("gfx942"),
    ):
        pass

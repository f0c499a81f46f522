"""The interpreter harness itself: what it must accept, what it must catch, what it corrects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.triton.interpreter import AccessError, RaceError, checked
from tests.virtual_gpu_tests.sample import CONSTEXPRS, RowMaxLaunch, row_max_kernel


def sample(seed: int | None = 0, **constexprs: object) -> RowMaxLaunch:
    case = RowMaxLaunch.make(seed=seed or 0)
    with checked(seed=seed) as launches:
        row_max_kernel[case.grid](*case.args, **(CONSTEXPRS | constexprs))
    case.check()
    assert (launches[0].reads(case.x) == 1).all()
    assert launches[0].bytes_read(case.x) == case.x.nbytes
    return case


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_last_program_done_is_accepted(seed):
    sample(seed)


@pytest.mark.parametrize("semantics", ["relaxed", "acquire", "release"])
def test_weaker_ticket_is_caught(semantics):
    with pytest.raises(RaceError, match="partial_ptr of a word written by another program"):
        sample(SEM=semantics)


@triton.jit
def order_kernel(out_ptr, counter_ptr):
    tl.store(out_ptr + tl.atomic_add(counter_ptr, 1), tl.program_id(0) * 10 + tl.program_id(1))


def arrivals(seed: int | None) -> list[int]:
    out, counter = torch.full((6,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with checked(seed=seed):
        order_kernel[(3, 2)](out, counter)
    return out.tolist()


def test_programs_run_in_the_order_of_the_seed():
    assert arrivals(None) == [0, 1, 10, 11, 20, 21]
    orders = {tuple(arrivals(seed)) for seed in range(4)}
    assert len(orders) > 1
    assert {tuple(sorted(o)) for o in orders} == {(0, 1, 10, 11, 20, 21)}
    assert arrivals(3) == arrivals(3)


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, shift, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + o + shift, tl.load(x_ptr + o, mask=o < n), mask=o < n)


@pytest.mark.parametrize(
    ("n", "shift", "reason"),
    [
        pytest.param(100, 0, None, id="within"),
        pytest.param(101, 0, "load of 4 bytes, 4 bytes past the end of x_ptr", id="load"),
        pytest.param(100, 1, "store of 4 bytes, 4 bytes past the end of out_ptr", id="store"),
        pytest.param(100, -1, "store of 4 bytes, 4 bytes before out_ptr", id="before"),
    ],
)
def test_bounds(n, shift, reason):
    base = torch.arange(300.0)
    x, out = base[100:200], torch.zeros(100)  # the view's own extents count, not its storage's
    with checked():
        if reason is None:
            copy_kernel[(2,)](x, out, n, shift, BLOCK=64)
            assert torch.equal(out, x)
        else:
            with pytest.raises(AccessError, match=reason):
                copy_kernel[(2,)](x, out, n, shift, BLOCK=64)


@triton.jit
def atomic_kernel(out_ptr, at):
    tl.atomic_add(out_ptr + at, 1)


def test_bounds_of_atomics():
    out = torch.zeros(4, dtype=torch.int32)
    with checked():
        atomic_kernel[(5,)](out, 3)
        with pytest.raises(AccessError, match="atomic"):
            atomic_kernel[(1,)](out, 4)
    assert out.tolist() == [0, 0, 0, 5]


@triton.jit
def shared_word_kernel(x_ptr, READ: tl.constexpr, WRITE: tl.constexpr):
    if READ:
        tl.store(x_ptr + 1 + tl.program_id(0), tl.load(x_ptr))
    if WRITE & (tl.program_id(0) == 1):
        tl.store(x_ptr, 1.0)
    if WRITE & (tl.program_id(0) == 2):
        tl.store(x_ptr, 2.0)


@pytest.mark.parametrize(
    ("read", "grid", "reason"),
    [
        pytest.param(False, 3, "written by another program", id="two writers"),
        pytest.param(True, 2, "(read|written) by another program", id="reader and writer"),
    ],
)
def test_races(read, grid, reason):
    for seed in range(3):
        with checked(seed=seed), pytest.raises(RaceError, match=reason):
            shared_word_kernel[(grid,)](torch.zeros(4), READ=read, WRITE=True)
    with checked(races=False):
        shared_word_kernel[(grid,)](torch.zeros(4), READ=read, WRITE=True)
    with checked():
        shared_word_kernel[(grid,)](torch.zeros(4), READ=True, WRITE=False)


@triton.jit
def scatter_kernel(out_ptr, SAME: tl.constexpr):
    o = tl.arange(0, 8)
    tl.store(out_ptr + o // 2, o // 2 if SAME else o)


def test_one_store_with_two_values():
    out = torch.zeros(4, dtype=torch.int32)
    with checked():
        scatter_kernel[(1,)](out, SAME=True)
        with pytest.raises(RaceError, match="different values"):
            scatter_kernel[(1,)](out, SAME=False)


@triton.jit
def bf16_kernel(a_ptr, b_ptr, sum_ptr, less_ptr, wide_ptr, N: tl.constexpr):
    o = tl.arange(0, N)
    a, b = tl.load(a_ptr + o), tl.load(b_ptr + o)
    tl.store(sum_ptr + o, a + b)
    tl.store(less_ptr + o, (a < b).to(tl.int32))
    tl.store(wide_ptr + o, (a.to(tl.float32) * 1.001).to(tl.bfloat16))


def test_bfloat16_arithmetic():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(128, generator=generator).bfloat16() for _ in range(2))
    total, scaled = torch.zeros_like(a), torch.zeros_like(a)
    less = torch.zeros(128, dtype=torch.int32)
    with checked():
        bf16_kernel[(1,)](a, b, total, less, scaled, N=128)
    assert torch.equal(total, a + b)
    assert torch.equal(less, (a < b).int())
    assert torch.equal(scaled, (a.float() * 1.001).bfloat16())


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    o = tl.arange(0, N)
    at = o[:, None] * N + o[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_dot(dtype):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(32, 32, generator=generator).to(dtype) for _ in range(2))
    out = torch.zeros(32, 32)
    with checked():
        dot_kernel[(1,)](a, b, out, N=32)
    torch.testing.assert_close(out, a.float() @ b.float(), atol=1e-5, rtol=1e-5)


@triton.jit
def _larger(v1, i1, v2, i2):
    first = (v1 > v2) | ((v1 == v2) & (i1 < i2))
    return tl.where(first, v1, v2), tl.where(first, i1, i2)


@triton.jit
def _affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def fold_kernel(x_ptr, max_ptr, at_ptr, scan_ptr, back_ptr, R: tl.constexpr, N: tl.constexpr):
    o_r, o_n = tl.arange(0, R), tl.arange(0, N)
    at = o_r[:, None] * N + o_n[None, :]
    x = tl.load(x_ptr + at)
    index = tl.broadcast_to(o_n[None, :], (R, N))
    best, where = tl.reduce((x, index), 1, _larger)
    tl.store(max_ptr + o_r, best)
    tl.store(at_ptr + o_r, where)
    two = tl.full((R, N), 0.5, tl.float32)
    _, forward = tl.associative_scan((two, x), 1, _affine)
    _, backward = tl.associative_scan((two, x), 1, _affine, reverse=True)
    tl.store(scan_ptr + at, forward)
    tl.store(back_ptr + at, backward)


def test_generic_reductions_and_scans():
    """The scan y[i] = y[i - 1] / 2 + x[i] is associative but not commutative."""
    rows, n = 4, 64
    x = torch.randint(0, 9, (rows, n), generator=torch.Generator().manual_seed(2)).float()
    best, at = torch.zeros(rows), torch.zeros(rows, dtype=torch.int32)
    forward, backward = torch.zeros(rows, n), torch.zeros(rows, n)
    with checked():
        fold_kernel[(1,)](x, best, at, forward, backward, R=rows, N=n)
    assert torch.equal(best, x.max(1).values)
    assert at.tolist() == [row.tolist().index(row.max().item()) for row in x]
    for scan, source in ((forward, x), (backward.flip(1), x.flip(1))):
        expected = torch.zeros(rows)
        for i in range(n):
            expected = expected * 0.5 + source[:, i]
            torch.testing.assert_close(scan[:, i], expected, atol=1e-5, rtol=1e-5)


@triton.jit
def nan_kernel(x_ptr, out_ptr, N: tl.constexpr, ARG: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    if ARG:
        tl.store(out_ptr, tl.argmax(x, 0).to(tl.float32))
    else:
        tl.store(out_ptr, tl.max(x, 0))
        tl.store(out_ptr + 1, tl.max(tl.maximum(x, 0.0), 0))
        both = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out_ptr + 2, tl.sum((both != both).to(tl.int32), 0).to(tl.float32))


def test_nan_in_minimum_and_maximum():
    x = torch.tensor([1.0, float("nan"), -3.0, float("nan")])
    out = torch.zeros(3)
    with checked():
        nan_kernel[(1,)](x, out, N=4, ARG=False)
        assert out.tolist() == [1.0, 1.0, 2.0]
        with pytest.raises(ValueError, match="argmax"):
            nan_kernel[(1,)](x, out, N=4, ARG=True)


@triton.jit
def invert_kernel(x_ptr, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(x_ptr + o, ~tl.load(x_ptr + o))


def test_bitwise_not_of_unsigned():
    x = torch.arange(8, dtype=torch.int32).view(torch.uint32)
    with checked():
        invert_kernel[(1,)](x, N=8)
    np.testing.assert_array_equal(x.numpy(), ~np.arange(8, dtype=np.uint32))


@triton.jit
def offset_kernel(out_ptr, stride):
    tl.store(out_ptr, (tl.program_id(0) + 3) * stride)


def test_integer_overflow_is_found_on_request():
    out = torch.zeros(1, dtype=torch.int32)
    with checked():
        offset_kernel[(1,)](out, 2**30)
    assert out.item() == 3 * 2**30 - 2**32
    with checked(overflow=True):
        offset_kernel[(1,)](out, 2**29)
        with pytest.raises(AssertionError, match="int32 overflow detected"):
            offset_kernel[(1,)](out, 2**30)


def test_everything_is_restored():
    before = dict(vars(triton.runtime.interpreter.InterpreterBuilder))
    with checked():
        with pytest.raises(RuntimeError, match="does not nest"), checked():
            pass
        assert dict(vars(triton.runtime.interpreter.InterpreterBuilder)) != before
    assert dict(vars(triton.runtime.interpreter.InterpreterBuilder)) == before
    assert not hasattr(tl.tensor, "__index__")
    out = torch.zeros(100)
    copy_kernel[(2,)](torch.ones(100), out, 100, 0, BLOCK=64)
    assert out.sum() == 100

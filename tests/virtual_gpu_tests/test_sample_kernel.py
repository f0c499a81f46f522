"""A kernel compiled by Triton, executed: results, traffic, order of CTAs, and removed barriers."""

from __future__ import annotations

import pytest
import torch

from tests.virtual_gpu import AccessError, RaceError, launch
from tests.virtual_gpu.mutate import with_ticket, without_each_barrier
from tests.virtual_gpu_tests.sample import ALIGNED, RowMaxLaunch, compiled

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("target", TARGETS)
def test_sample_kernel(target, aligned):
    kernel = compiled(target, ALIGNED if aligned else ())
    for seed in range(3):
        case = RowMaxLaunch.make(n=1504 if aligned else 1501, seed=seed)
        done = launch(kernel, case.grid, case.args, seed=seed)
        case.check()
        assert (done.reads(case.x) == 1).all()
        assert done.bytes_read(case.x) == case.x.nbytes
        assert (done.writes(case.partial) == 1).all()
        assert (done.writes(case.out) == 1).all()


def test_the_seed_decides_who_comes_last():
    """The order of the stores to the partial results is the order of the CTAs."""
    kernel, orders = compiled("sm_80"), set()
    for seed in range(4):
        case = RowMaxLaunch.make(rows=1, n=1504)
        done = launch(kernel, case.grid, case.args, seed=seed)
        segment, _ = done.memory.segment_of(case.partial)
        orders.add(tuple(int(access.offsets[0]) for access in segment.stores))
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(next(iter(orders))))}


@pytest.mark.parametrize("target", TARGETS)
def test_each_removed_barrier_is_caught(target):
    kernel = compiled(target)
    mutants = list(without_each_barrier(kernel.text))
    assert len(mutants) >= 4
    for mutant in mutants:
        case = RowMaxLaunch.make(n=1504)
        with pytest.raises(RaceError):
            launch(mutant, case.grid, case.args, shared=kernel.shared, seed=1)


@pytest.mark.parametrize("semantics", ["relaxed", "acquire", "release"])
def test_weaker_ticket_is_caught(semantics):
    kernel, case = compiled("sm_90", SEM=semantics), RowMaxLaunch.make(n=1504)
    with pytest.raises(RaceError, match="another program"):
        launch(kernel, case.grid, case.args, seed=0)
    text = with_ticket(compiled("sm_90").text, semantics)
    with pytest.raises(RaceError, match="another program"):
        launch(text, case.grid, case.args, shared=kernel.shared, seed=0)


def test_dirty_ticket_gives_no_result_but_ends():
    kernel, case = compiled("sm_90"), RowMaxLaunch.make(n=1504)
    case.ticket.fill_(100)
    launch(kernel, case.grid, case.args, seed=0)
    assert case.out.isnan().all()


def test_wrong_length_is_out_of_bounds():
    kernel, case = compiled("sm_90"), RowMaxLaunch.make(n=1504)
    args = case.args
    args[4] += 16
    args[6] += 16
    with pytest.raises(AccessError, match="past the end of argument 0"):
        launch(kernel, case.grid, args)


def test_more_programs_than_one_grid_row():
    kernel, case = compiled("sm_90"), RowMaxLaunch.make(rows=17, n=1504, splits=2)
    launch(kernel, case.grid, case.args, seed=5)
    case.check()
    assert torch.isfinite(case.out).all()

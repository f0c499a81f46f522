"""The head kernels, interpreted: in any order of programs, within bounds, without races, and as exact as promised."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels import PrefixRule, Vocabulary, reference
from lsp_kernels.triton import configs, head
from tests.head_cases import ByIdentity, check_products, factors
from tests.strategies import DTYPES, CommitCase, cases
from tests.support import (
    check_commit,
    check_noisy_commit,
    check_noisy_stats,
    check_stats,
    examples,
    in_sparse_file,
    ints,
    same,
)
from tests.triton.interpreter import checked
from tests.triton.served import Served

small = cases(sizes=(1, 3, 17, 64, 130), most=14, finite=True)
programs = st.sampled_from([1, 2, 5, 9])
seeds = st.integers(0, 1000)


@examples(20)
@given(case=small, programs=programs, seed=seeds)
def test_commit_agrees_with_the_enumeration_of_thresholds(case: CommitCase, programs: int, seed: int) -> None:
    with checked(seed, overflow=True):
        check_commit(ByIdentity(Served(head, programs)), case)


@examples(10)
@given(case=small, programs=programs, seed=seeds, entropy=st.booleans())
def test_stats_agree_with_the_definition(case: CommitCase, programs: int, seed: int, entropy: bool) -> None:
    with checked(seed, overflow=True):
        check_stats(ByIdentity(Served(head, programs)), case, entropy=entropy)


@examples(4)
@given(case=small, programs=programs, seed=seeds, id_offset=st.sampled_from([0, 3, 100_000]))
def test_noise_is_that_of_the_definition(case: CommitCase, programs: int, seed: int, id_offset: int) -> None:
    noise, draws = case.draws(seed)
    served = ByIdentity(Served(head, programs))
    with checked(seed):
        check_noisy_stats(served, case, noise, draws, id_offset)
        check_noisy_commit(served, case, noise, draws)


@examples(12)
@given(
    rows=st.sampled_from([1, 2, 15, 16, 17, 33, 50]),
    size=st.sampled_from([1, 7, 16, 31, 48, 80]),
    ids=st.sampled_from([2, 3, 15, 17, 100, 130]),
    dtype=st.sampled_from(DTYPES),
    with_bias=st.booleans(),
    programs=programs,
)
def test_products_are_exact_but_for_the_stated_error(
    rows: int, size: int, ids: int, dtype: torch.dtype, with_bias: bool, programs: int
) -> None:
    hidden, weight = factors(rows, size, ids, dtype, seed=rows)
    bias = factors(1, ids, 1, dtype, seed=1)[0][0] if with_bias else None
    with checked(rows, overflow=True):
        check_products(Served(head, programs).linear_token_stats(hidden, weight, bias=bias), hidden, weight, bias)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite(value: float) -> None:
    hidden, weight = factors(4, 8, 50, torch.float32)
    hidden = hidden.abs() + 0.1
    weight[17, 3] = value
    vocabulary = Vocabulary(50, suppress=[17])
    for tables in (None, vocabulary):
        with checked():
            stats = Served(head, 3).linear_token_stats(hidden, weight, vocabulary=tables)
        expected = reference.token_stats(hidden @ weight.T, vocabulary=tables)
        same(stats.tokens, expected.tokens)
        torch.testing.assert_close(stats[:4], expected[:4], equal_nan=True)


def test_results_do_not_depend_on_the_programs_or_their_order() -> None:
    hidden, weight = factors(20, 32, 150, torch.bfloat16)
    found = []
    for seed, count in enumerate((3, 3, 7, 20)):
        with checked(seed):
            found.append(Served(head, count).linear_token_stats(hidden, weight))
    for other in found[1:]:
        for got, expected in zip(other[:3], found[0][:3], strict=True):
            same(got, expected)
    same(found[1].log_odds, found[0].log_odds)
    torch.testing.assert_close(found[2].log_odds, found[0].log_odds, rtol=0, atol=1e-5)


def test_only_scored_rows_are_read_and_the_weights_once_per_tile_of_them() -> None:
    hidden, weight = factors(48, 32, 100, torch.float32)
    hidden = hidden.view(3, 16, 32)
    rule, starts, counts = PrefixRule(0.25, 0.5, snap=False), (3, 0, 6), (10, 16, 7)
    scored = torch.zeros(3, 16, dtype=torch.bool)
    for b, (start, count) in enumerate(zip(starts, counts, strict=True)):
        scored[b, start : start + rule.scored_rows(count)] = True
    hidden[~scored] = math.nan
    with checked() as launches:
        commit = Served(head, 7).linear_commit_prefix(hidden, weight, None, ints(*counts), ints(*starts), rule=rule)
    assert (commit.lengths > 0).all()
    assert torch.equal(commit.tokens >= 0, scored)
    assert 16 < scored.sum() <= 32  # two tiles of scored rows, though there are three of all rows
    assert (torch.from_numpy(launches[-1].reads(weight)) == 2).all()
    assert (torch.from_numpy(launches[-1].reads(hidden))[~scored] == 0).all()


def room_for(partials: int, tickets: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(partials, dtype=torch.int32), torch.zeros(tickets, dtype=torch.int32)


def test_a_workspace_resets_itself_and_survives_a_changed_batch() -> None:
    room = room_for(8192, 24)
    rule, vocabulary = PrefixRule(), Vocabulary(70, delimiters=range(0, 70, 3))
    for batch, length in [(3, 5), (1, 40), (3, 5)]:
        hidden, weight = factors(batch * length, 16, 70, torch.float32, seed=length)
        hidden, served = hidden.view(batch, length, 16), Served(head, 6)
        expected = reference.linear_commit_prefix(hidden, weight, rule=rule, vocabulary=vocabulary)
        with checked(seed=batch):
            got = served.linear_commit_prefix(hidden, weight, rule=rule, vocabulary=vocabulary, workspace=room)
        for one, other in zip(got[:3], expected[:3], strict=True):
            same(one, other)
        assert not room[1].any()
        with checked(seed=batch):
            stats = served.linear_token_stats(hidden, weight, workspace=room)
        same(stats.tokens, reference.linear_token_stats(hidden, weight).tokens)
        assert not room[1].any()


def test_a_workspace_that_is_too_small_is_refused() -> None:
    hidden, weight = factors(20, 16, 70, torch.float32)
    with pytest.raises(ValueError, match="Invalid workspace: expected room for 256 partials and 2 tickets"):
        Served(head, 4).linear_token_stats(hidden, weight, workspace=room_for(3, 9))
    with pytest.raises(ValueError, match="Invalid workspace: expected room for 192 partials and 3 tickets"):
        Served(head, 4).linear_commit_prefix(
            hidden, weight, rule=PrefixRule(beta=1.0, snap=False), workspace=room_for(3, 9)
        )


@examples(8)
@given(borders=st.lists(st.integers(-9, 60), min_size=4, max_size=8), programs=programs, seed=seeds)
def test_no_border_leads_out_of_bounds_or_leaves_a_ticket(borders: list[int], programs: int, seed: int) -> None:
    """Borders that decrease give nothing, as in the commit of logits."""
    hidden, weight = factors(40, 16, 50, torch.float32)
    room = room_for(3 * 64 * 16, 16)
    with checked(seed, overflow=True):
        commit = Served(head, programs).linear_commit_prefix(
            hidden, weight, ints(*borders), rule=PrefixRule(snap=False), workspace=room
        )
    assert not room[1].any()
    if sorted(borders) != borders:
        assert not commit.lengths.any()
        assert (commit.tokens == -1).all()


@examples(4)
@given(starts=st.tuples(*[st.integers(-9, 60)] * 3), counts=st.tuples(*[st.integers(-9, 60)] * 3), seed=seeds)
def test_no_start_or_count_leads_out_of_bounds(starts: tuple[int, ...], counts: tuple[int, ...], seed: int) -> None:
    hidden, weight = factors(45, 16, 50, torch.float32)
    room = room_for(3 * 64 * 16, 16)
    with checked(seed, overflow=True):
        Served(head, 4).linear_commit_prefix(
            hidden.view(3, 15, 16), weight, None, ints(*counts), ints(*starts), rule=PrefixRule(snap=False),
            workspace=room,
        )  # fmt: skip
    assert not room[1].any()


@pytest.mark.parametrize("shape", [(0, 16), (3, 0, 16), (0, 4, 16)], ids=str)
def test_no_rows_give_empty_results(shape: tuple[int, ...]) -> None:
    hidden, weight, rule = torch.zeros(shape), torch.zeros(50, 16), PrefixRule(snap=False)
    with checked() as launches:
        Served(head).linear_token_stats(hidden, weight)
    assert launches == []
    with checked():
        commit = Served(head).linear_commit_prefix(hidden, weight, rule=rule, log_odds=True)
    for got, expected in zip(
        commit, reference.linear_commit_prefix(hidden, weight, rule=rule, log_odds=True), strict=True
    ):
        same(got, expected)


def test_rows_without_a_sequence_are_cleared() -> None:
    hidden, weight = factors(5, 16, 50, torch.float32)
    with checked():
        commit = Served(head).linear_commit_prefix(hidden, weight, ints(0), rule=PrefixRule(snap=False), log_odds=True)
    assert commit.lengths.numel() == 0
    assert (commit.tokens == -1).all()
    assert all((column == -math.inf).all() for column in commit[3:])


@pytest.mark.parametrize("which", ["hidden", "weight"])
def test_elements_on_both_sides_of_two_to_the_31(which: str, tmp_path: Path) -> None:
    hidden, weight = factors(3, 8, 3, torch.float16)
    far = in_sparse_file(tmp_path / "far", (3, 8), (2**30 + 16, 1)).copy_(hidden if which == "hidden" else weight)
    operands = (far, weight) if which == "hidden" else (hidden, far)
    rule = PrefixRule(beta=1.0, snap=False)
    expected = reference.linear_token_stats(hidden, weight)
    with checked(races=False, overflow=True):  # the race checker would need memory for every byte in between
        stats = Served(head).linear_token_stats(*operands)
        commit = Served(head).linear_commit_prefix(operands[0][:, None], operands[1], rule=rule)
    torch.testing.assert_close(stats[:4], expected[:4], rtol=1e-5, atol=1e-5)
    same(commit.tokens.flatten(), expected.tokens)


@pytest.mark.parametrize(
    ("shape", "options", "rows", "tiles", "programs"),
    [
        pytest.param((1, 4096), {}, 16, 1, 132, id="one row"),
        pytest.param((100, 4096), {}, 128, 1, 132, id="some rows"),
        pytest.param((20000, 4096), {}, 128, 157, 157, id="more tiles than processors"),
        pytest.param((300, 4096), {"noise": True}, 64, 5, 132, id="noise"),
        pytest.param((300, 4096), {"dtype": torch.float32}, 32, 10, 132, id="float32"),
        pytest.param((20, 4096), {"ids": 500}, 32, 1, 4, id="few ids"),
    ],
)
def test_tiles_and_programs_follow_from_shapes(
    shape: tuple[int, int], options: dict[str, Any], rows: int, tiles: int, programs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(configs.head, "device_of", lambda device: configs.device.Device("sm_90", 132))
    dtype, noise, ids = options.get("dtype", torch.bfloat16), options.get("noise", False), options.get("ids", 126464)
    hidden, weight = (torch.empty(n, shape[1], device="meta", dtype=dtype) for n in (shape[0], ids))
    plan = configs.head.stats_launch(hidden, weight, noise)
    assert (plan.config.rows, plan.tiles, plan.programs) == (rows, tiles, programs)
    assert configs.head.head_stats_workspace(hidden, weight, noise) == (7 * programs * rows, tiles)

"""The commit kernels, interpreted: in any order of programs, within bounds, without races, and right bit for bit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels import PrefixRule, Vocabulary, reference
from lsp_kernels.triton import commit
from tests.strategies import CommitCase, cases
from tests.support import (
    check_commit,
    check_noisy_commit,
    check_noisy_stats,
    check_select,
    check_stats,
    examples,
    in_sparse_file,
    same,
)
from tests.triton.interpreter import checked
from tests.triton.served import Served

small = cases(sizes=(1, 3, 17, 64, 130, 150), most=14)
few = cases(sizes=(1, 3, 17, 64, 130, 150), most=5)  # noise is slow here
splits = st.sampled_from([1, 2, 4])
seeds = st.integers(0, 1000)


@examples(80)
@given(case=small, splits=splits, seed=seeds)
def test_commit_agrees_with_the_enumeration_of_thresholds(case: CommitCase, splits: int, seed: int) -> None:
    with checked(seed, overflow=True):
        check_commit(Served(commit, splits), case)


@examples(40)
@given(case=small, splits=splits, seed=seeds)
def test_stats_agree_with_the_definition(case: CommitCase, splits: int, seed: int) -> None:
    with checked(seed, overflow=True):
        check_stats(Served(commit, splits), case)


@examples(20)
@given(case=few, splits=splits, seed=seeds)
def test_entropy_agrees_with_the_definition(case: CommitCase, splits: int, seed: int) -> None:
    with checked(seed, overflow=True):
        check_stats(Served(commit, splits), case, entropy=True)


@examples(30)
@given(case=few, splits=splits, seed=seeds)
def test_commit_draws_what_the_definition_draws(case: CommitCase, splits: int, seed: int) -> None:
    with checked(seed, overflow=True):
        check_noisy_commit(Served(commit, splits), case, *case.draws(seed))


@examples(30)
@given(case=few, splits=splits, seed=seeds)
def test_stats_draw_what_the_definition_draws(case: CommitCase, splits: int, seed: int) -> None:
    with checked(seed, overflow=True):
        check_noisy_stats(Served(commit, splits), case, *case.draws(seed), id_offset=seed % 7)


@examples(20)
@given(case=small, strided=st.booleans(), shift=st.sampled_from([0.0, 2.0]), seed=seeds)
def test_select_agrees_with_the_enumeration_of_thresholds(
    case: CommitCase, strided: bool, shift: float, seed: int
) -> None:
    with checked(seed):
        check_select(Served(commit), case, strided, shift)


def test_a_workspace_resets_itself_and_survives_a_changed_batch() -> None:
    partials, tickets = torch.empty(4096, dtype=torch.int32), torch.zeros(24, dtype=torch.int32)
    rule, vocabulary = PrefixRule(), Vocabulary(200, delimiters=range(0, 200, 3))
    for batch, length in [(3, 5), (1, 9), (5, 2), (3, 5)]:
        logits = torch.randn(batch, length, 200)
        expected = reference.commit_prefix(logits, rule=rule, vocabulary=vocabulary)
        with checked(seed=batch):
            commit_ = Served(commit, 4).commit_prefix(
                logits, rule=rule, vocabulary=vocabulary, workspace=(partials, tickets)
            )
        for got, wanted in zip(commit_, expected, strict=True):
            same(got, wanted)
        assert not tickets.any()
        with checked(seed=batch):
            stats = Served(commit, 4).token_stats(logits, workspace=(partials, tickets))
        same(stats.tokens, reference.token_stats(logits).tokens)
        assert not tickets.any()


def test_a_workspace_that_is_too_small_is_refused() -> None:
    room = (torch.empty(3, dtype=torch.int32), torch.zeros(9, dtype=torch.int32))
    with pytest.raises(ValueError, match="Invalid workspace: expected room for 32 partials and 4 tickets"):
        Served(commit, 2).token_stats(torch.randn(4, 200), workspace=room)
    with pytest.raises(ValueError, match="Invalid workspace: expected room for 18 partials and 4 tickets"):
        Served(commit, 2).commit_prefix(torch.randn(8, 200), rule=PrefixRule(beta=0.3, snap=False), workspace=room)


def test_rows_that_are_not_split_need_no_partials_and_no_tickets_of_their_own() -> None:
    logits, rule = torch.randn(4, 200), PrefixRule(snap=False)
    room = (torch.empty(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
    with checked():
        got = Served(commit, 1).commit_prefix(logits, rule=rule, workspace=room)
        Served(commit, 1).token_stats(logits, workspace=(torch.empty(0).int(), torch.empty(0).int()))
    same(got.lengths, reference.commit_prefix(logits, rule=rule).lengths)


def test_log_odds_keep_their_precision_whatever_the_margin() -> None:
    logits = torch.randn(4, 1000)
    logits[1] *= 8
    logits[2, 77] = 90
    logits[3, -1] = 79
    truth = logits.double()
    with checked():
        stats = Served(commit, 4).token_stats(logits)
    others = truth.scatter(1, stats.tokens[:, None], -math.inf)
    expected = (truth.amax(1) - others.logsumexp(1)).clamp(max=80).float()
    torch.testing.assert_close(stats.log_odds, expected, rtol=0, atol=1e-5)


def test_rows_on_both_sides_of_two_to_the_31_elements(tmp_path: Path) -> None:
    rows = in_sparse_file(tmp_path / "rows", (3, 100), (2**30 + 8, 1)).copy_(torch.randn(3, 100))
    rule = PrefixRule(beta=1.0, snap=False)
    expected = reference.commit_prefix(rows.clone(), rule=rule)
    with checked(overflow=True):
        for logits in (rows, rows[:, None]):
            for got, wanted in zip(Served(commit).commit_prefix(logits, rule=rule)[2:5], expected[2:5], strict=True):
                same(got.flatten(), wanted)
            same(Served(commit).token_stats(logits).tokens.flatten(), expected.tokens)


def test_each_logit_of_a_scored_row_is_read_once_and_no_other() -> None:
    rule, vocabulary = PrefixRule(), Vocabulary(300, delimiters=[1], suppress=[5])
    logits = torch.randn(2, 12, 300)
    with checked() as launches:
        Served(commit, 2).commit_prefix(logits, rule=rule, vocabulary=vocabulary)
    reads = torch.from_numpy(launches[-1].reads(logits))
    scored = rule.scored_rows(12)
    assert (reads[:, :scored] == 1).all()
    assert (reads[:, scored:] == 0).all()

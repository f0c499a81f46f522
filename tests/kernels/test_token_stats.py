"""token_stats gives the best token, the two largest logits and the log-odds of the best token, on every path."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels import Vocabulary
from tests.strategies import DTYPES, CommitCase, cases
from tests.support import check_stats, examples, same


@examples(400)
@given(case=cases(most=10), entropy=st.booleans())
def test_stats_agree_with_the_definition(backend, case: CommitCase, entropy: bool) -> None:
    check_stats(backend, case, entropy=entropy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1000, 126464])
def test_log_odds_keep_their_precision_over_a_large_vocabulary(backend, dtype: torch.dtype, size: int) -> None:
    logits = torch.randn(4, size).to(dtype)
    logits[1] *= 8
    logits[2, 77] = 90  # nearly all weight on one id
    logits[3, -1] = 70
    stats = backend.token_stats(logits)
    truth = logits.double()
    others = truth.scatter(1, stats.tokens[:, None], -math.inf)
    expected = (truth.amax(1) - others.logsumexp(1)).clamp(max=80).float()
    torch.testing.assert_close(stats.log_odds, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_entropy_keeps_its_precision_over_a_large_vocabulary(backend, dtype: torch.dtype) -> None:
    logits = torch.randn(4, 126464).to(dtype)
    logits[1] *= 8
    logits[2, 77] = 20
    logits[3] = 1.5  # all equal
    truth = torch.special.entr(logits.double().softmax(-1)).sum(-1).float()
    torch.testing.assert_close(backend.token_stats(logits, entropy=True).entropy, truth, rtol=1e-5, atol=1e-5)


def test_log_odds_rank_rows_whose_probability_rounds_to_one(backend) -> None:
    logits = torch.zeros(64, 1000)
    logits[torch.arange(64), 5] = torch.linspace(25, 60, 64)
    stats = backend.token_stats(logits)
    assert len(stats.confidence.unique()) == 1
    assert stats.log_odds.argsort().tolist() == list(range(64))


@pytest.mark.parametrize("hidden", [1, 1000])
def test_suppressed_winners_and_their_nans_are_not_looked_at(backend, hidden: int) -> None:
    logits = torch.randn(3, 5000)
    ids = torch.arange(0, 5000, 5000 // hidden)[:hidden]
    expected = backend.token_stats(logits.index_fill(1, ids, -math.inf))
    logits[:, ids] = torch.tensor([math.inf, math.nan, 1e30])[:, None].expand(3, hidden)
    stats = backend.token_stats(logits, vocabulary=Vocabulary(5000, suppress=ids.tolist()))
    for got, wanted in zip(stats[:3], expected[:3], strict=True):
        same(got, wanted)
    torch.testing.assert_close(stats.log_odds, expected.log_odds, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("suppress", "lowest"), [([], 0), ([3], 0), ([0], 1), ([0, 1, 2, 4], 3), (range(699), 699)])
def test_a_row_without_a_logit_above_minus_infinity_gets_the_lowest_allowed_id(backend, suppress, lowest: int) -> None:
    vocabulary = Vocabulary(700, suppress=suppress)
    assert vocabulary.lowest == vocabulary.to("cpu").lowest == lowest
    logits = torch.full((2, 700), -math.inf)
    logits[1, lowest] = math.nan
    assert backend.token_stats(logits, vocabulary=vocabulary).tokens.tolist() == [lowest, lowest]


def test_zeros_have_no_sign(backend) -> None:
    logits = torch.full((2, 600), -1.0)
    logits[0, [3, 500]] = torch.tensor([-0.0, 0.0])
    logits[1, [3, 500]] = torch.tensor([0.0, -0.0])
    stats = backend.token_stats(logits)
    assert stats.tokens.tolist() == [3, 3]
    for values in (stats.top1, stats.top2, stats.margins):
        same(values, torch.zeros(2))

"""commit_prefix and select_prefix do what the paper says, on every path and in every layout."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels import PrefixRule, Vocabulary
from tests.strategies import CommitCase, cases
from tests.support import check_commit, check_select, examples, same


@examples(1000)
@given(case=cases())
def test_commit_agrees_with_the_enumeration_of_thresholds(backend, case: CommitCase) -> None:
    check_commit(backend, case)


@examples(300)
@given(case=cases(sizes=(3, 65)), strided=st.booleans(), shift=st.sampled_from([0.0, 2.0]))
def test_select_agrees_with_the_enumeration_of_thresholds(
    backend, case: CommitCase, strided: bool, shift: float
) -> None:
    check_select(backend, case, strided, shift)


def test_long_sequences_are_scanned_to_their_end(backend) -> None:
    margins = torch.linspace(9, 1, 5000)
    tokens = torch.arange(5000) % 50
    vocabulary = Vocabulary(50, delimiters=[7], stops=[49])
    rule = PrefixRule(beta=0.9, window=50)
    lengths, finished = backend.select_prefix(margins, tokens, rule=rule, vocabulary=vocabulary)
    assert (lengths.item(), finished.item()) == (50, True)
    vocabulary = Vocabulary(50, delimiters=[7])
    lengths, _ = backend.select_prefix(margins, tokens, rule=rule, vocabulary=vocabulary)
    assert lengths.item() == 4458  # the last id 7 before 4500


def test_fractions_are_exact() -> None:
    rule = PrefixRule(alpha=0.07, beta=0.29)
    assert (rule.lowest(100), rule.highest(100)) == (7, 29)
    n = torch.arange(2000)
    for alpha in (0.07, 0.1, 0.29, 0.57, 1.0):
        rule = PrefixRule(alpha=alpha, beta=1.0)
        exact = [max(1, math.ceil(k * round(alpha * 100) / 100 - 1e-9)) for k in range(2000)]
        assert rule.lowest(n).tolist() == exact == [rule.lowest(k) for k in range(2000)]


def test_unscored_rows_are_not_looked_at(backend) -> None:
    rule, vocabulary = PrefixRule(), Vocabulary(1000, delimiters=range(0, 1000, 7))
    logits = torch.randn(3, 40, 1000)
    clean = backend.commit_prefix(logits, rule=rule, vocabulary=vocabulary)
    logits[:, rule.scored_rows(40) :] = math.nan
    for got, expected in zip(backend.commit_prefix(logits, rule=rule, vocabulary=vocabulary), clean, strict=True):
        same(got, expected)

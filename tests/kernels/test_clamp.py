"""Where values are not checked, a bad one gives some answer and never an access out of bounds."""

from __future__ import annotations

import pytest
import torch

from lsp_kernels import PrefixRule, Vocabulary, select_prefix
from lsp_kernels._ops import rule_arguments
from tests.support import ints

LOGITS = torch.randn(6, 3000)
RULE = rule_arguments(PrefixRule(snap=False))
HUGE = 2**31 - 1


BAD = [
    pytest.param(ints(0, 4, 2, 6), None, None, id="falling borders"),
    pytest.param(ints(-9, HUGE), None, None, id="borders out of range"),
    pytest.param(ints(5, -HUGE), None, None, id="border far to the left"),
    pytest.param(None, ints(HUGE), None, id="more active positions than rows"),
    pytest.param(None, ints(-HUGE), None, id="fewer than none"),
    pytest.param(None, None, ints(HUGE), id="start past the end"),
    pytest.param(None, None, ints(-HUGE), id="start before the beginning"),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("cu_rows", "n_active", "starts"), BAD)
def test_bad_sequences_stay_within_their_rows(cu_rows, n_active, starts) -> None:
    commit = torch.ops.lsp.commit_prefix(LOGITS, cu_rows, n_active, starts, None, None, *RULE, None, None)
    chosen = torch.ops.lsp.select_prefix(commit[3], commit[2].clamp(min=0), cu_rows, n_active, starts, None, *RULE)
    for lengths in (commit[0], chosen[0]):
        assert ((lengths >= 0) & (lengths <= 6)).all()
    assert ((commit[2] >= -1) & (commit[2] < 3000)).all()


@pytest.mark.abuse("operators")
@pytest.mark.parametrize("ids", [ints(0, 600, -200_000_000), ints(-1), ints(2999, HUGE)])
def test_bad_suppressed_ids_stay_within_their_row(ids: torch.Tensor) -> None:
    tokens, *_ = torch.ops.lsp.token_stats(LOGITS, None, ids, None, None)
    assert ((tokens >= 0) & (tokens < 3000)).all()


@pytest.mark.abuse("operators")
def test_tokens_outside_the_vocabulary_are_nothing_special() -> None:
    vocabulary = Vocabulary(10, delimiters=range(10), stops=range(10))
    margins, tokens = torch.ones(4), torch.tensor([-1, 10, 2**62, -(2**62)])
    rule = PrefixRule(beta=1.0, no_delimiter="keep")
    lengths, finished = select_prefix(margins, tokens, rule=rule, vocabulary=vocabulary)
    assert (lengths.item(), finished.item()) == (4, False)

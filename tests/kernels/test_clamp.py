"""Tables and tokens are not checked id by id: a bad one gives some answer and never an access out of bounds."""

from __future__ import annotations

import pytest
import torch

from lsp_kernels import PrefixRule, Vocabulary, select_prefix
from tests.support import OPERATORS, ints

LOGITS = torch.randn(6, 3000)
HUGE = 2**31 - 1


@pytest.mark.abuse("operators")
@pytest.mark.parametrize("ids", [ints(0, 600, -200_000_000), ints(-1), ints(2999, HUGE)])
def test_bad_suppressed_ids_stay_within_their_row(ids: torch.Tensor) -> None:
    tokens, *_ = OPERATORS.token_stats(LOGITS, None, ids, 0, 0, None, False, None, None)
    assert ((tokens >= 0) & (tokens < 3000)).all()


@pytest.mark.abuse("operators")
def test_tokens_outside_the_vocabulary_are_nothing_special() -> None:
    vocabulary = Vocabulary(10, delimiters=range(10), stops=range(10))
    margins, tokens = torch.ones(4), torch.tensor([-1, 10, 2**62, -(2**62)])
    rule = PrefixRule(beta=1.0, no_delimiter="keep")
    lengths, finished = select_prefix(margins, tokens, rule=rule, vocabulary=vocabulary)
    assert (lengths.item(), finished.item()) == (4, False)

"""The target range of the rule: tensors of any integer dtype give what Python's integers give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels import PrefixRule
from tests import oracle
from tests.support import examples

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64)
MOST = 2**31 - 1
COUNTS = [0, 1, 2, 7, 100, 127, 255, 2147, 2148, 4295, 32767, 65535, 10**6 + 1, 2**30, MOST - 1, MOST]


def check(rule: PrefixRule, counts: list[int], dtype: torch.dtype) -> None:
    fitting = [n for n in counts if n <= torch.iinfo(dtype).max]
    for name in ("lowest", "highest", "scored_rows"):
        of = getattr(rule, name)
        got = of(torch.tensor(fitting, dtype=torch.int64).to(dtype))
        assert got.dtype == torch.int64
        assert got.tolist() == [of(n) for n in fitting], name


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("rule", [PrefixRule(), PrefixRule.guarded()], ids=["paper", "PrefixRule.guarded"])
def test_a_preset_gives_what_integers_give(rule: PrefixRule, dtype: torch.dtype) -> None:
    check(rule, COUNTS, dtype)


@examples(100)
@given(
    fractions=st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
    least=st.one_of(st.integers(1, 50), st.just(MOST)),
    floor=st.sampled_from([None, 4.0]),
    counts=st.lists(st.integers(0, MOST), min_size=1),
    dtype=st.sampled_from(INTEGERS),
)
def test_any_rule_gives_what_integers_and_fractions_give(fractions, least, floor, counts, dtype) -> None:
    alpha, beta = sorted(fractions)
    rule = PrefixRule(alpha / 10**6, beta / 10**6, min_length=least, floor=floor)
    check(rule, [*counts, *COUNTS], dtype)
    assert [rule.scored_rows(n) for n in counts] == [oracle.scored_rows(n, rule) for n in counts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_other_numbers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"Invalid dtype of n: expected integers, got {dtype}"):
        PrefixRule().scored_rows(torch.ones(3, dtype=dtype))

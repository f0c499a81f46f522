"""The LM head fused with the statistics: the commit operations on float32 logits that are never stored."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lsp_kernels
from lsp_kernels import Noise, PrefixRule, Vocabulary
from tests.head_cases import ByIdentity, check_products, factors
from tests.strategies import DTYPES, CommitCase, cases
from tests.support import OPERATORS, check_commit, check_stats, examples, ints, same


@examples(300)
@given(case=cases(finite=True))
def test_commit_agrees_with_the_enumeration_of_thresholds(backend, case: CommitCase) -> None:
    check_commit(ByIdentity(backend), case)


@examples(200)
@given(case=cases(most=10, finite=True), entropy=st.booleans())
def test_stats_agree_with_the_definition(backend, case: CommitCase, entropy: bool) -> None:
    check_stats(ByIdentity(backend), case, entropy=entropy)


@examples(60)
@given(
    rows=st.sampled_from([1, 2, 15, 16, 17, 31, 33, 64, 100, 257, 300]),
    size=st.sampled_from([1, 2, 3, 7, 16, 31, 64, 255, 256, 257, 600]),
    ids=st.sampled_from([2, 3, 11, 12, 13, 25, 511, 512, 513, 1100]),
    dtype=st.sampled_from(DTYPES),
    with_bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_products_are_exact_but_for_the_stated_error(backend, rows, size, ids, dtype, with_bias, seed) -> None:
    hidden, weight = factors(rows, size, ids, dtype, seed)
    bias = factors(1, ids, 1, dtype, seed + 1)[0][0] if with_bias else None
    check_products(backend.linear_token_stats(hidden, weight, bias=bias), hidden, weight, bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 1024), (5, 4096)])
def test_a_large_vocabulary(backend, rows: int, size: int, dtype: torch.dtype) -> None:
    hidden, weight = factors(rows, size, 20000, dtype)
    check_products(backend.linear_token_stats(hidden, weight), hidden, weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_with_a_contiguous_last_dimension(backend, dtype: torch.dtype) -> None:
    hidden, weight = factors(12, 33, 40, dtype)
    wide_hidden, wide_weight = torch.zeros(4, 5, 47, dtype=dtype), torch.zeros(40, 35, dtype=dtype)
    wide_hidden[:, 1:4, 3:36] = hidden.view(3, 4, 33).transpose(0, 1)
    wide_weight[:, 1:34] = weight
    got = backend.linear_token_stats(wide_hidden[:, 1:4, 3:36].transpose(0, 1), wide_weight[:, 1:34])
    for here, there in zip(got, backend.linear_token_stats(hidden.view(3, 4, 33), weight), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-5)


def test_a_shard_gives_global_ids(backend) -> None:
    hidden, weight = factors(6, 32, 100, torch.float32)
    whole = backend.linear_token_stats(hidden, weight)
    left, right = (backend.linear_token_stats(hidden, weight[a:b], id_offset=a) for a, b in ((0, 40), (40, 100)))
    same(torch.where(left.top1 >= right.top1, left.tokens, right.tokens), whole.tokens)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_that_is_not_finite(backend, value: float, dtype: torch.dtype) -> None:
    hidden, weight = factors(4, 8, 30, dtype)
    hidden = hidden.abs() + 0.1
    weight[17, 3] = value
    stats = backend.linear_token_stats(hidden, weight)
    expected = lsp_kernels.reference.token_stats(hidden.float() @ weight.float().T)
    same(stats.tokens, expected.tokens)
    torch.testing.assert_close(stats.top2, expected.top2, equal_nan=True)
    torch.testing.assert_close(stats.log_odds, expected.log_odds, equal_nan=True)
    hidden_id = Vocabulary(30, suppress=[17])
    assert backend.linear_token_stats(hidden, weight, vocabulary=hidden_id).top2.isfinite().all()


def test_only_rows_that_the_rule_looks_at_are_scored(backend) -> None:
    hidden, weight = factors(40, 16, 50, torch.float32)
    rule = PrefixRule(0.25, 0.5, snap=False)
    hidden[rule.scored_rows(40) :] = math.nan
    commit = backend.linear_commit_prefix(hidden, weight, rule=rule)
    assert commit.lengths.item() > 0
    scored = rule.scored_rows(40)
    assert (commit.tokens[scored:] == -1).all()
    assert (commit.top1[scored:] == -math.inf).all()
    same(commit.top1[:scored], backend.linear_token_stats(hidden[:scored], weight).top1)


def test_results_do_not_depend_on_the_threads(backend) -> None:
    hidden, weight = factors(40, 300, 3000, torch.float32)
    threads, found = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(backend.linear_token_stats(hidden, weight))
    torch.set_num_threads(threads)
    for other in found[1:]:
        for got, expected in zip(other, found[0], strict=True):
            same(got, expected)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 40, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_those_beside_it(backend, rows: int, dtype: torch.dtype) -> None:
    if backend is lsp_kernels.reference:
        pytest.skip("torch's own products depend on the batch")
    hidden, weight = factors(300, 600, 700, dtype)
    whole = backend.linear_token_stats(hidden, weight, entropy=True)
    for got, expected in zip(backend.linear_token_stats(hidden[:rows], weight, entropy=True), whole, strict=True):
        same(got, None if expected is None else expected[:rows])


@pytest.mark.parametrize("noise", [None, Noise(0.7, 3, torch.arange(6)).table], ids=["greedy", "noise"])
def test_operators_pass_opcheck_and_compile_as_one_graph(noise: Tensor | None) -> None:
    hidden, weight = factors(6, 16, 50, torch.float32)
    rule = PrefixRule(snap=False)
    stats = (hidden, weight, None, None, None, 0, 3, noise, True, None, None)
    commit = (hidden, weight, None, ints(0, 2, 6), None, None, None, None, 0, *rule.arguments, noise, True, None, None)
    torch.library.opcheck(OPERATORS.linear_token_stats.default, stats)
    torch.library.opcheck(OPERATORS.linear_commit_prefix.default, commit)

    def step(hidden: Tensor) -> tuple[Tensor, Tensor]:
        found = lsp_kernels.linear_token_stats(hidden, weight)
        return found.log_odds, lsp_kernels.linear_commit_prefix(hidden, weight, rule=rule).lengths

    for got, expected in zip(torch.compile(step, fullgraph=True)(hidden), step(hidden), strict=True):
        assert torch.equal(got, expected)


BAD = [
    ({"hidden": torch.zeros(6)}, ValueError, r"shape of hidden: expected \[B, L, d\] or \[R, d\]"),
    ({"hidden": torch.zeros(6, 0), "weight": torch.zeros(9, 0)}, ValueError, "shape of hidden: expected at least one"),
    ({"hidden": torch.zeros(6, 4).double()}, TypeError, "dtype of hidden: expected float32, bfloat16 or float16"),
    ({"hidden": torch.zeros(4, 6).T}, ValueError, "strides of hidden: expected the last dimension"),
    ({"weight": torch.zeros(9, 5)}, ValueError, r"shape of weight: expected \[V, 4\], got \[9, 5\]"),
    ({"weight": torch.zeros(0, 4)}, ValueError, "shape of weight: expected 1 to"),
    ({"weight": torch.zeros(9, 4).half()}, TypeError, "dtype of weight: expected torch.float32 as hidden"),
    ({"weight": torch.zeros(4, 9).T}, ValueError, "strides of weight: expected the last dimension"),
    ({"weight": torch.zeros(9, 4, device="meta")}, ValueError, "device of weight: expected cpu, got meta"),
    ({"bias": torch.zeros(8)}, ValueError, r"shape of bias: expected \[9\], got \[8\]"),
    ({"bias": torch.zeros(9).half()}, TypeError, "dtype of bias: expected float32"),
    ({"vocabulary": Vocabulary(8)}, ValueError, "vocabulary: expected size V = 9, got 8"),
    ({"weight": "w"}, TypeError, "weight: expected a Tensor, got str"),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(
    ("wrong", "error", "message"), BAD, ids=[f"{next(iter(w))} {i}" for i, (w, *_) in enumerate(BAD)]
)
def test_bad_operands_are_refused_by_name(wrong: dict, error: type[Exception], message: str) -> None:
    good = {"hidden": torch.zeros(6, 4), "weight": torch.zeros(9, 4)}
    with pytest.raises(error, match=f"Invalid {message}"):
        lsp_kernels.linear_token_stats(**good | wrong)
    with pytest.raises(error, match=f"Invalid {message}"):
        lsp_kernels.linear_commit_prefix(**good | wrong, rule=PrefixRule(snap=False))


def test_a_bad_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="Invalid id_offset: expected an integer from 0"):
        lsp_kernels.linear_token_stats(torch.zeros(6, 4), torch.zeros(9, 4), id_offset=-1)

"""Large inputs: threads, splits of the vocabulary, and offsets past 2^31 elements."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from lsp_kernels import PrefixRule, Vocabulary
from tests.strategies import DTYPES
from tests.support import in_sparse_file, same


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_one_thread_and_two_give_the_same_bits(backend, dtype: torch.dtype, rows: int) -> None:
    logits = torch.randn(rows, 70_001).to(dtype)
    vocabulary = Vocabulary(70_001, delimiters=range(0, 70_001, 9), suppress=range(0, 70_001, 70))
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            stats = backend.token_stats(logits, vocabulary=vocabulary)
            results.append([*stats, *backend.commit_prefix(logits, rule=PrefixRule(), vocabulary=vocabulary)])
    finally:
        torch.set_num_threads(threads)
    reference = 3 if backend.__name__.endswith("reference") else None  # torch's own sum over threads
    for i, (one, two) in enumerate(zip(*results, strict=True)):
        if i == reference:
            torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
        else:
            same(one, two)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_winner_is_found_wherever_it_stands(backend, dtype: torch.dtype) -> None:
    size = 40_003
    places = torch.tensor([0, 1, 511, 512, 16_383, 16_384, 18_432, 39_999, size - 1])
    logits = torch.full((len(places), size), -1.0, dtype=dtype)
    logits[torch.arange(len(places)), places] = 3.0
    for chunk in (len(places), 1):  # one split of a row, and several
        parts = [backend.token_stats(part) for part in logits.split(chunk)]
        assert torch.cat([p.tokens for p in parts]).tolist() == places.tolist()
        assert torch.cat([p.margins for p in parts]).tolist() == [4.0] * len(places)


def test_the_lowest_of_equal_ids_wins_across_splits(backend) -> None:
    logits = torch.zeros(1, 70_000)
    logits[0, [20_000, 45_000, 69_999]] = 5.0
    stats = backend.token_stats(logits)
    assert (stats.tokens.item(), stats.margins.item()) == (20_000, 0.0)
    assert stats.log_odds.item() == pytest.approx(-math.log(2 + 69_997 * math.exp(-5)), abs=1e-5)


def test_rows_on_both_sides_of_two_to_the_31_elements(backend, tmp_path: Path) -> None:
    values = torch.randn(3, 1000).half()
    rows = in_sparse_file(tmp_path / "rows", values.shape, (2**30 + 8, 1)).copy_(values)
    rule = PrefixRule(beta=1.0, snap=False)
    for got, expected in zip(
        backend.commit_prefix(rows, rule=rule),
        backend.commit_prefix(values, rule=rule),
        strict=True,
    ):
        same(got, expected)
    for got, expected in zip(backend.token_stats(rows[:, None]), backend.token_stats(values[:, None]), strict=True):
        same(got, expected)

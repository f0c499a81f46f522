"""Noise that is made inside the operations: the integers of Philox, the distribution, and what it may depend on."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lsp_kernels
from lsp_kernels import Noise, PrefixRule, Vocabulary, merge_token_stats
from lsp_kernels.reference import noise as definition
from tests import oracle
from tests.head_cases import ByIdentity
from tests.strategies import DTYPES, CommitCase, cases
from tests.support import check_noisy_commit, check_noisy_stats, examples, same

# Known answers of Philox 4x32-10 by its authors (Random123): counter, key, words.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN, ids=["zeros", "ones", "pi"])
def test_philox_gives_the_answers_of_its_authors(counter: list[int], key: list[int], words: list[int]) -> None:
    assert oracle.philox(counter, key) == words
    found = definition.philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert [int(word) for word in found] == words


@examples(150)
@given(case=cases(sizes=(1, 2, 3, 17, 64, 130, 520, 1100), most=6), seed=st.integers(0, 2**32 - 1))
def test_stats_draw_what_the_definition_draws(backend, case: CommitCase, seed: int) -> None:
    noise, draws = case.draws(seed)
    check_noisy_stats(backend, case, noise, draws, id_offset=seed % 7)


@examples(150)
@given(case=cases(sizes=(1, 2, 3, 17, 64, 130, 520, 1100), most=10), seed=st.integers(0, 2**32 - 1))
def test_commit_draws_what_the_definition_draws(backend, case: CommitCase, seed: int) -> None:
    noise, draws = case.draws(seed)
    check_noisy_commit(backend, case, noise, draws)


def test_philox_of_an_operation_gives_the_integers_of_the_definition(backend) -> None:
    """Every id of a row in turn is the only one allowed, so that the largest noisy logit is its noise."""
    size, place = 40, {"seeds": -6, "positions": 2**31 - 1, "passes": 77}
    logits = torch.full((size, size), -math.inf).fill_diagonal_(0.0)
    stats = backend.token_stats(logits, noise=Noise(torch.ones(size), **place), id_offset=3)
    assert stats.tokens.tolist() == [*range(3, size + 3)]
    words = [oracle.random_word(oracle.Draw(1.0, -6, 2**31 - 1, 77), token) for token in range(3, size + 3)]
    torch.testing.assert_close(stats.top1, torch.tensor([*map(oracle.gumbel_of, words)]), rtol=0, atol=24 * 2**-20)


@examples(60)
@given(case=cases(sizes=(1, 2, 3, 17, 64, 130, 520), most=8, finite=True), seed=st.integers(0, 2**32 - 1))
def test_the_head_draws_what_the_definition_draws(backend, case: CommitCase, seed: int) -> None:
    noise, draws = case.draws(seed)
    check_noisy_stats(ByIdentity(backend), case, noise, draws, id_offset=seed % 7)
    check_noisy_commit(ByIdentity(backend), case, noise, draws)


def test_a_million_draws_are_those_of_float64(backend) -> None:
    """A vocabulary of one id: the largest noisy logit of a row is its noise."""
    count = 1_000_000
    noise = Noise(1.0, torch.arange(count) * 0x9E3779B97F4A7C1, torch.arange(count) % 1000, torch.arange(count) % 7)
    found = backend.token_stats(torch.zeros(count, 1), noise=noise).top1.double()
    exact = definition.gumbel(definition.random_words(noise.table, 0, 1))[:, 0]
    assert (found - exact).abs().max() < 24 * 2**-20


def draws_of(backend: Any, logits: Tensor, temperature: float, count: int, seed: int) -> Tensor:
    """How often each id was drawn."""
    noise = Noise(temperature, seed, torch.arange(count))
    tokens = backend.token_stats(logits.expand(count, -1), noise=noise).tokens
    return tokens.bincount(minlength=logits.numel())


def check_frequencies(backend: Any, batches: int, count: int) -> None:
    logits, temperature = torch.linspace(-2, 3, 16), 0.8
    drawn = sum(draws_of(backend, logits, temperature, count, seed) for seed in range(batches)).double()
    expected = (logits.double() / temperature).softmax(-1) * drawn.sum()
    chi_square = ((drawn - expected).square() / expected).sum()
    assert torch.special.gammaincc(torch.tensor(7.5).double(), chi_square / 2) > 1e-3


def test_frequencies_are_those_of_the_softmax(backend) -> None:
    check_frequencies(backend, 1, 300_000)


def test_frequencies_of_ten_million_draws_are_those_of_the_softmax() -> None:
    check_frequencies(lsp_kernels, 20, 500_000)


def rows_to_skip(size: int) -> Tensor:
    """Peaked, flat, random, growing and falling rows: most blocks, few or none can be passed by."""
    logits = torch.zeros(6, size)
    logits[0, size // 3] = 30
    logits[2:] = torch.randn(4, size, generator=torch.Generator().manual_seed(0)) * 2
    logits[3] = logits[3].sort().values
    logits[4] = logits[4].sort(descending=True).values
    logits[5, -1] = 12
    return logits


@pytest.mark.parametrize("head", [False, True], ids=["logits", "head"])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_passed_by_changes_nothing(backend, dtype: torch.dtype, temperature: float, head: bool) -> None:
    logits = rows_to_skip(30_000).to(dtype)
    vocabulary = Vocabulary(30_000, suppress=[0, 10_000, 29_998])
    options = {"vocabulary": vocabulary, "noise": Noise(temperature, 11, torch.arange(6)), "entropy": True}
    stats = (ByIdentity(backend) if head else backend).token_stats(logits, **options)
    expected = lsp_kernels.reference.token_stats(logits, **options)
    tolerance = 2**-20 * (expected.top1.abs() + 24 * temperature)
    for got, wanted in ((stats.top1, expected.top1), (stats.top2, expected.top2)):
        assert ((got - wanted).abs() <= tolerance).all()
    sure = expected.margins > 2 * tolerance
    assert sure.sum() >= 5
    same(stats.tokens[sure], expected.tokens[sure])
    same(stats.clean[sure], expected.clean[sure])
    torch.testing.assert_close(stats.log_odds[sure], expected.log_odds[sure], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(stats.entropy, expected.entropy, rtol=1e-5, atol=1e-5)


def operations(backend: Any, logits: Tensor, **options: Any) -> list[Tensor]:
    """All that the four operations give for some rows, the head by exact products."""
    found = []
    for server in (backend, ByIdentity(backend)):
        found += [*server.token_stats(logits, entropy=True, **options)]
        found += [*server.commit_prefix(logits, rule=PrefixRule(beta=1.0, snap=False), log_odds=True, **options)]
    return [column for column in found if column is not None]


def test_greedy_rows_of_a_noisy_batch_are_greedy(backend) -> None:
    logits = torch.randn(9, 3000)
    temperatures = torch.tensor([0.0, 1.0, 0.0, 0.0, 5.0, 0.0, 0.3, 0.0, 0.0])
    noise = Noise(temperatures, 5, torch.arange(9))
    for server in (backend, ByIdentity(backend)):
        got, greedy = server.token_stats(logits, noise=noise), server.token_stats(logits)
        for one, other in zip(got[:4], greedy[:4], strict=True):
            same(one[temperatures == 0], other[temperatures == 0])
        same(got.clean[temperatures == 0], greedy.top1[temperatures == 0])
        assert (got.tokens != greedy.tokens)[temperatures > 0].any()
        rule = PrefixRule(beta=1.0, snap=False)
        got, greedy = server.commit_prefix(logits, rule=rule, noise=noise), server.commit_prefix(logits, rule=rule)
        for one, other in zip(got[2:5], greedy[2:5], strict=True):
            same(one[temperatures == 0], other[temperatures == 0])


def test_noise_does_not_depend_on_the_threads(backend) -> None:
    logits, noise = torch.randn(3, 70_000), Noise(0.9, 5, torch.arange(3), 2)
    threads, found = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(operations(backend, logits, noise=noise))
    torch.set_num_threads(threads)
    for other in found[1:]:
        for got, expected in zip(other, found[0], strict=True):
            same(got, expected)


def test_noise_does_not_depend_on_the_batch(backend) -> None:
    logits, noise = torch.randn(20, 2000), Noise(0.9, torch.arange(20), 7)
    whole = backend.token_stats(logits, noise=noise)
    for rows in ([3], [19, 0, 3, 8, 5]):
        part = backend.token_stats(logits[rows], noise=Noise(0.9, torch.tensor(rows), 7))
        for got, expected in zip(part[:4], whole[:4], strict=True):
            same(got, expected[rows])


@pytest.mark.parametrize("wrap", [lambda backend: backend, ByIdentity], ids=["logits", "head"])
def test_shards_draw_what_the_whole_draws(backend, wrap: Callable[[Any], Any]) -> None:
    server, logits, noise = wrap(backend), torch.randn(7, 3001), Noise(0.8, 3, torch.arange(7))
    whole = server.token_stats(logits, noise=noise, entropy=True)
    borders = [0, 1, 514, 1031, 3001]
    parts = [server.token_stats(logits[:, a:b], noise=noise, entropy=True, id_offset=a) for a, b in pairwise(borders)]
    merged = merge_token_stats(parts)
    for name in ("tokens", "top1", "top2", "clean"):
        same(getattr(merged, name), getattr(whole, name))
    torch.testing.assert_close(merged.log_odds, whole.log_odds, rtol=0, atol=1e-5)
    torch.testing.assert_close(merged.entropy, whole.entropy, rtol=0, atol=1e-5)


@pytest.mark.parametrize("noise", [None, Noise(0.8, 3, torch.arange(40))], ids=["greedy", "noise"])
def test_a_commit_has_the_log_odds_of_its_rows(backend, noise: Noise | None) -> None:
    logits, rule = torch.randn(40, 900), PrefixRule(snap=False)
    scored = rule.scored_rows(40)
    for server in (backend, ByIdentity(backend)):
        commit = server.commit_prefix(logits, rule=rule, noise=noise, log_odds=True)
        stats = server.token_stats(logits, noise=noise)
        same(commit.log_odds[:scored], stats.log_odds[:scored])
        same(commit.confidence[:scored], stats.confidence[:scored])
        assert (commit.log_odds[scored:] == -math.inf).all()

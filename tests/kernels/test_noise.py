"""Noise that is made inside the operations: the integers of Philox, the distribution, and what it may depend on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels.reference import noise as definition
from tests import oracle
from tests.strategies import CommitCase, cases
from tests.support import check_noisy_commit, check_noisy_stats, examples

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

"""The noise of the kernels, interpreted: integers equal to the last bit, and noise as near as the contract says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels import Noise
from lsp_kernels.triton import noise
from tests import oracle
from tests.support import examples

IDS = 16
OFFSETS = (0, 1, 4, 6, 2**31 - 5, 2**31 - 4)
random_words, gumbel, noise_at = noise.random_words, noise.gumbel, noise.noise_at


@triton.jit
def words_of_a_row(table_ptr, word_ptr, begin: tl.int64, IDS: tl.constexpr, GROUPED: tl.constexpr):
    row = tl.program_id(0)
    seed, place, _temperature = noise_at(table_ptr, row)
    words = random_words(seed, place, begin, IDS, 1, GROUPED)
    tl.store(word_ptr + row * IDS + tl.arange(0, IDS), words.to(tl.int32, bitcast=True))


@triton.jit
def words_of_rows(table_ptr, word_ptr, begin: tl.int64, ROWS: tl.constexpr, IDS: tl.constexpr, GROUPED: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    seed, place, _temperature = noise_at(table_ptr, row)
    words = random_words(seed, place, begin, IDS, 2, GROUPED)
    tl.store(word_ptr + row * IDS + tl.arange(0, IDS)[None, :], words.to(tl.int32, bitcast=True))


@triton.jit
def noise_of_words(word_ptr, out_ptr, SIZE: tl.constexpr):
    o = tl.arange(0, SIZE)
    tl.store(out_ptr + o, gumbel(tl.load(word_ptr + o).to(tl.uint32, bitcast=True), True))


@examples(20)
@given(
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4),
    position=st.integers(0, 2**31 - 1),
    number=st.integers(0, 2**31 - 1),
    begin=st.sampled_from(OFFSETS),
)
def test_every_id_gets_the_integer_of_the_definition(seeds: list[int], position: int, number: int, begin: int) -> None:
    table = Noise(1.0, torch.tensor(seeds), position, number).table
    expected = [
        [oracle.random_word(oracle.Draw(1.0, seed, position, number), begin + i) for i in range(IDS)] for seed in seeds
    ]
    for grouped in {False, begin % 4 == 0}:
        by_row, at_once = torch.empty(4, IDS, dtype=torch.int32), torch.empty(4, IDS, dtype=torch.int32)
        words_of_a_row[(4,)](table, by_row, begin, IDS, grouped)
        words_of_rows[(1,)](table, at_once, begin, 4, IDS, grouped)
        for found in (by_row, at_once):
            assert (found.long() & 0xFFFFFFFF).tolist() == expected


@pytest.mark.parametrize("first", [0, 2**31 - 2**15, 2**32 - 2**16, 0x12345678], ids=hex)
def test_noise_is_as_near_as_the_contract_says(first: int) -> None:
    """The first and last 2^16 integers, those where the halves meet, and some in between."""
    words = np.arange(first, first + 2**16).astype(np.uint32)
    out = torch.empty(2**16)
    noise_of_words[(1,)](torch.from_numpy(words.view(np.int32)), out, 2**16)
    exact = np.array([oracle.gumbel_of(int(word)) for word in words])
    assert np.abs(out.numpy() - exact).max() < 2e-6
    assert exact.max() < noise.MOST_NOISE.value

"""Shards of a vocabulary, merged, give the statistics of the whole rows."""

from __future__ import annotations

import math
import socket
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, multiprocessing

from lsp_kernels import Noise, TokenStats, Vocabulary, linear_token_stats, merge_token_stats, reference, token_stats
from tests.strategies import KINDS, random_logits
from tests.support import examples, same


def shard(logits: Tensor, begin: int, end: int, noise: Noise | None = None) -> TokenStats:
    return reference.token_stats(logits[:, begin:end], id_offset=begin, entropy=True, noise=noise)


def check_whole(merged: TokenStats, logits: Tensor, noise: Noise | None = None) -> None:
    expected = reference.token_stats(logits, entropy=True, noise=noise)
    for got, wanted in zip(merged[:3], expected[:3], strict=True):
        same(got, wanted)
    torch.testing.assert_close(merged.log_odds, expected.log_odds, rtol=0, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(merged.entropy, expected.entropy, rtol=0, atol=1e-5, equal_nan=True)
    same(merged.clean, expected.clean)


@examples(400)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    size=st.sampled_from([2, 3, 17, 300]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    data=st.data(),
)
def test_uneven_shards_in_any_order_are_the_whole(seed, kind, size, dtype, data) -> None:
    logits = random_logits(np.random.default_rng(seed), 5, size, kind, dtype)
    inner = data.draw(st.sets(st.integers(1, size - 1), max_size=4))
    borders = [0, *sorted(inner), size]
    noise = data.draw(st.sampled_from([None, Noise(torch.tensor([0.0, 0.2, 1.0, 1.0, 9.0]), seed, torch.arange(5))]))
    parts = [shard(logits, a, b, noise) for a, b in pairwise(borders)]
    check_whole(merge_token_stats(data.draw(st.permutations(parts))), logits, noise)


def test_a_nan_in_any_shard_survives() -> None:
    logits = torch.randn(4, 90)
    logits[1, 3] = logits[2, 70] = math.nan
    check_whole(merge_token_stats([shard(logits, 0, 30), shard(logits, 30, 90)]), logits)


@pytest.mark.parametrize("border", [1, 4, 16380, 16384, 16500])
def test_shards_of_a_vocabulary_leave_out_what_the_whole_does(border: int) -> None:
    logits = torch.randn(6, 16600, generator=torch.Generator().manual_seed(border))
    best = logits.topk(40).indices[:, ::2].flatten().tolist()  # every other one of the best ids is suppressed
    vocabulary = Vocabulary(16600, delimiters=[3, 16400], stops=[16599], suppress=best)
    parts = []
    for begin, end in ((0, border), (border, 16600)):
        shard = vocabulary.shard(begin, end)
        assert shard is not None
        assert torch.equal(shard.flags & 7, vocabulary.flags[begin:end] & 7)
        assert shard.stop_ids == [i - begin for i in vocabulary.stop_ids if begin <= i < end]
        parts.append(token_stats(logits[:, begin:end], vocabulary=shard, id_offset=begin))
    merged, expected = merge_token_stats(parts), token_stats(logits, vocabulary=vocabulary)
    for got, wanted in zip(merged[:3], expected[:3], strict=True):
        same(got, wanted)
    torch.testing.assert_close(merged.log_odds, expected.log_odds, rtol=0, atol=1e-5)


def test_a_shard_of_suppressed_ids_is_none() -> None:
    vocabulary = Vocabulary(10, suppress=range(4))
    assert vocabulary.shard(0, 4) is None
    assert vocabulary.shard(0, 5) is not None


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("begin", "end"), [(4, 4), (5, 4), (0, 11), (-1, 4)])
def test_a_shard_outside_of_the_vocabulary_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"Invalid (begin|end): expected"):
        Vocabulary(10).shard(begin, end)


def score_and_merge(rank: int, world: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(9, 32, generator=generator), torch.randn(101, 32, generator=generator)
    begin, end = (0, 60) if rank == 0 else (60, 101)
    noise = Noise(0.7, 5, torch.arange(9))
    own = linear_token_stats(hidden, weight[begin:end], id_offset=begin, noise=noise, entropy=True)
    gathered = [[torch.empty_like(x) for _ in range(world)] for x in own]
    for x, everywhere in zip(own, gathered, strict=True):
        dist.all_gather(everywhere, x)
    merged = merge_token_stats([TokenStats(*part) for part in zip(*gathered, strict=True)])
    expected = linear_token_stats(hidden, weight, noise=noise, entropy=True)
    same(merged.tokens, expected.tokens)
    torch.testing.assert_close(merged.log_odds, expected.log_odds, rtol=0, atol=1e-4)
    torch.testing.assert_close(merged.entropy, expected.entropy, rtol=0, atol=1e-4)
    dist.destroy_process_group()


def test_two_processes_give_the_result_of_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(score_and_merge, args=(2, port), nprocs=2)


BAD = [
    ([], ValueError, "parts: expected the TokenStats of at least one shard, got none"),
    (
        token_stats(torch.zeros(3, 5)),
        TypeError,
        "parts: expected a list of TokenStats, one per shard",
    ),
    ([3], TypeError, r"parts\[0\]: expected a TokenStats, got int"),
    (
        [token_stats(torch.zeros(3, 5)), token_stats(torch.zeros(4, 5))],
        ValueError,
        r"shape of parts\[1\].tokens: expected \[3\], got \[4\]",
    ),
    (
        [token_stats(torch.zeros(3, 5)), reference.token_stats(torch.zeros(3, 5), entropy=True)],
        ValueError,
        r"parts\[1\].entropy: expected all parts to have it or none",
    ),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(
    ("parts", "error", "message"), BAD, ids=["nothing", "no list", "no statistics", "other rows", "another result"]
)
def test_bad_parts_are_refused_by_name(parts, error, message: str) -> None:
    with pytest.raises(error, match=f"Invalid {message}"):
        merge_token_stats(parts)

"""The prefix cache: what counts as frozen, when, and what an error leaves behind."""

from __future__ import annotations

import logging

import pytest
import torch

import lsp_kernels
from lsp_kernels import PrefixCache, reference, suffix_attention
from tests.attention_cases import assert_same_bits
from tests.support import ints

SHAPE = {"n_layers": 2, "batch": 3, "n_kv_heads": 2, "capacity": 16, "head_dim": 32}


def one_pass(
    cache: PrefixCache, suffixes: list[int], append: list[int], seed: int = 0, slots: list[int] | None = None
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = torch.randn(cache.n_layers, 3, sum(suffixes), 2, 32, generator=generator)
    cache.begin(ints(0, *torch.tensor(suffixes).cumsum(0).tolist()), append, slots)
    out = [cache.attend(layer, *tensors[layer]) for layer in range(cache.n_layers)]
    cache.advance()
    return out


def state(cache: PrefixCache) -> list[torch.Tensor]:
    return [x.clone() for x in (*cache.k, *cache.v, cache.lengths)]


def test_passes_append_one_after_the_other() -> None:
    cache = PrefixCache(**SHAPE)
    one_pass(cache, [5, 0, 3], [4, 0, 3])
    first = state(cache)
    one_pass(cache, [6, 2, 1], [2, 2, 0], seed=1)
    assert cache.lengths.tolist() == [6, 2, 3]
    for before, after in zip(first[:-1], state(cache)[:-1], strict=True):
        for b, length in enumerate([4, 0, 3]):
            assert_same_bits(before[b, :, :length], after[b, :, :length])


def test_two_passes_see_what_one_pass_over_everything_sees() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 9, 2, 32, generator=generator)
    cache = PrefixCache(1, 1, 2, 16, 32)
    cache.begin(ints(0, 5), [5])
    cache.attend(0, q[:5], k[:5], v[:5])
    cache.advance()
    cache.begin(ints(0, 4), [0])
    out = cache.attend(0, q[5:], k[5:], v[5:])
    empty = torch.empty(1, 2, 0, 32)
    whole = reference.suffix_attention(q, k, v, empty, empty.clone(), ints(0, 9), ints(0))
    torch.testing.assert_close(out, whole[5:])


def test_an_interrupted_pass_leaves_the_prefix_as_it_was() -> None:
    cache, undisturbed = PrefixCache(**SHAPE), PrefixCache(**SHAPE)
    for each in (cache, undisturbed):
        one_pass(each, [5, 1, 3], [5, 1, 3])
    cache.begin(ints(0, 4, 4, 4), [4, 0, 0])
    cache.attend(0, *torch.full((3, 4, 2, 32), 9.0))  # and then an exception, before the second layer
    assert cache.lengths.tolist() == [5, 1, 3]
    for got, expected in zip(*(one_pass(c, [3, 1, 2], [3, 0, 2], seed=1) for c in (cache, undisturbed)), strict=True):
        assert_same_bits(got, expected)


def test_refresh_empties_and_truncate_shortens_only_those_named() -> None:
    cache = PrefixCache(**SHAPE)
    one_pass(cache, [5, 4, 3], [5, 4, 3])
    cache.truncate({0: 2, 2: 3})
    assert cache.lengths.tolist() == [2, 4, 3]
    cache.refresh([1])
    assert cache.lengths.tolist() == [2, 0, 3]
    cache.refresh()
    assert cache.lengths.tolist() == [0, 0, 0]


def test_the_operands_of_every_pass_have_the_same_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, seen = PrefixCache(**SHAPE), []

    def attend(*tensors: torch.Tensor | None, slots: torch.Tensor | None, **options: object) -> torch.Tensor:
        seen.append([x.data_ptr() for x in (*tensors[3:], slots) if x is not None])
        return suffix_attention(*tensors, slots=slots, **options)

    monkeypatch.setattr("lsp_kernels.cache.suffix_attention", attend)
    one_pass(cache, [5, 4, 3], [5, 4, 3], slots=[2, 0, 1])
    cache.refresh([0])
    one_pass(cache, [1, 0, 2], [1, 0, 0], slots=[0, 1, 2])
    assert seen[:2] == seen[2:]
    assert len(seen[0]) == 6


def test_slots_say_which_rows_the_sequences_of_a_pass_have() -> None:
    cache, plain = PrefixCache(**SHAPE), PrefixCache(**SHAPE)
    for seed, (suffixes, append) in enumerate([([5, 3, 4], [4, 3, 0]), ([2, 6, 1], [0, 6, 1])]):
        moved = one_pass(cache, suffixes, append, seed, slots=[2, 0, 1])
        for got, expected in zip(moved, one_pass(plain, suffixes, append, seed), strict=True):
            assert_same_bits(got, expected)
    assert cache.lengths.tolist() == [9, 1, 4]
    one_pass(cache, [3], [2], slots=[1])  # fewer sequences than rows
    assert cache.lengths.tolist() == [9, 3, 4]


def test_a_copied_row_is_the_same_prefix_and_a_row_of_its_own() -> None:
    cache = PrefixCache(**SHAPE)
    one_pass(cache, [5, 4, 3], [5, 4, 3])
    cache.copy_row(0, 2)
    assert cache.lengths.tolist() == [5, 4, 5]
    twice = [torch.cat([x, x]) for x in torch.randn(3, 2, 2, 32)]
    cache.begin(ints(0, 2, 4), [2, 0], slots=[0, 2])
    for layer in range(2):
        out = cache.attend(layer, *twice)
        assert_same_bits(out[:2], out[2:])
    cache.advance()
    assert cache.lengths.tolist() == [7, 4, 5]


def test_what_a_released_row_held_is_never_read() -> None:
    cache, fresh = PrefixCache(**SHAPE), PrefixCache(**SHAPE)
    one_pass(cache, [5, 4, 3], [5, 4, 3])
    for layer in (*cache.k, *cache.v):
        layer[1] = float("nan")
    cache.release(1)
    assert cache.lengths.tolist() == [5, 0, 3]
    after = [one_pass(c, [4], [4], slots=[1])[0] for c in (cache, fresh)]
    assert_same_bits(*after)


def test_a_row_that_is_not_in_the_pass_may_be_released_meanwhile() -> None:
    cache = PrefixCache(**SHAPE)
    one_pass(cache, [5, 4, 3], [5, 4, 3])
    cache.begin(ints(0, 2), [2], slots=[0])
    cache.release(1)
    cache.copy_row(2, 1)
    for layer in range(2):
        cache.attend(layer, *torch.zeros(3, 2, 2, 32))
    cache.advance()
    assert cache.lengths.tolist() == [7, 3, 3]
    cache.begin(ints(0, 2), [2], slots=[0])
    cache.release(0)
    with pytest.raises(RuntimeError, match="got none or one whose rows changed"):
        cache.advance()


@pytest.mark.abuse("operators")
def test_slots_that_are_no_integers_are_refused() -> None:
    cache = PrefixCache(**SHAPE)
    with pytest.raises(TypeError, match="Invalid slots: expected integers, got 5"):
        cache.begin(None, [1], 5)
    with pytest.raises(TypeError, match=r"Invalid slot: expected an integer, got \[0, 1\]"):
        cache.release([0, 1])


def test_a_replay_is_begin_written_advance() -> None:
    cache = PrefixCache(**SHAPE)
    cache.begin(ints(0, 2, 2, 3), [2, 0, 1])
    cache.written()
    cache.advance()
    assert cache.lengths.tolist() == [2, 0, 1]


def test_the_cache_takes_the_bytes_that_bytes_needed_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=lsp_kernels.cache.__name__):
        cache = PrefixCache(**SHAPE, dtype=torch.bfloat16)
    held = sum(x.untyped_storage().nbytes() for x in (*cache.k, *cache.v))
    assert (
        held == cache.nbytes == PrefixCache.bytes_needed(**SHAPE, dtype=torch.bfloat16) == 2 * 2 * 3 * 2 * 16 * 32 * 2
    )
    assert "24.0 KiB" in caplog.text


@pytest.mark.abuse("operators")
def test_a_cache_larger_than_memory_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(MemoryError, match=r"capacity: expected room for PrefixCache\(.*TiB.*, got \d+ free on cpu"):
        PrefixCache(32, 64, 32, 2**31 - 1, 64, dtype=torch.bfloat16)


BAD = [
    pytest.param(lambda c: c.begin(ints(0, 1, 3, 3), [1, 3, 0]), r"append\[1\]: expected at most 2", id="tokens"),
    pytest.param(lambda c: c.begin(ints(0, 3, 1, 3), [0, 0, 0]), "cu_seqlens: expected non-decreasing", id="borders"),
    pytest.param(lambda c: c.begin(ints(0, 3), [0, 0, 0]), r"shape of cu_seqlens: expected \[4\]", id="few borders"),
    pytest.param(lambda c: c.begin(None, [1, 17, 0]), r"append\[1\]: expected at most 12.*got 17", id="past the end"),
    pytest.param(lambda c: c.begin(None, [1, 1]), "append: expected 3 lengths, one for each row", id="too few lengths"),
    pytest.param(lambda c: c.begin(None, [1, -1, 0]), r"append\[1\]: expected an integer from 0", id="negative"),
    pytest.param(lambda c: c.truncate({1: 5}), r"lengths\[1\]: expected 0 to 4 \(frozen\), got 5", id="longer"),
    pytest.param(lambda c: c.truncate({3: 0}), "sequences: expected 0 to 2, got 3", id="no such sequence"),
    pytest.param(lambda c: c.refresh([0, 7]), "sequences: expected 0 to 2, got 7", id="no such sequence to refresh"),
    pytest.param(lambda c: c.begin(None, [0, 0], [0, 3]), "slots: expected 0 to 2, got 3", id="no such slot"),
    pytest.param(lambda c: c.begin(None, [0, 0], [1, 1]), r"slots: expected distinct rows, got \[1, 1\]", id="twice"),
    pytest.param(lambda c: c.begin(None, [0], [1, 2]), "slots: expected a row for each of 1", id="more slots"),
    pytest.param(lambda c: c.begin(None, [13], [1]), r"append\[0\]: expected at most 12 \(", id="no room"),
    pytest.param(lambda c: c.copy_row(0, 3), "target: expected 0 to 2, got 3", id="no such target"),
    pytest.param(lambda c: c.copy_row(-1, 0), "source: expected 0 to 2, got -1", id="no such source"),
    pytest.param(lambda c: c.copy_row(1, 1), "target: expected another row than the source, got 1", id="onto itself"),
    pytest.param(lambda c: c.release(3), "slot: expected 0 to 2, got 3", id="no such slot to release"),
    pytest.param(lambda c: c.attend(2, *torch.zeros(3, 1, 2, 32)), "layer: expected 0 to 1, got 2", id="no such layer"),
]  # fmt: skip


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("call", "message"), BAD)
def test_an_error_leaves_the_cache_as_it_was(call, message) -> None:
    cache = PrefixCache(**SHAPE)
    one_pass(cache, [5, 4, 3], [5, 4, 3])
    before = state(cache)
    if "layer" in message:
        cache.begin(ints(0, 1, 1, 1), [1, 0, 0])
    with pytest.raises(ValueError, match=f"Invalid {message}"):
        call(cache)
    for got, expected in zip(state(cache), before, strict=True):
        assert torch.equal(got.nan_to_num(), expected.nan_to_num())


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(
    "call", [lambda c: c.advance(), lambda c: c.written(), lambda c: c.attend(0, *torch.zeros(3, 1, 2, 32))]
)
def test_a_pass_must_have_begun(call) -> None:
    with pytest.raises(RuntimeError, match="expected a pass that has begun"):
        call(PrefixCache(**SHAPE))


def test_a_batch_appends_no_more_than_it_has() -> None:
    cache = PrefixCache(**SHAPE)
    cache.begin(None, [1, 5, 0])
    with pytest.raises(ValueError, match=r"Invalid append\[1\]: expected at most 4 \(tokens in the pass\), got 5"):
        cache.attend(0, *torch.zeros(3, 3, 4, 2, 32))
    with pytest.raises(RuntimeError, match=r"expected attend for all 2 layers, got none for \[0, 1\]"):
        cache.advance()


def test_nothing_is_frozen_that_was_not_written() -> None:
    cache = PrefixCache(**SHAPE)
    for layers, missing in (([], [0, 1]), ([1], [0]), ([0, 0], [1])):
        cache.begin(ints(0, 2, 2, 3), [2, 0, 1])
        for layer in layers:
            cache.attend(layer, *torch.zeros(3, 3, 2, 32))
        with pytest.raises(RuntimeError, match=rf"expected attend for all 2 layers, got none for \{missing}"):
            cache.advance()
        assert cache.lengths.tolist() == [0, 0, 0]
    one_pass(cache, [2, 0, 1], [2, 0, 1])
    assert cache.lengths.tolist() == [2, 0, 1]


def test_an_append_that_attention_refused_is_not_frozen() -> None:
    cache = PrefixCache(**SHAPE)
    cache.begin(ints(0, 2, 2, 3), [2, 0, 1])
    cache.attend(0, *torch.zeros(3, 3, 2, 32))
    with pytest.raises(ValueError, match="Invalid shape of k"):
        cache.attend(1, torch.zeros(3, 2, 32), torch.zeros(2, 2, 32), torch.zeros(3, 2, 32))
    with pytest.raises(RuntimeError, match=r"got none for \[1\]"):
        cache.advance()


@pytest.mark.parametrize("size", [1, 16, 40, 272])
def test_a_head_dimension_that_nothing_serves_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"Invalid head_dim: expected a multiple of 16 from 32 to 256, got {size}"):
        PrefixCache(**SHAPE | {"head_dim": size})


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
def test_a_dtype_that_nothing_serves_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"Invalid dtype: expected float32, bfloat16, float16 or float64, got {dtype}"):
        PrefixCache(**SHAPE, dtype=dtype)

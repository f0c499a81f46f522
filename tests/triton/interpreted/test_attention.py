"""The attention kernel, interpreted: in any order of programs, within bounds, without races, as exact as torch's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels import reference
from lsp_kernels.triton import attention, configs
from tests.attention_cases import (
    AttentionCase,
    assert_same_bits,
    attention_cases,
    check_attention,
    check_clamped,
    check_hidden,
    check_lse,
    check_nothing_seen,
    make_case,
)
from tests.support import examples, in_sparse_file
from tests.triton.interpreter import checked
from tests.triton.served import Served

small = attention_cases(sizes=(32, 48, 64), longest_prefix=70, longest_suffix=20)
splits = st.sampled_from([1, 2, 5])
seeds = st.integers(0, 1000)
ROUNDED = 2.0  # the weights are rounded to 16 bits before they meet the values


@examples(25)
@given(case=small, splits=splits, seed=seeds)
def test_as_exact_as_torch_and_the_cache_to_the_bit(case: AttentionCase, splits: int, seed: int) -> None:
    with checked(seed, overflow=True):
        check_attention(Served(attention, splits).suffix_attention, case, ROUNDED)


def ragged(dtype: torch.dtype = torch.float32) -> AttentionCase:
    """Several tiles, splits and chunks of borders, an empty sequence, and a group that does not divide a tile."""
    return make_case([5, 0, 1, 9], [40, 7, 0, 20], [3, 0, 1, 9], heads=(7, 1), dtype=dtype)


def run(case: AttentionCase, splits: int | None, seed: int = 0, **options: object) -> torch.Tensor:
    with checked(seed):
        return case.with_fresh_cache().run(Served(attention, splits).suffix_attention, **options)


@examples(8)
@given(case=small, splits=splits, seed=seeds)
def test_the_log_sum_exp_is_that_of_the_scores(case: AttentionCase, splits: int, seed: int) -> None:
    if case.q.numel():
        with checked(seed):
            check_lse(Served(attention, splits).suffix_attention, case)


@pytest.mark.parametrize("splits", [1, 3])
def test_the_output_goes_where_the_caller_says(splits: int) -> None:
    case = ragged()
    out = torch.full_like(case.q, torch.nan)
    assert run(case, splits, out=out) is out
    assert_same_bits(out, run(case, splits))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("slots", [slice(0, 17), slice(17, 40), slice(0, 40), slice(1, 40)], ids=str)
def test_keys_that_score_minus_infinity_have_no_weight(slots: slice, splits: int) -> None:
    with checked():
        check_hidden(Served(attention, splits).suffix_attention, ragged(), slots)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_query_that_sees_nothing_gives_zero(splits: int) -> None:
    with checked():
        check_nothing_seen(Served(attention, splits).suffix_attention, make_case([5], [40], [5], heads=(6, 2)))


def test_splits_agree_in_float32_and_any_order_of_programs_to_the_bit() -> None:
    case = ragged()
    whole = run(case, 1)
    for splits in (2, 5):
        out = run(case, splits)
        torch.testing.assert_close(out, whole, rtol=0, atol=1e-6)
        assert_same_bits(run(case, splits, seed=1), out)


def test_keys_are_read_once_per_tile_and_slots_past_the_prefix_never() -> None:
    case = ragged()
    with checked() as launches:
        case.run(Served(attention, 3).suffix_attention)
    for b, prefix, append, tiles in zip(range(4), (40, 7, 0, 20), (3, 0, 1, 9), (2, 0, 1, 2), strict=True):
        for cache in (case.k_cache, case.v_cache):
            reads, writes = (torch.from_numpy(count(cache))[b] for count in (launches[0].reads, launches[0].writes))
            assert (reads[:, :prefix] == tiles).all()
            assert (reads[:, prefix:] == 0).all()
            assert (writes[:, prefix : prefix + append] == 1).all()
            assert writes.sum() == writes[:, prefix : prefix + append].sum()


def test_a_workspace_resets_itself_and_serves_other_shapes() -> None:
    room = (torch.empty(200_000, dtype=torch.int32), torch.zeros(80, dtype=torch.int32))
    cases = [ragged(), make_case([5], [60], None), ragged(torch.bfloat16), make_case([1] * 6, [30] * 6, [1] * 6)]
    for seed, case in enumerate([*cases, cases[0]]):
        with checked(seed):
            check_attention(Served(attention, 4).suffix_attention, case, ROUNDED, workspace=room)
        assert not room[1].any()


def test_a_workspace_that_is_too_small_is_refused() -> None:
    room = (torch.empty(3, dtype=torch.int32), torch.zeros(99, dtype=torch.int32))
    with pytest.raises(ValueError, match="Invalid workspace: expected room for 2176 partials and 1 tickets"):
        run(make_case([2], [60], None, heads=(1, 1), batched=True), 2, workspace=room)


@examples(12)
@given(prefixes=st.tuples(*[st.integers(-9, 99)] * 3), appends=st.tuples(*[st.integers(-9, 99)] * 3))
def test_lengths_are_clamped_as_the_reference_clamps_them(prefixes: tuple[int, ...], appends: tuple[int, ...]) -> None:
    with checked():
        check_clamped(Served(attention, 2).suffix_attention, [4, 0, 9], prefixes, appends, heads=(3, 1))


@examples(12)
@given(borders=st.lists(st.integers(-9, 30), min_size=5, max_size=5), seed=seeds)
def test_no_border_leads_out_of_bounds_or_leaves_a_ticket(borders: list[int], seed: int) -> None:
    case = ragged()
    case.cu_seqlens = torch.tensor(borders).int()
    room = (torch.empty(200_000, dtype=torch.int32), torch.zeros(80, dtype=torch.int32))
    with checked(seed, races=False, overflow=True):
        case.run(Served(attention, 3).suffix_attention, workspace=room)
    assert not room[1].any()


@pytest.mark.parametrize(("suffixes", "batched"), [([], False), ([0, 0], False), ([0, 0], True)])
def test_nothing_to_do_launches_nothing(suffixes: list[int], batched: bool) -> None:
    case = make_case(suffixes, [5] * len(suffixes), None, batched=batched)
    assert configs.attention.workspace_of(case.q, case.k_cache) == (0, 0)
    with checked() as launches:
        assert case.run(Served(attention).suffix_attention).shape == case.q.shape
    assert launches == []


FAR = 2**30 + 16


@pytest.mark.parametrize(
    ("suffixes", "strides"),
    [
        pytest.param([2, 1, 2], (FAR, 256, 32, 1), id="sequences apart"),
        pytest.param([3], (0, 32, FAR, 1), id="slots apart"),
    ],
)
def test_elements_on_both_sides_of_two_to_the_31(suffixes: list[int], strides: tuple[int, ...], tmp_path: Path) -> None:
    """Caches in a sparse file."""
    case = make_case(suffixes, [2] * len(suffixes), suffixes, dtype=torch.float16, slack=0)
    caches = []
    for name in ("k_cache", "v_cache"):
        old = getattr(case, name)
        caches.append(in_sparse_file(tmp_path / name, old.shape, strides).copy_(old))
    with checked(races=False, overflow=True):  # the race checker would need memory for every byte in between
        out = Served(attention, 2).suffix_attention(
            case.q, case.k, case.v, *caches, case.cu_seqlens, case.prefix_lens, case.append_lens
        )
    expected = case.run(reference.suffix_attention)
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-3)
    assert_same_bits(caches[0], case.k_cache)
    assert_same_bits(caches[1], case.v_cache)


def test_only_strides_within_a_tile_ask_for_64_bits() -> None:
    q, k = torch.empty(100_000, 28, 128, device="meta"), torch.empty(100_000, 4, 128, device="meta")
    cache = torch.empty(64, 4, 1_000_000, 128, device="meta")
    assert not attention.is_wide(q, k, k, cache, cache)
    assert attention.is_wide(q, k, k, cache, torch.empty_strided(cache.shape, (0, 128, 2**24, 1), device="meta"))


@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "capacity", "rows", "splits"),
    [
        pytest.param(1, 1, (28, 4), 8192, 16, 32, id="one token"),
        pytest.param(1, 16, (28, 4), 8192, 64, 8, id="few tokens, long prefix"),
        pytest.param(1, 64, (32, 32), 1024, 64, 4, id="no groups"),
        pytest.param(1, 64, (28, 4), 100, 64, 1, id="short prefix"),
        pytest.param(1, 2048, (32, 32), 1024, 128, 1, id="prompt"),
        pytest.param(64, 64, (28, 4), 4096, 16, 1, id="many sequences"),
    ],
)
def test_tiles_and_splits_follow_from_shapes(
    batch: int, tokens: int, heads: tuple[int, int], capacity: int, rows: int, splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(configs.attention, "LEAST_KEYS", 256)
    monkeypatch.setattr(configs.attention, "device_of", lambda device: configs.device.Device("sm_90", 132))
    q = torch.empty(tokens, heads[0], 128, device="meta", dtype=torch.bfloat16)
    k_cache = torch.empty(batch, heads[1], capacity, 128, device="meta", dtype=torch.bfloat16)
    launch = configs.attention.launch_of(q, k_cache)
    assert (launch.config.rows, launch.splits) == (rows, splits)
    slots = launch.tiles * heads[1] * splits * rows
    assert configs.attention.workspace_of(q, k_cache)[0] == (slots * 130 if splits > 1 else 0)

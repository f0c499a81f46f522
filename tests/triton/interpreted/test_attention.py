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
from tests.triton.served import Served, limit_extra

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
@pytest.mark.parametrize(
    "suffixes", [[5, 0, 9], [1, 0, 0, 0], [0, 0], []], ids=["some", "one token", "all empty", "no sequence"]
)
def test_rows_past_the_last_border_belong_to_nobody(suffixes: list[int], splits: int) -> None:
    prefixes = [40] * len(suffixes)
    for unused in (1, 3, 70):
        case = make_case(suffixes, prefixes, suffixes, heads=(7, 1), unused=unused)
        with checked(unused):
            out = check_attention(Served(attention, splits).suffix_attention, case, ROUNDED)
            check_lse(Served(attention, splits).suffix_attention, case)
        assert not out[case.unused()].any()


@examples(8)
@given(slots=st.lists(st.integers(-9, 9), min_size=3, max_size=3), splits=splits)
def test_slots_are_clamped_as_the_reference_clamps_them(slots: list[int], splits: int) -> None:
    case = make_case([4, 0, 9], [20, 7, 33], None, heads=(3, 1), slots=[0, 1, 2])
    case.k_cache.nan_to_num_()
    case.v_cache.nan_to_num_()
    case.slots = torch.tensor(slots).int()
    with checked():
        out = case.run(Served(attention, splits).suffix_attention)
    torch.testing.assert_close(out, case.run(reference.suffix_attention), rtol=0, atol=1e-5)


def splits_written(case: AttentionCase, extra: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Runs a case with at most `extra` programs for splits, and counts those of each tile that have published."""
    with monkeypatch.context() as patch:
        limit_extra(patch, extra, 8)
        plan = configs.attention.launch_of(case.q, case.k_cache, case.prefix_lens.size(0))
        partials, tickets = torch.full((plan.partials,), -1, dtype=torch.int32), torch.zeros(plan.tickets).int()
        with checked(extra):
            check_attention(Served(attention).suffix_attention, case, ROUNDED, workspace=(partials, tickets))
    assert not tickets.any()
    rows = plan.config.rows
    sums = partials.view(torch.float32)[-2 * rows * plan.places * plan.heads :].view(-1, 2, rows)[:, :, 0]
    return (~sums.isnan().any(1)).view(plan.heads, plan.places).sum(1).tolist()


@pytest.mark.parametrize(("extra", "published"), [(1, 2), (3, 4), (7, 8), (8, 8), (20, 8)])
def test_one_long_prefix_in_a_full_batch_is_divided(
    extra: int, published: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 8 chunks of keys are, as far as the extra programs suffice, and no other sequence is."""
    case = make_case([3] * 6, [0, 0, 112, 0, 0, 0], None, heads=(2, 2))
    assert splits_written(case, extra, monkeypatch) == [published] * 2


def test_extra_programs_are_shared_by_all_long_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case([3, 3, 40], [120, 5, 120], [3, 3, 20], heads=(1, 1))  # 1, 1 and 2 tiles of 9, 2 and 11 chunks
    assert splits_written(case, 2, monkeypatch) == [0]  # two programs for each of three tiles would take three
    assert splits_written(case, 3, monkeypatch) == [6]
    assert splits_written(case, 9, monkeypatch) == [3 + 3 + 3]


def test_one_long_pass_in_a_full_batch_without_extra_programs_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is short, so that the launch has no splits, however many keys the pass itself has."""
    monkeypatch.setattr(configs.attention, "LONG_KEYS", 64)
    case = make_case([60, *[1] * 9], [30] * 10, None, heads=(1, 1))
    assert configs.attention.workspace_of(case.q, case.k_cache, case.prefix_lens) == (0, 0)
    with checked():
        check_attention(Served(attention).suffix_attention, case, ROUNDED)


@examples(15)
@given(case=small, extra=st.integers(1, 12), most=st.sampled_from([2, 5, 9]), seed=seeds)
def test_any_number_of_extra_programs_is_right(case: AttentionCase, extra: int, most: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch, checked(seed, overflow=True):
        limit_extra(patch, extra, most)
        check_attention(Served(attention).suffix_attention, case, ROUNDED)


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
    with pytest.raises(ValueError, match="Invalid workspace: expected room for 2176 partials and 2 tickets"):
        run(make_case([2], [60], None, heads=(1, 1), batched=True), 2, workspace=room)


@examples(12)
@given(prefixes=st.tuples(*[st.integers(-9, 99)] * 3), appends=st.tuples(*[st.integers(-9, 99)] * 3))
def test_lengths_are_clamped_as_the_reference_clamps_them(prefixes: tuple[int, ...], appends: tuple[int, ...]) -> None:
    with checked():
        check_clamped(Served(attention, 2).suffix_attention, [4, 0, 9], prefixes, appends, heads=(3, 1))


@examples(20)
@given(borders=st.lists(st.integers(-9, 30), min_size=5, max_size=5), extra=st.sampled_from([2, 12]), seed=seeds)
def test_no_border_leads_out_of_bounds_or_leaves_a_ticket(borders: list[int], extra: int, seed: int) -> None:
    case = ragged()
    case.cu_seqlens = torch.tensor(borders).int()
    with pytest.MonkeyPatch.context() as patch, checked(seed, races=False, overflow=True):
        limit_extra(patch, extra, 3)
        partials, tickets = configs.attention.workspace_of(case.q, case.k_cache, case.prefix_lens)
        room = (torch.empty(partials, dtype=torch.int32), torch.zeros(tickets, dtype=torch.int32))
        case.run(Served(attention).suffix_attention, workspace=room)
    assert not room[1].any()


@pytest.mark.parametrize(("suffixes", "batched"), [([], False), ([0, 0], False), ([0, 0], True)])
def test_nothing_to_do_launches_nothing(suffixes: list[int], batched: bool) -> None:
    case = make_case(suffixes, [5] * len(suffixes), None, batched=batched)
    assert configs.attention.workspace_of(case.q, case.k_cache, case.prefix_lens) == (0, 0)
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
    ("batch", "tokens", "heads", "capacity", "rows", "splits", "extra"),
    [
        pytest.param(1, 1, (28, 4), 8192, 16, 32, 31, id="one token"),
        pytest.param(1, 4, (28, 4), 8192, 32, 16, 15, id="four tokens"),
        pytest.param(1, 16, (28, 4), 8192, 64, 8, 14, id="few tokens, long prefix"),
        pytest.param(1, 64, (32, 32), 1024, 64, 4, 6, id="no groups"),
        pytest.param(1, 64, (28, 4), 100, 64, 1, 0, id="short prefix"),
        pytest.param(1, 2048, (32, 32), 1024, 128, 1, 0, id="prompt"),
        pytest.param(64, 64, (28, 4), 4096, 16, 16, 66, id="many sequences"),
        pytest.param(64, 4096, (28, 4), 32768, 128, 4, 33, id="many sequences of many tokens, long prefixes"),
        pytest.param(64, 4096, (28, 4), 2048, 128, 1, 0, id="many sequences, no long prefix"),
    ],
)
def test_tiles_and_splits_follow_from_shapes(
    batch: int, tokens: int, heads: tuple[int, int], capacity: int, rows: int, splits: int, extra: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(configs.attention, "LEAST_KEYS", 256)
    monkeypatch.setattr(configs.attention, "device_of", lambda device: configs.device.Device("sm_90", 132))
    q = torch.empty(tokens, heads[0], 128, device="meta", dtype=torch.bfloat16)
    k_cache = torch.empty(batch, heads[1], capacity, 128, device="meta", dtype=torch.bfloat16)
    launch = configs.attention.launch_of(q, k_cache, batch)
    assert (launch.config.rows, launch.splits, launch.extra) == (rows, splits, extra)
    places = min(2 * extra, launch.tiles + extra) * heads[1]
    needed = configs.attention.workspace_of(q, k_cache, torch.empty(batch))
    assert needed == (places * rows * 130, places)

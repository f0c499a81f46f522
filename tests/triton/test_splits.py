"""How a launch is divided into programs: by shapes and the rule, never so that a scored row has no program."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lsp_kernels import PrefixRule
from lsp_kernels.triton.configs.commit import (
    MOST_PLANES,
    commit_slots,
    commit_workspace,
    split_counts,
    splits_of,
    stats_workspace,
)
from tests.support import examples, ints
from tests.triton.launches import as_gpu

H100 = 132  # processors
SIZE = 126464


def logits(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, SIZE, device="meta", dtype=torch.bfloat16)


rules = st.builds(
    lambda share, beta, least, floor: PrefixRule(share * beta, beta, least, floor=floor, snap=False),
    share=st.floats(0.01, 1.0),
    beta=st.floats(0.001, 1.0),
    least=st.sampled_from([1, 2, 9, 1000]),
    floor=st.sampled_from([None, 4.0]),
)


@examples(300)
@given(rule=rules, length=st.integers(0, 3000), start=st.integers(0, 3000))
def test_no_sequence_of_a_batch_has_more_scored_rows_than_slots(rule: PrefixRule, length: int, start: int) -> None:
    slots = commit_slots(logits(3, length), None, None, rule)
    assert rule.scored_rows(length - min(start, length)) <= slots.per_sequence <= length
    assert slots.count == 3 * slots.per_sequence
    single = commit_slots(logits(length), None, None, rule)
    assert (single.count, single.per_sequence) == (slots.per_sequence, slots.per_sequence)


def test_where_n_may_exceed_the_rows_every_row_has_a_slot() -> None:
    """With n_active, all rows given may be scored, and with borders a sequence may lie anywhere."""
    for counts, borders, shape in (
        (ints(99, 99), None, (2, 50)),
        (ints(99), ints(0, 100), (100,)),
        (None, ints(0, 100), (100,)),
    ):
        assert commit_slots(logits(*shape), borders, counts, PrefixRule()).count == 100


@pytest.mark.parametrize(
    ("shape", "borders", "counts", "programs"),
    [
        pytest.param((1, 256), None, None, 129 * 4, id="one sequence"),
        pytest.param((256,), None, None, 129 * 4, id="one packed sequence"),
        pytest.param((8, 64), None, None, 8 * 33 * 2, id="a batch"),
        pytest.param((256,), ints(0, 64, 128, 192, 256), None, 256 * 4, id="packed, of which about half are scored"),
        pytest.param((129,), ints(0, 64, 129), ints(200, 56), 129 * 4, id="scored rows alone"),
        pytest.param((129,), None, ints(256), 129 * 4, id="scored rows of one sequence"),
        pytest.param((1, 1024), None, None, 513, id="a long sequence"),
    ],
)
def test_splits_follow_the_rows_that_can_be_scored(
    shape: tuple[int, ...], borders: torch.Tensor | None, counts: torch.Tensor | None, programs: int
) -> None:
    """On an H100: as many programs as fill it, though only about half of the rows given are scored."""
    slots = commit_slots(logits(*shape), borders, counts, PrefixRule())
    assert slots.count * splits_of(slots.likely, SIZE, H100) == programs


@pytest.mark.parametrize(("shape", "splits"), [((1, 256), 4), ((1, 2048), 1)])
def test_a_workspace_has_room_for_what_is_published(shape: tuple[int, ...], splits: int) -> None:
    slots = commit_slots(logits(*shape), None, None, PrefixRule()).count
    partials = MOST_PLANES * slots * splits if splits > 1 else 0
    with as_gpu("sm_90", H100):
        assert commit_workspace(logits(*shape), None, None, PrefixRule()) == (partials, 1 + slots * (splits > 1))


def test_statistics_score_every_row() -> None:
    with as_gpu("sm_90", H100):
        assert stats_workspace(logits(2, 64)) == (MOST_PLANES * 128 * 4, 128)
        assert stats_workspace(logits(2048)) == (0, 0)


@pytest.mark.parametrize("rows", [1, 16, 64, 256, 100_000])
@pytest.mark.parametrize("size", [1, 1000, 32000, 126464, 152064])
def test_splits_are_powers_of_two_that_leave_each_enough_to_do(rows: int, size: int) -> None:
    count = splits_of(rows, size, processors=H100)
    assert count in split_counts()
    assert count == 1 or (size / count > 4096 and rows * count <= 132 * 8)

"""LocalLeap: a lower confidence suffices in the neighbourhood of an anchor."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lsp
from lsp_kernels import Vocabulary
from tests.lsp.agreement import check_agreement
from tests.lsp.recorder import scripted
from tests.lsp.simulation import Seen, reaches
from tests.support import examples


def leap(scheduler: lsp.LocalLeap, seen: Seen) -> set[int]:
    best, *_ = seen.ranked
    anchors = {p for p in seen.here if reaches(seen.confidence(p), scheduler.p)}
    near = {p for p in seen.here for a in anchors if abs(p - a) <= scheduler.radius}
    return anchors | {p for p in near if reaches(seen.confidence(p), scheduler.near_p)} or {best}


@pytest.mark.parametrize(
    "scheduler", [lsp.LocalLeap(), lsp.LocalLeap(0.7, 0.3, 1), lsp.LocalLeap(0.9, 0.2, 3), lsp.LocalLeap(0.8, 0.8, 0)]
)
@examples(25)
@given(data=st.data())
def test_anchors_and_their_neighbours_are_committed(scheduler: lsp.LocalLeap, data: st.DataObject) -> None:
    check_agreement(scheduler, data, leap)


def first_commit(scheduler: object, confidence: list[float]) -> list[int]:
    """Which of these masks the first step commits, after no prompt."""
    odds = [math.log(c / (1 - c)) for c in confidence]
    rows = np.array([[0.0, x, 99.0] for x in odds], dtype=np.float32)
    loop = lsp.decode(scripted(lambda _: rows, 3, 2), [[]], len(rows), scheduler, Vocabulary(3))
    before, after = (next(loop).canvases[0].masked.copy() for _ in range(2))
    return np.flatnonzero(before & ~after).tolist()


def test_the_neighbourhood_has_a_radius_on_both_sides_and_ends_at_a_lower_confidence() -> None:
    confidence = [0.8, 0.8, 0.95, 0.8, 0.7, 0.8, 0.8]
    assert first_commit(lsp.LocalLeap(0.9, 0.75, 1), confidence) == [1, 2, 3]
    assert first_commit(lsp.LocalLeap(0.9, 0.75, 3), confidence) == [0, 1, 2, 3, 5]
    assert first_commit(lsp.LocalLeap(0.9, 0.75, 0), confidence) == [2]
    assert first_commit(lsp.LocalLeap(0.99, 0.6, 9), confidence) == [2]  # no anchor: the best


@examples(100)
@given(st.lists(st.integers(50, 99), min_size=1, max_size=12), st.integers(0, 4))
def test_local_leap_is_its_formula_on_random_confidences(hundredths: list[int], radius: int) -> None:
    confidence = [each / 100 for each in hundredths]
    anchors = [a for a, c in enumerate(confidence) if c >= 0.895]
    near = {q for a in anchors for q in range(max(0, a - radius), a + radius + 1)}
    wanted = {q for q in near if q < len(confidence) and confidence[q] >= 0.745} or {int(np.argmax(confidence))}
    assert set(first_commit(lsp.LocalLeap(0.895, 0.745, radius), confidence)) == wanted


@pytest.mark.abuse("schedulers")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lsp.LocalLeap(0.0), r"Invalid p: expected 0 < p <= 1, got 0\.0"),
        (lambda: lsp.LocalLeap(0.9, 0.95), r"Invalid near_p: expected 0 < near_p <= p = 0\.9, got 0\.95"),
        (lambda: lsp.LocalLeap(radius=-1), "Invalid radius"),
    ],
)
def test_parameters_that_make_no_sense_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

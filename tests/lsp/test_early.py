"""SchED: everything at once, when the mean margin reaches a threshold that falls smoothly."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lsp
from tests.lsp.agreement import check_agreement
from tests.lsp.simulation import Seen, reaches
from tests.support import examples


def threshold(scheduler: lsp.SchED, x: float) -> float:
    high, low = scheduler.high, scheduler.low
    return {
        "linear": high + (low - high) * x,
        "cosine": low + (high - low) * 0.5 * (1 + math.cos(math.pi * x)),
        "exponential": low + (high - low) * math.exp(-scheduler.k * x),
    }[scheduler.shape]


def all_at_once(scheduler: lsp.SchED, seen: Seen) -> set[int]:
    margins = [row.margin for row in seen.rows.values()]
    enough = reaches(math.fsum(margins) / len(margins), threshold(scheduler, seen.done))
    return set(seen.rows) if enough else {seen.ranked[0]}


@pytest.mark.parametrize(
    "scheduler",
    [
        lsp.SchED(),
        lsp.SchED(4.0, 0.5, "linear"),
        lsp.SchED(4.0, 1.0, "cosine"),
        lsp.SchED(5.0, 0.0, "exponential", k=16.0),
    ],
    ids=str,
)
@examples(25)
@given(data=st.data())
def test_everything_is_committed_when_the_mean_margin_is_large_enough(
    scheduler: lsp.SchED, data: st.DataObject
) -> None:
    check_agreement(scheduler, data, all_at_once)


@given(
    st.sampled_from(["linear", "cosine", "exponential"]),
    st.floats(0, 1),
    st.floats(0, 5),
    st.floats(0, 5),
    st.floats(0.5, 16),
)
def test_the_threshold_is_that_of_the_formula_and_falls(
    shape: str, done: float, low: float, more: float, k: float
) -> None:
    scheduler = lsp.SchED(low + more, low, shape, k)
    assert scheduler.enough(done) == pytest.approx(threshold(scheduler, done), abs=1e-9)
    assert scheduler.enough(0.0) == pytest.approx(low + more)
    assert scheduler.enough(done) <= scheduler.enough(done / 2) + 1e-9


@pytest.mark.parametrize("call", [lsp.generate, lsp.trace])
@pytest.mark.parametrize("kind", [lsp.SchED, lsp.Prophet])
def test_what_is_beyond_the_pass_cannot_be_committed_at_once(call: Callable[..., object], kind: type) -> None:
    def never(ids: object) -> object:
        raise AssertionError("decoded")

    model = lsp.adapt(never, vocab_size=4, mask_id=3)
    with pytest.raises(ValueError, match=f"Invalid lookahead: expected None with {kind.__name__}, which commits"):
        call(model, [[1]], max_new_tokens=4, scheduler=kind(), lookahead=8)


@pytest.mark.abuse("schedulers")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lsp.SchED(2.0, 3.0), r"Invalid low: expected 0 <= low <= high, got 3\.0 and 2\.0"),
        (lambda: lsp.SchED(math.inf), "Invalid low: expected 0 <= low <= high"),
        (lambda: lsp.SchED(shape="step"), "Invalid shape: expected 'exponential', 'linear' or 'cosine', got 'step'"),
        (lambda: lsp.SchED(k=0.0), r"Invalid k: expected a finite number above 0, got 0\.0"),
        (lambda: lsp.SchED(k=math.inf), "Invalid k: expected a finite number above 0, got inf"),
    ],
)
def test_parameters_that_make_no_sense_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

"""Bounds on what is accepted together: by Fréchet's inequality, and by the sum of entropies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import lsp
from tests.lsp.agreement import check_agreement
from tests.lsp.simulation import Ambiguous, Seen, reaches
from tests.support import examples

CONFIDENCES = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12)


def frechet(confidence: list[float], delta: float) -> int:
    """The formula as it is written: the largest n whose bound exceeds the risk of the n-th by delta, else 1."""
    c = sorted(confidence, reverse=True)
    margins = {n: max(0.0, math.fsum(c[:n]) - (n - 1)) - (1 - c[n - 1]) for n in range(1, len(c) + 1)}
    if any(reaches(margin, delta) and margin == delta for margin in margins.values()):
        raise Ambiguous  # the sums round differently
    return max((n for n, margin in margins.items() if margin > delta), default=1)


def within_frechet(scheduler: lsp.Frechet, seen: Seen) -> set[int]:
    return set(seen.ranked[: frechet([seen.confidence(p) for p in seen.here], scheduler.delta)])


@pytest.mark.parametrize("delta", [0.25, 0.85, -0.5])
@examples(25)
@given(data=st.data())
def test_frechet_decodes_as_its_simulation(delta: float, data: st.DataObject) -> None:
    check_agreement(lsp.Frechet(delta), data, within_frechet)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 2.0])
@examples(25)
@given(data=st.data())
def test_the_entropy_bound_decodes_as_its_simulation(gamma: float, data: st.DataObject) -> None:
    check_agreement(lsp.EntropyBound(gamma), data)


@given(CONFIDENCES, st.sampled_from([-0.9, 0.0, 0.25, 0.75, 0.95]))
def test_frechet_takes_as_many_as_its_formula(confidence: list[float], delta: float) -> None:
    try:
        expected = frechet(confidence, delta)
    except Ambiguous:
        assume(False)
    assert lsp.Frechet(delta).count(np.array(sorted(confidence, reverse=True))) == expected


def test_frechet_by_hand() -> None:
    sure = np.array([0.95, 0.9, 0.9, 0.6])  # bounds .95, .85, .75, .35; minus the risks .9, .75, .65, -.05
    taken = {delta: lsp.Frechet(delta).count(sure) for delta in (-0.2, 0.2, 0.7, 0.8, 0.95)}
    assert taken == {-0.2: 4, 0.2: 3, 0.7: 2, 0.8: 1, 0.95: 1}


@given(st.lists(st.floats(0, 3), min_size=1, max_size=12), st.floats(0, 4))
def test_the_entropy_bound_takes_as_many_as_its_formula(entropy: list[float], gamma: float) -> None:
    ranked = np.sort(np.array(entropy))
    sums = [math.fsum(ranked[:n]) - ranked[:n].max() for n in range(1, len(ranked) + 1)]
    assume(all(abs(total - gamma) > 1e-9 for total in sums[1:]))
    assert lsp.EntropyBound(gamma).count(ranked) == sum(total <= gamma for total in sums)


@pytest.mark.abuse("schedulers")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lsp.Frechet(1.0), r"Invalid delta: expected -1 <= delta < 1, got 1\.0"),
        (lambda: lsp.Frechet(math.nan), "Invalid delta: expected -1 <= delta < 1, got nan"),
        (lambda: lsp.EntropyBound(-0.1), r"Invalid gamma: expected gamma >= 0, got -0\.1"),
        (lambda: lsp.EntropyBound(math.nan), "Invalid gamma: expected gamma >= 0, got nan"),
    ],
)
def test_parameters_that_make_no_sense_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

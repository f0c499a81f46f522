"""Intervals agree with published values and with what they are intervals of."""

from __future__ import annotations

import random

import pytest

from lsp.evaluation.intervals import paired, wilson


def test_wilson_matches_published_values() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_an_interval_holds_what_was_measured() -> None:
    for n in (1, 11, 20, 100, 300):
        for right in range(n + 1):
            low, high = wilson(right, n)
            assert 0 <= low <= right / n <= high <= 1


def test_the_interval_of_a_difference_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, covered, rounds, n = random.Random(0), 0, 1000, 200
    for _ in range(rounds):
        draws = [rng.random() for _ in range(n)]
        first, second = [d < 0.9 for d in draws], [0.03 < d < 0.88 for d in draws]  # 0.90 and 0.85
        low, high = paired(first, second)
        covered += low <= 0.05 <= high
    assert 0.93 <= covered / rounds <= 0.98


def test_swapping_the_two_turns_the_sign() -> None:
    first, second = [True, True, False, True], [False, True, False, True]
    low, high = paired(first, second)
    assert paired(second, first) == pytest.approx((-high, -low))

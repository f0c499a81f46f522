"""95 % intervals of accuracies: of one, and of the difference of two on the same problems."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z = 1.96


def wilson(right: int, n: int, z: float = Z) -> tuple[float, float]:
    """The Wilson score interval of `right` out of `n`.

    Examples
    --------
    >>> low, high = wilson(9, 10)
    >>> round(low, 2), round(high, 2)
    (0.6, 0.98)
    """
    share, spread = right / n, z * z / n
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return 0.0 if right == 0 else centre - half, 1.0 if right == n else centre + half


def paired(first: Sequence[bool], second: Sequence[bool], z: float = Z) -> tuple[float, float]:
    """The interval of accuracy(first) - accuracy(second) over the same problems (Bonett and Price's adjusted Wald).

    Examples
    --------
    >>> low, high = paired([True] * 9 + [False], [True] * 8 + [False] * 2)
    >>> round(low, 2), round(high, 2)
    (-0.2, 0.36)
    """
    gained = sum(a and not b for a, b in zip(first, second, strict=True)) + 1
    lost = sum(b and not a for a, b in zip(first, second, strict=True)) + 1
    n = len(first) + 2
    difference = (gained - lost) / n
    half = z * math.sqrt(max(0.0, (gained + lost) / n - difference**2) / n)
    return difference - half, difference + half

"""How exact the numbers of a trace are: as exact as a reader needs, so that what has not changed can be left out.

All are rounded down, so a number is under a level that has no more digits exactly if it was under it before. Digits
are those that Python writes: 0.3 stays 0.3, although the float next to it is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_FLOOR, Context, Decimal
from typing import TypeGuard

MARGIN_DIGITS = 3
"""Significant digits of a margin."""

CONFIDENCE_STEP = Decimal("0.0001")

_three_digits = Context(prec=MARGIN_DIGITS, rounding=ROUND_FLOOR)


def margins(values: Iterable[float | None]) -> list[float | None]:
    """Margins to three significant digits; None for what is infinite or no number.

    Examples
    --------
    >>> margins([0.0123456, 3.99999, 12345.6, float("inf")])
    [0.0123, 3.99, 12300.0, None]
    """
    return [float(_three_digits.create_decimal(repr(v))) if is_number(v) else None for v in values]


def confidences(values: Iterable[float | None]) -> list[float | None]:
    """Confidences to four decimals; None for what is no number.

    Examples
    --------
    >>> confidences([0.99999, 1.0, 0.25, float("nan")])
    [0.9999, 1.0, 0.25, None]
    """
    return [float(Decimal(repr(v)).quantize(CONFIDENCE_STEP, ROUND_FLOOR)) if is_number(v) else None for v in values]


def is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)

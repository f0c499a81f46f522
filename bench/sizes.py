"""Real sizes where ``pytest --benchmark`` measures, tiny ones where the ordinary tests run every benchmark once."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

measuring = False  # set by the conftest.py at the root, before it imports any benchmark


def sized(real: T, *, tiny: T) -> T:
    return real if measuring else tiny

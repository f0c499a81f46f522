"""Real sizes where ``pytest --benchmark`` measures, tiny ones where the ordinary tests run every benchmark once.

``pytest --benchmark --tiny`` measures tiny ones, which says nothing but tries everything from the clock to the page.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

measuring = tiny_only = False  # set by the conftest.py at the root, before it imports any benchmark


def sized(real: T, *, tiny: T) -> T:
    return real if measuring and not tiny_only else tiny

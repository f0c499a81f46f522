"""Damaged copies of a kernel's PTX, to see that a check finds the damage."""

from __future__ import annotations

import re
from collections.abc import Iterator


def without_each_barrier(ptx: str) -> Iterator[str]:
    """The text with one `bar.sync` removed, for each of them in turn."""
    for found in re.finditer(r"^[ \t]*bar\.sync[^\n]*\n", ptx, re.M):
        yield ptx[: found.start()] + ptx[found.end() :]


def with_ticket(ptx: str, semantics: str) -> str:
    """The text with its acquire-release atomics weakened, to "relaxed" for instance."""
    weaker, count = re.subn(r"\bacq_rel\b", semantics, ptx)
    if count == 0:
        raise ValueError("no acquire-release atomic to weaken")
    return weaker

"""What is measured: a case has contenders, and each of them knows how to tell that its result is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Run = Callable[[], Any]
Check = Callable[[Any], str | None]
OURS = "ours"


@dataclass(frozen=True)
class Contender:
    """A way to do the work.

    Attributes
    ----------
    name : str
        `OURS` for what this project brings.
    run : callable
    check : callable
        Says what is wrong with a result of `run`, or None.
    """

    name: str
    run: Run
    check: Check


@dataclass
class Case:
    """One problem, in memory.

    Attributes
    ----------
    contenders : list of Contender
        Ours is checked first, because others may read what it has appended to a cache.
    limits : dict
        What nothing can be faster than, as code of torch that moves as many bytes or makes as many products; the time
        of each is divided by the number beside it.
    missing : dict
        Contenders that are left out, and why.
    timing : {"events", "host"}
        By events of the GPU, or by the clock of the host where the host has a part in the work.
    """

    contenders: list[Contender]
    limits: dict[str, tuple[Run, int]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    timing: str = "events"


@dataclass(frozen=True)
class Plan:
    """A case that is not in memory yet; `facts` are its shape, for the report."""

    group: str
    name: str
    facts: dict[str, Any]
    make: Callable[[], Case]

"""Interleaved timing: machines are noisy, so contenders take turns in one run and are compared by their medians.

What they took is written into a `Report`, which becomes the tables in the terminal and docs/benchmarks.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from bench import sizes

Contender = Callable[[], object]
OURS, LIMIT = "ours", "limit"


def interleave(contenders: Mapping[str, Contender], rounds: int = 15, seconds: float = 4.0) -> dict[str, float]:
    """Median seconds of each contender. Slow ones stop after `seconds` of their own time, but not before three turns.

    A contender that takes longer than `seconds` for one run has two turns, and the run before all turns is the first;
    one that takes ten times as long has that run alone.
    Where nothing is measured each has one turn.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    if sizes.measuring:
        for name, run in contenders.items():
            first = seconds_of(run)
            if first > seconds:
                taken[name].append(first)
    names = list(contenders)
    for turn in range(rounds if sizes.measuring else 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # none always runs after the same one
            if not enough(taken[name], seconds):
                taken[name].append(seconds_of(contenders[name]))
    return {name: statistics.median(times) for name, times in taken.items()}


def seconds_of(run: Contender) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def enough(taken: Sequence[float], seconds: float) -> bool:
    """Whether a contender has been timed often enough for its speed."""
    return any(len(taken) >= turns and sum(taken) > many * seconds for turns, many in ((3, 1), (2, 2), (1, 10)))


def repeated(run: Contender, times: int) -> Contender:
    """Several calls in one turn, where one is too short to time."""

    def several() -> None:
        for _ in range(times):
            run()

    return several


def on_threads(count: int, run: Contender) -> Contender:
    def limited() -> None:
        torch.set_num_threads(count)
        run()

    return limited


@dataclass
class Row:
    """One line of a table, and the numbers behind it.

    Attributes
    ----------
    title, case : str
        Of the table and of the line.
    cells : dict
        What is shown, by column.
    values : dict
        Seconds (or bytes) of every contender; `LIMIT` among them is what nothing can be faster than. Empty for a line
        of words.
    over : str
        The contender that the others are shown as multiples of.
    ours : list of str
        Which contenders are of this project, so that a later run can tell whether they became worse.
    facts : dict
        What plots and other tables need to know: sizes, types, parts.
    """

    title: str
    case: str
    cells: dict[str, str]
    values: dict[str, float] = field(default_factory=dict)
    over: str = ""
    ours: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def amount(value: float, unit: str = "s") -> str:
    """Seconds or bytes for people.

    Examples
    --------
    >>> amount(0.00593), amount(12.0), amount(3 * 2**20, "bytes")
    ('5.93 ms', '12.0 s', '3.00 MiB')
    """
    steps = {"s": ((1, "s"), (1e-3, "ms"), (1e-6, "us")), "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))}
    size, name = next((step for step in steps[unit] if value >= step[0]), steps[unit][-1])
    return f"{three(value / size)} {name}"


def three(value: float) -> str:
    """Three digits, but all digits before the point, and two that count where a number is small.

    Examples
    --------
    >>> three(1.1634), three(12.34), three(1580.2), three(0.00834), three(0.0)
    ('1.16', '12.3', '1580', '0.0083', '0.00')
    """
    if 0 < abs(value) < 0.0995:
        return f"{value:.2g}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def significant(value: float) -> str:
    """Three significant digits, but all digits before the point: small misses are seen too.

    Examples
    --------
    >>> significant(0.9461), significant(2.0), significant(123.4), significant(1580.2)
    ('0.946', '2.00', '123', '1580')
    """
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:.0f}"


def lines_of(rows: Sequence[Row]) -> list[str]:
    """A table for the terminal."""
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    grid = [["", *columns], *([row.case, *(row.cells.get(c, "-") for c in columns)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in grid
    ]


class Target(NamedTuple):
    """A figure beside what is asked of it."""

    met: bool
    what: str
    asked: str
    value: float

    @property
    def measured(self) -> str:
        return significant(self.value)


@dataclass
class Report:
    """What a benchmark found: lines of tables, and targets that were met or missed."""

    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def add(self, title: str, case: str, cells: dict[str, str]) -> None:
        """A line of words, which no later run is compared with."""
        self.rows.append(Row(title, case, cells))

    def compare(
        self,
        title: str,
        case: str,
        values: Mapping[str, float],
        *,
        over: str,
        ours: Sequence[str] = (OURS,),
        unit: str = "s",
        cells: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> None:
        """A line of numbers: every contender as a multiple of `over`, then other `cells`. The report keeps them all."""
        shown = {over: amount(values[over], unit)}
        shown |= {name: three(value / values[over]) for name, value in values.items() if name != over}
        facts = facts | {"unit": unit}
        self.rows.append(Row(title, case, shown | dict(cells or {}), dict(values), over, list(ours), facts))

    def target(
        self,
        what: str,
        value: float,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Records a figure beside what it should be. A miss is shown, not raised: it is a fact about this machine."""
        if at_most is not None:
            self.targets.append(Target(value <= at_most, what, f"at most {at_most:g}", value))
        if at_least is not None:
            self.targets.append(Target(value >= at_least, what, f"at least {at_least:g}", value))

"""Interleaved timing: machines are noisy, so contenders take turns in one run and are compared by their medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from bench import sizes

Contender = Callable[[], object]


def interleave(contenders: Mapping[str, Contender], rounds: int = 15, seconds: float = 4.0) -> dict[str, float]:
    """Median seconds of each contender. Slow ones stop after `seconds` of their own time, but not before three turns.

    Where nothing is measured each has one turn.
    """
    if sizes.measuring:
        for run in contenders.values():
            run()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds if sizes.measuring else 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # none always runs after the same one
            run = contenders[name]
            if turn >= 3 and sum(taken[name]) > seconds:
                continue
            start = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def time_on_device(contenders: Mapping[str, Contender], rounds: int = 50) -> dict[str, float]:
    """Median seconds of each on a GPU by CUDA events, in turns, with the L2 cache flushed before every call."""
    flush = torch.empty(sizes.sized(256 << 20, tiny=1), dtype=torch.uint8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds if sizes.measuring else 1):
        for name, run in contenders.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) / 1e3 for name, pairs in events.items()}


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
class Table:
    """Rows of one kind of comparison, printed when the run ends."""

    title: str
    rows: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def add(self, case: str, cells: dict[str, str]) -> None:
        self.rows.append((case, cells))

    def lines(self) -> list[str]:
        columns = list(dict.fromkeys(name for _, cells in self.rows for name in cells))
        grid = [
            ["", *columns],
            *([case, *(cells.get(c, "-") for c in columns)] for case, cells in self.rows),
        ]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        return [
            "  ".join(
                cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in grid
        ]


@dataclass
class Report:
    """What a benchmark run found: tables, and targets that were met or missed."""

    tables: dict[str, Table] = field(default_factory=dict)
    targets: list[tuple[bool, str]] = field(default_factory=list)

    def add(self, title: str, case: str, cells: dict[str, str]) -> None:
        self.tables.setdefault(title, Table(title)).add(case, cells)

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
            self.targets.append((value <= at_most, f"{what}: {value:.2f}, at most {at_most:g}"))
        if at_least is not None:
            self.targets.append((value >= at_least, f"{what}: {value:.2f}, at least {at_least:g}"))

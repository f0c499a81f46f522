"""Times on a GPU: contenders take turns in one run, by events of the GPU or by the clock of the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from bench.gpu.case import Run


@dataclass(frozen=True)
class Timed:
    """Microseconds of a call: the median, and the quartiles around it."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, taken: list[float]) -> Timed:
        low, median, high = statistics.quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else taken * 3
        return cls(median, low, high, len(taken))


@dataclass(frozen=True)
class Clock:
    """How often everything is run, how long one contender may take in all, and how many bytes push out the L2 cache."""

    rounds: int = 50
    seconds: float = 3.0
    flushed: int = 256 << 20

    def times(self, runs: Mapping[str, Run], timing: str) -> dict[str, Timed]:
        """Microseconds of each. All have run before, so that nothing is compiled here."""
        return self._by_events(runs) if timing == "events" else self._by_host(runs)

    def _by_events(self, runs: Mapping[str, Run]) -> dict[str, Timed]:
        """Between two events of the GPU, with the L2 cache flushed before every call.

        The flush also gives the host time to queue the call, so that short kernels do not wait for their launch.
        """
        flush = torch.empty(self.flushed, dtype=torch.uint8, device="cuda")
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(self.rounds):
            events = {}
            for name in self._in_turn(taken, turn):
                events[name] = start, end = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                flush.zero_()
                start.record()
                runs[name]()
                end.record()
            torch.cuda.synchronize()
            for name, (start, end) in events.items():
                taken[name].append(1e3 * start.elapsed_time(end))
        return {name: Timed.of(each) for name, each in taken.items()}

    def _by_host(self, runs: Mapping[str, Run]) -> dict[str, Timed]:
        """From the call until the GPU has done everything."""
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(self.rounds):
            for name in self._in_turn(taken, turn):
                torch.cuda.synchronize()
                start = time.perf_counter()
                runs[name]()
                torch.cuda.synchronize()
                taken[name].append(1e6 * (time.perf_counter() - start))
        return {name: Timed.of(each) for name, each in taken.items()}

    def _in_turn(self, taken: Mapping[str, list[float]], turn: int) -> list[str]:
        """Who runs in this turn, in an order that changes. Slow ones stop early, but not before three turns."""
        names = list(taken)
        names = names[turn % len(names) :] + names[: turn % len(names)]
        return [name for name in names if turn < 3 or sum(taken[name]) < 1e6 * self.seconds]

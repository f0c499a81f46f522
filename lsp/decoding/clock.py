"""Where the time of decoding goes: the model, the LM head with what is computed from it, and the rest on the host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


class Clock:
    """Seconds by part. On a GPU by events that are read at the end, so that nothing waits for them before."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.on_gpu = device is not None and device.type == "cuda"
        self._seconds = dict.fromkeys(("model", "head"), 0.0)
        self._total = 0.0  # of the loop, without what its caller does between two passes
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def each(self, passes: Iterator[T]) -> Iterator[T]:
        """The same passes; the time that each of them takes is counted."""
        while True:
            start = time.perf_counter()
            try:
                out = next(passes)
            except StopIteration:
                return
            self._total += time.perf_counter() - start
            yield out

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Counts what happens inside as time of `part`."""
        if self.on_gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((part, begin, end))
        else:
            start = time.perf_counter()
            yield
            self._seconds[part] += time.perf_counter() - start

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of every part so far: ``model``, ``head``, and ``host``, which is all else."""
        if self._events:
            torch.cuda.synchronize()
            for part, begin, end in self._events:
                self._seconds[part] += begin.elapsed_time(end) / 1e3
            self._events.clear()
        return {**self._seconds, "host": max(0.0, self._total - sum(self._seconds.values()))}

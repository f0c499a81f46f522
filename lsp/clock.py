"""Where the time of decoding goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds by part. On a GPU by events that are read at the end, so that nothing waits for them before."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.on_gpu = device is not None and device.type == "cuda"
        self._seconds = dict.fromkeys(("model", "head", "host"), 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._open: list[str] = []  # parts on the host that have begun

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Counts what happens inside as time of `part`, and not of the part around it."""
        if self.on_gpu and part != "host":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((part, begin, end))
        else:
            start = time.perf_counter()
            self._open.append(part)
            yield
            self._open.pop()
            taken = time.perf_counter() - start
            self._seconds[part] += taken
            if self._open:
                self._seconds[self._open[-1]] -= taken

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of every part so far."""
        if self._events:
            torch.cuda.synchronize()
            for part, begin, end in self._events:
                self._seconds[part] += begin.elapsed_time(end) / 1e3
            self._events.clear()
        return dict(self._seconds)

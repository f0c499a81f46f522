"""Stand-ins for the functions of `torch.cuda` while a virtual GPU is in use.

Everything runs at once and in order, so streams differ in name only, events are points in the time of this process, and
there is nothing to wait for. Graphs cannot be captured.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from .devices import Device

MEMORY = 1 << 34  # bytes that the virtual GPU says it has


class Stream:
    """A name for an order of launches."""

    _numbers = itertools.count(1)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = next(self._numbers)

    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        pass


class Event:
    """A point in the time of this process, not of a GPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.seconds = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        return 1e3 * (end.seconds - self.seconds)


class Cuda:
    """What `torch.cuda` has while a virtual GPU is in use."""

    def __init__(self, device: Device) -> None:
        self.properties = device
        self.current = Stream()

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        before, self.current = self.current, stream or self.current
        try:
            yield
        finally:
            self.current = before

    def replacements(self) -> dict[str, Any]:
        """By the name of what they replace in `torch.cuda`."""
        return {
            "Event": Event,
            "Stream": Stream,
            "_lazy_init": lambda: None,
            "current_device": lambda: 0,
            "current_stream": lambda device=None: self.current,
            "device": lambda device: nullcontext(),
            "device_count": lambda: 1,
            "get_device_capability": lambda device=None: (self.properties.major, self.properties.minor),
            "get_device_name": lambda device=None: f"virtual {self.properties.name}",
            "get_device_properties": lambda device=None: self.properties,
            "get_per_process_memory_fraction": lambda device=None: 1.0,
            "is_available": lambda: True,
            "is_current_stream_capturing": lambda: False,
            "mem_get_info": lambda device=None: (MEMORY, MEMORY),
            "stream": self.stream,
            "synchronize": lambda device=None: None,
        }

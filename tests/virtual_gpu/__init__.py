"""An emulator of the PTX that Triton emits, with bounds and happens-before checks, and a driver that launches on it.

>>> run = launch(compiled, (8,), [x, out, 100], seed=3)
>>> run.reads(x).max()
1
"""

from typing import Any

from .errors import AccessError, PtxError, RaceError, UnsupportedPtx
from .launch import Launch, launch
from .traffic import Traffic

__all__ = ["AccessError", "Launch", "PtxError", "RaceError", "Traffic", "UnsupportedPtx", "launch", "virtual_gpu"]


def __getattr__(name: str) -> Any:
    """`virtual_gpu` needs Triton, which the emulator does not: it is imported when it is asked for."""
    if name != "virtual_gpu":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .gpu import virtual_gpu

    return virtual_gpu

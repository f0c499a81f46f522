"""An emulator of the PTX that Triton emits, with bounds and happens-before checks.

>>> run = launch(compiled, (8,), [x, out, 100], seed=3)
>>> run.reads(x).max()
1
"""

from .errors import AccessError, PtxError, RaceError, UnsupportedPtx
from .launch import Launch, launch
from .traffic import Traffic

__all__ = ["AccessError", "Launch", "PtxError", "RaceError", "Traffic", "UnsupportedPtx", "launch"]

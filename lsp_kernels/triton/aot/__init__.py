"""Compile Triton kernels for named GPUs on a machine that has none, and read the result. A tool of this repository.

`compile_kernel` lowers a ``@triton.jit`` function to machine code for one of `TARGETS` and returns a `Compiled`, which
knows its assembly text, registers, spills, shared memory, the widest global load and an occupancy estimate.
`lower_kernel` stops at TTIR, which `fingerprint` hashes, so that stored facts can be recognised as stale.

`builds` lists what the launchers of this package make Triton compile; `report` writes ``docs/targets``. Both import the
kernels and therefore Triton; this package itself imports Triton on first use only. Nothing here launches a kernel,
asks for a GPU, or decides which spills or widths are acceptable.
"""

from .compile import Options, compile_kernel, fingerprint, lower_kernel
from .facts import Compiled, Resources
from .targets import TARGETS, Target, occupancy, target

__all__ = [
    "TARGETS",
    "Compiled",
    "Options",
    "Resources",
    "Target",
    "compile_kernel",
    "fingerprint",
    "lower_kernel",
    "occupancy",
    "target",
]

"""The GPU architectures that kernels are compiled for, with the limits that decide how many warps fit a processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KIB = 1024
SIMDS = 4  # register files of an SM, a CU (gfx9) or a WGP (gfx11, gfx12)


@dataclass(frozen=True)
class Target:
    """A GPU architecture and the limits of one of its processors, which has four register files."""

    name: str
    backend: str  # "cuda" or "hip"
    warp_size: int
    shared_limit: int  # bytes that one program may use
    shared_total: int  # bytes that the programs of one processor share
    shared_reserved: int  # bytes that the system takes from each program
    registers: int  # per lane of one register file
    register_granularity: int  # registers are allocated in multiples of this
    max_warps: int  # per register file
    max_blocks: int  # per processor

    @property
    def arch(self) -> int | str:
        """The architecture as Triton's backends spell it: 90 or "gfx942"."""
        return int(self.name.removeprefix("sm_")) if self.backend == "cuda" else self.name


def _nvidia(name: str, shared_kib: int, max_warps: int, max_blocks: int) -> Target:
    total = shared_kib * KIB
    return Target(name, "cuda", 32, total - KIB, total, KIB, 512, 8, max_warps, max_blocks)


def _cdna(name: str, shared_kib: int) -> Target:
    total = shared_kib * KIB
    return Target(name, "hip", 64, total, total, 0, 512, 8, 8, 32)


def _rdna(name: str) -> Target:
    return Target(name, "hip", 32, 64 * KIB, 128 * KIB, 0, 1536, 24, 16, 32)


TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        _nvidia("sm_80", 164, 16, 32),
        _nvidia("sm_86", 100, 12, 16),
        _nvidia("sm_89", 100, 12, 24),
        _nvidia("sm_90", 228, 16, 32),
        _nvidia("sm_100", 228, 16, 32),
        _nvidia("sm_120", 100, 12, 24),
        _cdna("gfx942", 64),
        _cdna("gfx950", 160),
        _rdna("gfx1100"),
        _rdna("gfx1201"),
    )
}


def target(name: str) -> Target:
    """The target of this name."""
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"Invalid target: expected one of {', '.join(TARGETS)}, got {name!r}") from None


def occupancy(target: Target, registers: int, shared: int, num_warps: int) -> float:
    """Estimate which fraction of a processor's warp slots such programs fill; 0.0 if not even one program fits.

    It considers registers, shared memory, warp and block slots, but not which register file each warp is given.

    Examples
    --------
    >>> occupancy(TARGETS["sm_90"], registers=64, shared=0, num_warps=8)
    0.5
    """
    granularity = target.register_granularity
    allocated = max(-(-registers // granularity) * granularity, granularity)
    slots = SIMDS * min(target.max_warps, target.registers // allocated)
    blocks = min(slots // num_warps, target.max_blocks)
    if shared > target.shared_limit:
        return 0.0
    if shared:
        blocks = min(blocks, target.shared_total // (shared + target.shared_reserved))
    return blocks * num_warps / (SIMDS * target.max_warps)

"""What can go wrong while PTX is parsed or executed. Each message names the instruction."""


class PtxError(Exception):
    """Base of everything that the emulator raises on purpose."""


class UnsupportedPtx(PtxError):
    """An opcode, modifier, type or operand form outside the emulator's tables."""


class AccessError(PtxError):
    """An access out of bounds, misaligned, or of memory that was never written."""


class RaceError(PtxError):
    """Two accesses, one of them a write, that nothing orders."""

"""What a register holds while an asynchronous instruction is going to write or still reads it: nothing to be used."""

from __future__ import annotations


class InFlight:
    """Has no values, so that every instruction that reads the register fails and is named."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"in flight ({self.what})"


WGMMA = InFlight("a wgmma that no wgmma.wait_group has waited for")
LOAD = InFlight("a tcgen05.ld that no tcgen05.wait::ld has waited for")

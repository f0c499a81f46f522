"""Damaged copies of a kernel's PTX, to see that a check finds the damage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

BARRIER = r"bar\.sync"
# What orders asynchronous copies and matrix instructions, and what makes and ends the objects that they need.
ASYNCHRONOUS = (
    r"cp\.async\.(?:commit|wait)_group|fence\.proxy\.async|wgmma\.(?:fence|commit_group|wait_group)"
    r"|tcgen05\.(?:wait|commit|relinquish_alloc_permit|dealloc)|mbarrier\.(?:init|inval)"
    r"|@!complete bra"  # of a loop around mbarrier.try_wait
)
_ORDERED = (
    r"cp\.async\.(?:commit|wait)_group|(?:cp\.async|fence\.proxy\.async|bar\.sync|(?:ld|st)\.shared|ldmatrix|stmatrix)"
    r"|wgmma\.\w+|tcgen05\.(?:wait::\w+|\w+)|mbarrier\.\w+|@!complete bra"
)


@dataclass(frozen=True)
class Mutant:
    """PTX with one instruction removed or weakened, and that instruction's neighbours that order or are ordered."""

    text: str
    line: int
    damaged: str
    before: str
    after: str

    @property
    def context(self) -> tuple[str, str, str]:
        return self.before, self.damaged, self.after


def without_each(ptx: str, instructions: str) -> Iterator[Mutant]:
    """The text with one instruction removed, for each one whose opcode matches an expression."""
    for found in re.finditer(rf"^[ \t]*(?:@!?%p\d+ )?(?:{instructions})[^\n]*\n", ptx, re.M):
        yield _mutant(ptx, found, "")


def _mutant(ptx: str, found: re.Match[str], instead: str) -> Mutant:
    before, after = ptx[: found.start()], ptx[found.end() :]
    neighbours = _last(before), _first(after)
    return Mutant(before + instead + after, before.count("\n") + 1, _first(found[0]), *neighbours)


def _first(text: str) -> str:
    found = re.search(_ORDERED, text)
    return found[0] if found else ""


def _last(text: str) -> str:
    for line in reversed(text.splitlines()):
        if name := _first(line):
            return name
    return ""


def without_each_barrier(ptx: str) -> Iterator[str]:
    """The text with one `bar.sync` removed, for each of them in turn."""
    return (mutant.text for mutant in without_each(ptx, BARRIER))


def with_weaker_waits(ptx: str) -> Iterator[Mutant]:
    """The text with one wait that leaves one group more under way, for each wait for groups of copies or wgmmas."""
    for found in re.finditer(r"((?:cp\.async\.wait_group|wgmma\.wait_group\.sync\.aligned)\s+)(\d+);", ptx):
        yield _mutant(ptx, found, f"{found[1]}{int(found[2]) + 1};")


def with_wrong_descriptors(ptx: str) -> Iterator[str]:
    """The text with one matrix descriptor that starts 32 bytes further, or has another swizzle, for each constant."""
    for literal in sorted(set(re.findall(r"-?\d{18,19}\b", ptx))):
        bits = int(literal) % (1 << 64)
        for wrong in (bits + 2, bits ^ 3 << 62):
            signed = wrong - (1 << 64) if literal[0] == "-" else wrong
            yield re.sub(rf"(?<![\d-]){literal}\b", str(signed), ptx)


def with_ticket(ptx: str, semantics: str) -> str:
    """The text with its acquire-release atomics weakened, to "relaxed" for instance."""
    weaker, count = re.subn(r"\bacq_rel\b", semantics, ptx)
    if count == 0:
        raise ValueError("no acquire-release atomic to weaken")
    return weaker

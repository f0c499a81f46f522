"""Gates on compiled text: is the last-program-done ticket published and consumed in order?

The recipe: each program stores its partial results, *waits for them* (AMD), meets a barrier, and
one thread takes a ticket with an acquire-release atomic of GPU scope; what follows the ticket is
behind another barrier (and a cache invalidation on AMD) and reads with .cg loads on NVIDIA. The
recipe holds for every ticket of a kernel that takes several, one after the other.

Both checks follow every path of the control flow and return the violations as sentences, an empty
list when the recipe holds. They know nothing about addresses: that the ticket and the partial
results are the right words is for the emulator and the interpreter to show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tests.virtual_gpu.parse import Symbol, parse

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Line:
    """An instruction, where it may jump to, and whether the next one may follow it."""

    text: str
    jump: int | None = None
    falls: bool = True


def _walk(lines: Sequence[Line], start: State, step: Callable[[State, str], State]) -> None:
    """Apply `step` to each instruction in every state in which some path reaches it."""
    seen: set[tuple[int, State]] = set()
    todo: list[tuple[int, State]] = [(0, start)]
    while todo:
        at, state = todo.pop()
        if at >= len(lines) or (at, state) in seen:
            continue
        seen.add((at, state))
        line = lines[at]
        after = step(state, line.text)
        if line.falls:
            todo.append((at + 1, after))
        if line.jump is not None:
            todo.append((line.jump, after))


NO_BARRIER_BEFORE = "no barrier between the stores of partial results and the ticket"
NO_BARRIER_AFTER = "no barrier between the ticket and the loads after it"
NO_PROXY_FENCE = "no proxy fence between copies to shared memory and the tensor cores that read them"
NON_COHERENT = "a non-coherent (.nc) load"
NO_CG_LOAD = "no .cg load after the ticket"
NOT_GPU_SCOPE = "the ticket is not of GPU scope"
NOT_WAITED = "stores are not waited for before the barrier that publishes them"
NO_RELEASE = "no write-back of the caches before the ticket"
NO_ACQUIRE = "no invalidation of the caches after the ticket"
NO_INVALIDATE = "no invalidation of the first-level cache after the barrier that follows the ticket"


def _as_many_tickets(count: int, expected: int) -> list[str]:
    words = "one ticket" if expected == 1 else f"{expected} tickets"
    return [] if count == expected else [f"expected {words}, found {count} atomics"]


@dataclass(frozen=True)
class _Ptx:
    unpublished: bool = False  # a global store, and no barrier since
    unshared: bool = False  # the ticket, and no barrier since
    taken: int = 0  # tickets, up to here


def check_ptx(text: str, expected: int = 1) -> list[str]:
    """Violations of the recipe in the PTX of one kernel that takes so many tickets."""
    lines = _ptx_lines(text)
    tickets = [line.text for line in lines if _PTX_ATOMIC.match(line.text)]
    violations = _as_many_tickets(len(tickets), expected)
    violations += [f"the ticket is not acq_rel: {t}" for t in tickets if ".acq_rel." not in t]
    if any(not re.search(r"\.(?:gpu|sys)\.", ticket) for ticket in tickets):
        violations.append(NOT_GPU_SCOPE)
    if any(re.match(r"ld\.global\S*\.nc\b", line.text) for line in lines):
        violations.append(NON_COHERENT)
    found: set[str] = set()
    coherent: set[int] = set()  # tickets that a .cg load follows, before the next ticket

    def step(state: _Ptx, line: str) -> _Ptx:
        if line.startswith("st.global"):
            return replace(state, unpublished=True)
        if _PTX_BARRIER.match(line):
            return replace(state, unpublished=False, unshared=False)
        if _PTX_ATOMIC.match(line):
            if state.unpublished:
                found.add(NO_BARRIER_BEFORE)
            return replace(state, unshared=True, taken=min(state.taken + 1, len(tickets)))
        if line.startswith("ld.global"):
            if ".cg" in line.split()[0]:
                coherent.add(state.taken)
            if state.unshared:
                found.add(NO_BARRIER_AFTER)
        return state

    _walk(lines, _Ptx(), step)
    if not coherent.issuperset(range(1, len(tickets) + 1)):
        found.add(NO_CG_LOAD)
    return violations + sorted(found)


def check_fences(text: str) -> list[str]:
    """Violations of the rule that a proxy fence comes between a copy to shared memory and tensor cores that read it."""
    unfenced: set[str] = set()

    def step(landed: bool, line: str) -> bool:
        if line.startswith("cp.async.wait_group"):
            return True
        if line.startswith("fence.proxy.async"):
            return False
        if landed and line.startswith(("wgmma.mma_async", "tcgen05.mma")):
            unfenced.add(NO_PROXY_FENCE)
        return landed

    _walk(_ptx_lines(text), False, step)
    return sorted(unfenced)


_PTX_ATOMIC = re.compile(r"(?:atom|red)\.(?!shared)")
_PTX_BARRIER = re.compile(r"bar\.sync |barrier\.sync|bar\.cta\.sync")


def _ptx_lines(text: str) -> list[Line]:
    kernel = parse(text)
    lines = []
    for instruction in kernel.instructions:
        body = instruction.text.split(" ", 1)[1] if instruction.guard else instruction.text
        always = instruction.guard is None
        if instruction.family == "bra":
            (label,) = instruction.operands
            assert isinstance(label, Symbol)
            lines.append(Line(body, kernel.labels[label.name], falls=not always))
        else:
            lines.append(Line(body, falls=not (always and instruction.family in ("ret", "exit"))))
    return lines


@dataclass(frozen=True)
class _Family:
    """How a generation of AMD GPUs spells the parts of the recipe (regular expressions)."""

    stores_done: str
    loads_done: str
    publish_barrier: str
    consume_barrier: str
    write_back: str  # empty where a release needs none
    invalidate: tuple[str, ...]
    invalidate_after_barrier: str  # empty where a workgroup shares one first-level cache
    device_scope: str  # in the ticket; empty where it shows nothing


_GFX9 = _Family(
    stores_done=r"s_waitcnt .*vmcnt\(0\)",
    loads_done=r"s_waitcnt .*vmcnt\(0\)",
    publish_barrier=r"s_barrier",
    consume_barrier=r"s_barrier",
    write_back=r"buffer_wbl2 sc1",
    invalidate=(r"buffer_inv .*sc1",),
    invalidate_after_barrier="",
    device_scope="",
)
_GFX11 = _Family(
    stores_done=r"s_waitcnt_vscnt null, 0x0",
    loads_done=r"s_waitcnt .*vmcnt\(0\)",
    publish_barrier=r"s_barrier",
    consume_barrier=r"s_barrier",
    write_back="",
    invalidate=(r"buffer_gl1_inv", r"buffer_gl0_inv"),
    invalidate_after_barrier=r"buffer_gl0_inv",
    device_scope="",
)
_GFX12 = _Family(
    stores_done=r"s_wait_storecnt(?:_dscnt)? 0x0",
    loads_done=r"s_wait_loadcnt(?:_dscnt)? 0x0",
    publish_barrier=r"s_barrier_signal",
    consume_barrier=r"s_barrier_wait",
    write_back="",
    invalidate=(r"global_inv scope:SCOPE_(?:DEV|SYS)",),
    invalidate_after_barrier=r"global_inv scope:SCOPE_(?:SE|DEV|SYS)",
    device_scope=r"scope:SCOPE_(?:DEV|SYS)",
)
_FAMILIES = {"gfx9": _GFX9, "gfx11": _GFX11, "gfx12": _GFX12}


@dataclass(frozen=True)
class _Amd:
    in_flight: bool = False  # a store not waited for
    unpublished: bool = False  # a store that no barrier publishes yet
    barrier_too_early: bool = False  # a barrier came while a store was in flight
    written_back: bool = False  # caches written back and nothing stored since
    outstanding: bool = False  # the ticket has not returned
    stale: tuple[str, ...] = ()  # invalidations that the ticket still needs
    unshared: bool = False  # the ticket, and no barrier since
    cold: bool = False  # behind the ticket's barrier, first-level cache not invalidated


def check_amdgcn(text: str, arch: str, expected: int = 1) -> list[str]:
    """Violations of the recipe in the assembly, for a gfx9, gfx11 or gfx12 GPU, of a kernel with so many tickets."""
    names = [name for name in _FAMILIES if arch.startswith(name)]
    if not names:
        raise ValueError(f"unknown architecture {arch!r}, expected gfx9.., gfx11.. or gfx12..")
    family = _FAMILIES[names[0]]
    lines = _amd_lines(text)
    tickets = [line.text for line in lines if _AMD_ATOMIC.match(line.text)]
    violations = _as_many_tickets(len(tickets), expected)
    if any(not re.search(family.device_scope, ticket) for ticket in tickets):
        violations.append(NOT_GPU_SCOPE)
    found: set[str] = set()
    _walk(lines, _Amd(), lambda state, line: _amd_step(state, line, family, found))
    return violations + sorted(found)


_AMD_ATOMIC = re.compile(r"(?:global|buffer|flat)_atomic_")
_AMD_STORE = re.compile(r"(?:global|buffer|flat)_store_")
_AMD_LOAD = re.compile(r"(?:global|buffer|flat)_load_")


def _amd_step(state: _Amd, line: str, family: _Family, found: set[str]) -> _Amd:
    if _AMD_STORE.match(line):
        return replace(state, in_flight=True, unpublished=True, barrier_too_early=False, written_back=False)
    if _AMD_ATOMIC.match(line):
        return _amd_ticket(state, family, found)
    if _AMD_LOAD.match(line):
        if state.unshared:
            found.add(NO_BARRIER_AFTER)
        if state.stale:
            found.add(NO_ACQUIRE)
        if state.cold:
            found.add(NO_INVALIDATE)
        return state
    if re.match(family.stores_done, line):
        state = replace(state, in_flight=False)
    if re.match(family.loads_done, line):
        state = replace(state, outstanding=False)
    if family.write_back and re.match(family.write_back, line):
        state = replace(state, written_back=True)
    if re.match(family.publish_barrier, line):
        early = state.unpublished and state.in_flight
        state = replace(state, unpublished=early, barrier_too_early=early)
    if re.match(family.consume_barrier, line) and state.unshared:
        if state.stale:
            found.add(NO_ACQUIRE)
        state = replace(state, unshared=False, cold=bool(family.invalidate_after_barrier))
    elif family.invalidate_after_barrier and re.match(family.invalidate_after_barrier, line):
        state = replace(state, cold=False)
    if not state.outstanding:
        state = replace(state, stale=tuple(s for s in state.stale if not re.match(s, line)))
    return state


def _amd_ticket(state: _Amd, family: _Family, found: set[str]) -> _Amd:
    if state.unpublished:
        found.add(NOT_WAITED if state.barrier_too_early else NO_BARRIER_BEFORE)
    if state.in_flight:
        found.add(NOT_WAITED)
    if family.write_back and not state.written_back:
        found.add(NO_RELEASE)
    return replace(state, outstanding=True, stale=family.invalidate, unshared=True)


_AMD_LABEL = re.compile(r"(\.?\w+):\s*$")
_AMD_BRANCH = re.compile(r"s_(?:c)?branch\w*\s+(\.?\w+)")


def _amd_lines(text: str) -> list[Line]:
    """The instructions up to the kernel's descriptor, with branch targets resolved."""
    body: list[str] = []
    labels: dict[str, int] = {}
    for raw in re.split(r"^\s*\.section\s+\.rodata", text, maxsplit=1, flags=re.M)[0].splitlines():
        line = raw.split(";")[0].strip()
        if label := _AMD_LABEL.match(line):
            labels[label[1]] = len(body)
        elif re.match(r"[a-z]\w*(?:\s|$)", line):
            body.append(line)
    lines = []
    for line in body:
        if branch := _AMD_BRANCH.match(line):
            lines.append(Line(line, labels[branch[1]], falls=line.startswith("s_cbranch")))
        else:
            lines.append(Line(line, falls=not line.startswith("s_endpgm")))
    return lines

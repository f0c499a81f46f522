"""Instructions in which the threads of a warp exchange values.

All 32 lanes must take part (membermask -1), which is how Triton uses them; a subset is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import Array
from .errors import PtxError, UnsupportedPtx
from .operands import Operands
from .parse import Immediate, Instruction, Operand, Pair
from .table import Mask, Modifiers, Step, opcode

if TYPE_CHECKING:
    from .cta import Cta

WARP = 32


def whole_warps(mask: Mask) -> None:
    if mask is not None:
        lanes = mask.reshape(-1, WARP)
        if (lanes.any(1) != lanes.all(1)).any():
            raise PtxError("a .sync instruction executed by part of a warp")


def warps_of(cta: Cta, mask: Mask) -> Array:
    """The warps all of whose threads execute. A fence or wait of part of a warp counts for no thread."""
    if mask is None:
        return np.arange(cta.threads.size // WARP)
    return np.nonzero(mask.reshape(-1, WARP).all(1))[0]


def _all_lanes(operand: Operand, operands: Operands) -> Callable[[Cta, Mask], None]:
    """A check that whole warps execute and that the membermask names all lanes."""
    if operand == Immediate(-1):
        return lambda cta, mask: whole_warps(mask)
    members = operands.source(operand, "b32")

    def check(cta: Cta, mask: Mask) -> None:
        whole_warps(mask)
        named = members(cta) if mask is None else members(cta)[mask]
        if (named != np.uint32(0xFFFFFFFF)).any():
            raise UnsupportedPtx("membermask of part of a warp")

    return check


def _shuffled_lane(mode: str, lane: Array, amount: Array, control: Array) -> tuple[Array, Array]:
    """Source lane and whether it lies in range, by the rules of shfl.sync."""
    segment = (control >> 8) & 0x1F
    limit = (lane & segment) | (control & 0x1F & ~segment)
    amount = amount & 0x1F
    if mode == "up":
        source = lane - amount
        inside = source >= limit
    elif mode == "down":
        source = lane + amount
        inside = source <= limit
    elif mode == "bfly":
        source = lane ^ amount
        inside = source <= limit
    else:
        source = (lane & segment) | (amount & ~segment)
        inside = source <= limit
    return np.where(inside, source, lane), inside


def _selection(
    mode: str, amount: Operand, control: Operand, operands: Operands
) -> Callable[[Cta], tuple[Array, Array]]:
    """The source of each thread and whether it lies in range; constant if literals say so."""
    lane = np.arange(operands.threads) % WARP
    first = np.arange(operands.threads) - lane

    def select(by: Array, bounds: Array) -> tuple[Array, Array]:
        source, inside = _shuffled_lane(mode, lane, by, bounds)
        return first + source, inside

    if isinstance(amount, Immediate) and isinstance(control, Immediate):
        fixed = select(np.array(amount.value), np.array(control.value))
        return lambda cta: fixed
    by, bounds = operands.source(amount, "u32"), operands.source(control, "u32")
    return lambda cta: select(by(cta).astype(np.int64), bounds(cta).astype(np.int64))


@opcode("shfl.sync.(?P<mode>up|down|bfly|idx).b32")
def _shfl(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, value, amount, control, members = instruction.operands
    predicate = None
    if isinstance(result, Pair):
        predicate, result = operands.target(result.second, "pred"), result.first
    put, a = operands.target(result, "b32"), operands.source(value, "b32")
    select = _selection(found["mode"], amount, control, operands)
    check = _all_lanes(members, operands)

    def step(cta: Cta, mask: Mask) -> None:
        check(cta, mask)
        source, inside = select(cta)
        put(cta, a(cta)[source], mask)
        if predicate is not None:
            predicate(cta, inside, mask)

    return step


def _reduction(name: str, type_name: str, nan: bool) -> np.ufunc:
    if name in ("add", "and", "or", "xor"):
        return {
            "add": np.add,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }[name]
    if type_name == "f32" and not nan:
        return np.fmin if name == "min" else np.fmax
    return np.minimum if name == "min" else np.maximum


@opcode(
    "redux.sync.(?P<name>add|min|max).(?P<type>[su]32)",
    "redux.sync.(?P<name>and|or|xor).(?P<type>b32)",
    "redux.sync.(?P<name>min|max)(?P<nan>.NaN)?.(?P<type>f32)",
)
def _redux(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, value, members = instruction.operands
    put, a = operands.target(result, found["type"]), operands.source(value, found["type"])
    check = _all_lanes(members, operands)
    function = _reduction(found["name"], found["type"], bool(found.get("nan")))

    def step(cta: Cta, mask: Mask) -> None:
        check(cta, mask)
        values = a(cta)
        reduced = function.reduce(values.reshape(-1, WARP), axis=1, dtype=values.dtype)
        put(cta, np.repeat(reduced, WARP), mask)

    return step


@opcode("vote.sync.(?P<name>all|any|uni).pred", "vote.sync.(?P<name>ballot).b32")
def _vote(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, value, members = instruction.operands
    name = found["name"]
    put = operands.target(result, "b32" if name == "ballot" else "pred")
    a, check = operands.source(value, "pred"), _all_lanes(members, operands)
    weights = np.uint32(1) << np.arange(WARP, dtype=np.uint32)

    def step(cta: Cta, mask: Mask) -> None:
        check(cta, mask)
        votes = a(cta).reshape(-1, WARP)
        if name == "ballot":
            outcome = np.where(votes, weights, np.uint32(0)).sum(1, dtype=np.uint32)
        elif name == "uni":
            outcome = votes.all(1) | ~votes.any(1)
        else:
            outcome = votes.all(1) if name == "all" else votes.any(1)
        put(cta, np.repeat(outcome, WARP), mask)

    return step


@opcode("match.any.sync.b32")
def _match(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    result, value, members = instruction.operands
    put, a = operands.target(result, "b32"), operands.source(value, "b32")
    check = _all_lanes(members, operands)
    weights = np.uint32(1) << np.arange(WARP, dtype=np.uint32)

    def step(cta: Cta, mask: Mask) -> None:
        check(cta, mask)
        values = a(cta).reshape(-1, WARP)
        same = values[:, :, None] == values[:, None, :]
        put(cta, np.where(same, weights, np.uint32(0)).sum(2, dtype=np.uint32).reshape(-1), mask)

    return step


@opcode("elect.sync")
def _elect(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """Elects lane 0; PTX leaves the choice open, so no kernel may depend on it."""
    results, members = instruction.operands
    if not isinstance(results, Pair):
        raise UnsupportedPtx("elect.sync without a predicate")
    put, leader = operands.target(results.first, "b32"), operands.constant(0, "b32")
    predicate, check = operands.target(results.second, "pred"), _all_lanes(members, operands)
    elected = np.arange(operands.threads) % WARP == 0

    def step(cta: Cta, mask: Mask) -> None:
        check(cta, mask)
        put(cta, leader(cta), mask)
        predicate(cta, elected, mask)

    return step


@opcode("bar.warp.sync")
def _warp_barrier(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    (members,) = instruction.operands
    return _all_lanes(members, operands)

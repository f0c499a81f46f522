"""What a trace says of a pass of the longest stable prefix: which of the rule's steps decided, with their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from lsp_kernels import PrefixRule

if TYPE_CHECKING:
    from lsp.tracing.records import PassRecord, RuleRecord


def of_prefix(seen: PassRecord, rule: PrefixRule, islands: float | None) -> str:
    """Why this prefix, or why something else: the first margin is under the floor."""
    steps = seen.rule
    if steps is None:
        return ""
    first = infinite_if_none(seen.margins[0])
    if rule.floor is None or reaches(first, rule.floor):
        return ", ".join([candidate(steps, rule.floor), *cuts(steps, seen)]) + "."
    under = f"The first margin {number(first)} is under the floor {number(rule.floor)}:"
    if islands is not None and any(reaches(margin, islands) for margin in margins_of_chosen(seen)):
        found = count(runs(seen.chosen), "stable island")
        return f"{under} {found} with margins of at least {number(islands)} instead."
    if seen.chosen[0] != seen.masks[0]:
        return f"{under} the largest margin instead, as there is no island."
    return f"{under} forced to commit {'the first token' if len(seen.chosen) == 1 else f'{len(seen.chosen)} tokens'}."


def of_stable(seen: PassRecord, passes: int, islands: float | None, stuck: str) -> str:
    """Why these masks, where only tokens count that were the best ones in the last passes."""
    only = f"tokens that were the best ones in {passes} passes"
    n = len(seen.chosen)
    if seen.chosen != seen.masks[:n]:
        if stuck == "best" and n == 1:
            (margin,) = margins_of_chosen(seen)
            if islands is None or seen.index < passes - 1 or not reaches(margin, islands):
                return f"The largest margin is taken, as there is no island of {only}."
            return f"1 stable island of {only}, a sure stop or, without one, the largest margin."
        return f"{count(runs(seen.chosen), 'stable island')} of {only}, or a sure stop."
    return f"A prefix of {n} {only}." if n > 1 else f"The first mask is taken: no prefix of {only} is longer."


def candidate(steps: RuleRecord, floor: float | None) -> str:
    """How the candidate length L′ came about."""
    length = steps.candidate
    if floor is not None:
        end = ", all masks" if length == steps.n else ", as many as hi allows" if length == steps.hi else ""
        return f"The run of margins at or above the floor {number(floor)} has length {length} (L′){end}"
    bounds = f"Between lo = {steps.lo} and hi = {steps.hi}"
    if steps.tau is not None:
        return f"{bounds}, the longest run above a threshold has length {length} (L′), with τ = {number(steps.tau)}"
    return (
        f"{bounds}: length {length} (L′), all masks"
        if length == steps.n
        else f"{bounds} no threshold ends a run, so L′ = hi"
    )


def cuts(steps: RuleRecord, seen: PassRecord) -> list[str]:
    """What made the committed length L differ from the candidate."""
    out = []
    target, final = steps.candidate, steps.length
    if steps.snap is not None:
        out.append(
            "and it ends at a delimiter" if steps.snap == target else f"the last delimiter cuts it to {steps.snap}"
        )
        target = steps.snap
    elif steps.window is not None:
        out.append(f"no delimiter within {steps.window}")
        if final < target and not steps.stopped:
            return [*out, f"so the minimum of {final} remains"]
    if final < target and steps.stopped:
        out.append(f"a stop cuts it to {final}")
    if final > target:
        out.append(f"raised to the minimum of {final}")
    if len(seen.chosen) > final:
        out.append("and a sure stop further right")
    return out


def margins_of_chosen(seen: PassRecord) -> list[float]:
    by_position = dict(zip(seen.masks_in_pass, seen.margins, strict=True))
    return [infinite_if_none(by_position[position]) for position in seen.chosen]


def runs(positions: Iterable[int]) -> int:
    """How many runs of neighbours sorted positions form."""
    inside = sorted(positions)
    return sum(i == 0 or position != inside[i - 1] + 1 for i, position in enumerate(inside))


def reaches(margin: float, level: float) -> bool:
    """Compared in float32, as the rule does."""
    return margin >= float(np.float32(level))


def infinite_if_none(value: float | None) -> float:
    """A recorded number; None stands for infinity."""
    return math.inf if value is None else value


def number(value: float) -> str:
    """A margin as short as it can be read."""
    if math.isinf(value):
        return "∞"
    if value == int(value):
        return str(int(value))
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def count(n: int, one: str) -> str:
    return f"{n} {one}" if n == 1 else f"{n} {one}s"

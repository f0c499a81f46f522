"""The passes of a trace without what a reader can work out: for files and pages.

Positions are ranges, ``[begin, end, begin, end, ...]``. Best tokens, margins and confidences are written where they
differ from what the position had last. Masks that follow from the pass before are left out. Nothing is lost:
``expand(shorten(steps)) == steps``. `assets/expand.js` is `expand` for the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from lsp.tracing.records import PassRecord, RuleRecord

VALUES = ("tokens", "margins", "confidence")
LARGEST_POSITION, MOST_VALUES = 2**20, 2**25
"""What a trace may hold. A file that says otherwise is refused before its ranges are written out."""


def shorten(steps: Iterable[PassRecord]) -> list[dict[str, Any]]:
    """Passes as JSON objects, each to be read after the ones before."""
    return list(map(Shortener(), steps))


class Shortener:
    """`shorten` for passes that come one after the other: the object of each, as soon as it is there."""

    def __init__(self) -> None:
        self._before: PassRecord | None = None
        self._known: dict[str, dict[int, Any]] = {name: {} for name in VALUES}

    def __call__(self, step: PassRecord) -> dict[str, Any]:
        before, self._before = self._before, step
        line = {**vars(step), "rule": None if step.rule is None else asdict(step.rule)}
        for name in VALUES:
            line[name] = _news(self._known[name], step.masks_in_pass, getattr(step, name))
        line["masks"] = len(step.masks) if _begins_with(step.masks_in_pass, step.masks) else to_ranges(step.masks)
        line["masks_in_pass"] = to_ranges(step.masks_in_pass)
        if before is not None and step.masks_in_pass == following(before, step.end):
            del line["masks_in_pass"]
        line["chosen"] = to_ranges(step.chosen)
        if step.rule is not None and step.rule.prefix_min == running_minimum(step.margins, len(step.rule.prefix_min)):
            line["rule"]["prefix_min"] = len(step.rule.prefix_min)
        return {key: value for key, value in line.items() if key not in VALUES or value is not None}


def expand(lines: Iterable[dict[str, Any]]) -> list[PassRecord]:
    """The passes that `shorten` has made objects of."""
    out: list[PassRecord] = []
    known: dict[str, dict[int, Any]] = {name: {} for name in VALUES}
    values = 0
    for line in lines:
        given = dict(line)
        check_position(line["end"])
        here = to_positions(line["masks_in_pass"]) if "masks_in_pass" in line else following(out[-1], line["end"])
        values += len(here)
        if values > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES} values")
        masks = line["masks"]
        given["masks_in_pass"] = here
        given["masks"] = here[:masks] if isinstance(masks, int) else to_positions(masks)
        for name in VALUES:
            known[name].update(_pairs(*line.get(name, ([], []))))
            given[name] = [known[name][position] for position in here]
        given["chosen"] = to_positions(line["chosen"])
        rule = None if line["rule"] is None else RuleRecord(**line["rule"])
        if rule is not None and isinstance(rule.prefix_min, int):
            rule = replace(rule, prefix_min=running_minimum(given["margins"], rule.prefix_min))
        out.append(PassRecord(**given | {"rule": rule}))
    return out


def following(before: PassRecord, end: int) -> list[int]:
    """The masks that a pass up to `end` usually has: those of the pass before that are left, and new ones behind."""
    taken = set(before.chosen)
    left = [position for position in before.masks_in_pass if position not in taken and position < end]
    return [*left, *range(before.end, end)]


def running_minimum(margins: Sequence[float | None], n: int) -> list[float | None]:
    """The smallest of the first 1, 2, … n margins; None stands for infinity."""
    out: list[float | None] = []
    lowest = math.inf
    for margin in margins[:n]:
        lowest = min(lowest, math.inf if margin is None else margin)
        out.append(None if math.isinf(lowest) else lowest)
    return out


def to_ranges(positions: Iterable[int]) -> list[int]:
    """Positions as the begins and ends of runs, in their order.

    Examples
    --------
    >>> to_ranges([3, 4, 5, 9, 2, 3])
    [3, 6, 9, 10, 2, 4]
    """
    out: list[int] = []
    for position in positions:
        if out and out[-1] == position:
            out[-1] += 1
        else:
            out += [position, position + 1]
    return out


def to_positions(ranges: Sequence[int]) -> list[int]:
    """The inverse of `to_ranges`."""
    out: list[int] = []
    for begin, end in zip(ranges[::2], ranges[1::2], strict=True):
        check_position(begin)
        check_position(end)
        out += range(begin, end)
        if len(out) > LARGEST_POSITION:
            raise ValueError(f"more than {LARGEST_POSITION} positions in a list")
    return out


def check_position(position: Any) -> None:
    if not isinstance(position, int) or not 0 <= position <= LARGEST_POSITION:
        raise ValueError(f"{position!r} where a position of at most {LARGEST_POSITION} is expected")


def _news(known: dict[int, Any], positions: Sequence[int], values: Sequence[Any]) -> list[list[Any]] | None:
    """What is new of a pass: positions and values. `known` then holds it."""
    pairs = zip(positions, values, strict=True)
    fresh = {position: value for position, value in pairs if position not in known or known[position] != value}
    known.update(fresh)
    return [to_ranges(fresh), [_short(value) for value in fresh.values()]] if fresh else None


def _pairs(ranges: Sequence[int], values: Sequence[Any]) -> Iterable[tuple[int, Any]]:
    return zip(to_positions(ranges), values, strict=True)


def _short(value: Any) -> Any:
    """A whole number without its decimal point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _begins_with(all_of_them: Sequence[int], first: Sequence[int]) -> bool:
    return list(all_of_them[: len(first)]) == list(first)

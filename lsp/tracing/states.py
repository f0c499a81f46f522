"""What every position of a trace is in a pass, as `assets/state.js` tells it for the page."""

from __future__ import annotations

from typing import Literal, NamedTuple

from lsp.tracing.records import PassRecord, Trace

State = Literal["frozen", "front", "given", "now", "cut", "masked", "dropped"]


class Cell(NamedTuple):
    """A position from the first mask on: its state, its token (None if no pass has covered it), and for masks the value
    that the scheduler goes by (None for infinity, and for what is no open mask of the pass)."""

    state: State
    token: int | None
    value: float | None
    open: bool


def cells(trace: Trace, k: int) -> list[Cell]:
    """All positions in pass k, counted from 0."""
    first, step = len(trace.prompt), trace.steps[k]
    ends = ends_of(trace)
    committed = {at: -1 for at, number in enumerate(trace.committed_in) if number < 0}
    written = {at: trace.tokens[at] for at in committed}
    for index, each in enumerate(trace.steps[: k + 1]):
        for position, token in zip(each.chosen, each.written, strict=True):
            committed[position - first], written[position - first] = index, token
    values = step.confidence if trace.measure == "confidence" else step.margins
    ranks = {position - first: rank for rank, position in enumerate(step.masks_in_pass)}
    candidate = step.rule.candidate if step.rule is not None and not left_the_prefix(trace, step) else 0
    out = []
    for at in range(trace.max_new_tokens):
        rank, number = ranks.get(at), committed.get(at)
        predicted = None if rank is None else step.tokens[rank]
        state: State = "masked"
        if at >= ends[k + 1]:
            state = "dropped"
        elif number is not None and number < k:
            state = "frozen" if first + at < step.frozen else "given" if number < 0 else "front"
        elif number == k:
            state = "now"
        elif rank is not None and rank < candidate:
            state = "cut"
        out.append(Cell(state, written.get(at, predicted), None if rank is None else values[rank], rank is not None))
    return out


def ends_of(trace: Trace) -> list[int]:
    """Where the sequence ends before every pass, and after the last one. A stop drops nothing before a given token."""
    tail = max((at + 1 for at, number in enumerate(trace.committed_in) if number < 0), default=0)
    stops = set(trace.stops) if trace.options.get("stop_early") is not False else set()
    out = [trace.max_new_tokens]
    for step in trace.steps:
        found = [position for position, token in zip(step.chosen, step.written, strict=True) if token in stops]
        out.append(min([out[-1], *(max(position - len(trace.prompt) + 1, tail) for position in found)]))
    if trace.steps:
        out[-1] = min(out[-1], len(trace.tokens))
    return out


def was_stopped(trace: Trace) -> bool:
    """Whether masks are left, which have the number of passes where others have the pass that committed them."""
    return any(number >= trace.passes for number in trace.committed_in)


def left_the_prefix(trace: Trace, step: PassRecord) -> bool:
    """Whether the first margin is under the floor, and something else than the first mask was committed."""
    if trace.level is None or not step.masks:
        return False
    first = step.margins[0]
    return first is not None and first < trace.level and step.masks[0] not in step.chosen

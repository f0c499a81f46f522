"""What a run found, as JSON to send in and as Markdown to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.gpu.case import OURS
from bench.gpu.clock import Timed
from bench.gpu.run import Outcome

FORMAT = "lsp bench-gpu 1"
WHOLE = "after all cases"


def as_json(machine: dict[str, Any], outcomes: Sequence[Outcome], ended: str = WHOLE) -> dict[str, Any]:
    """Everything, in plain values; `ended` says whether these are all cases, and if not why."""
    return {
        "format": FORMAT,
        "machine": machine,
        "ended": ended,
        "right": not any(outcome.wrong for outcome in outcomes),
        "cases": [case_of(outcome) for outcome in outcomes],
    }


def case_of(outcome: Outcome) -> dict[str, Any]:
    """Microseconds, and ratios: of the others to ours, and of ours to the limit."""
    found: dict[str, Any] = {"group": outcome.plan.group, "case": outcome.plan.name, **outcome.plan.facts}
    if outcome.wrong:
        return found | {"wrong": outcome.wrong}
    found |= {"skipped": outcome.skipped}
    if not outcome.is_timed:
        return found
    ours = outcome.times[OURS].median
    found["times"] = {
        name: {**microseconds(timed), "of ours": rounded(timed.median / ours)} for name, timed in outcome.times.items()
    }
    if outcome.limit is not None:
        limit = {**microseconds(outcome.limit), "by": outcome.limited_by}
        found["limit"] = {**limit, "ours of it": rounded(ours / outcome.limit.median)}
    return found


def microseconds(timed: Timed) -> dict[str, Any]:
    values = {"median us": timed.median, "low us": timed.low, "high us": timed.high}
    return {name: rounded(value) for name, value in values.items()} | {"rounds": timed.rounds}


def rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def as_markdown(report: dict[str, Any]) -> str:
    """The same as `as_json`, one table per group."""
    return "\n".join(lines_of(report)) + "\n"


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    machine, cases = report["machine"], report["cases"]
    yield f"# bench-gpu: {machine['gpu']}"
    yield ""
    yield from (f"- {name}: {value}" for name, value in machine.items())
    yield ""
    yield "Ours in microseconds and as a multiple of the limit; the others as multiples of ours: above 1 is slower."
    yield "A result that is wrong has no time."
    if report["ended"] != WHOLE:
        yield from ["", f"**Not all cases: {report['ended']}.**"]
    for group in dict.fromkeys(case["group"] for case in cases):
        yield from ["", f"## {group}", ""]
        yield from table_of([case for case in cases if case["group"] == group])


def table_of(cases: list[dict[str, Any]]) -> Iterator[str]:
    timed = [case for case in cases if "times" in case]
    others = [name for name in dict.fromkeys(name for case in timed for name in case["times"]) if name != OURS]
    limited = any("limit" in case for case in timed)
    columns = ["", "ours, us", *(["of the limit", "limited by"] if limited else []), *others]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for case in cases:
        yield "| " + " | ".join(cells_of(case, others, limited)) + " |"
    remarks = {f"{name}: {why}" for case in cases for name, why in case.get("skipped", {}).items()}
    if remarks:
        yield from ["", "Not timed:", "", *(f"- {remark}" for remark in sorted(remarks))]


def cells_of(case: dict[str, Any], others: list[str], limited: bool) -> list[str]:
    empty = [""] * (len(others) + 2 * limited)
    if "wrong" in case:
        return [case["case"], f"WRONG: {case['wrong']}", *empty]
    if "times" not in case:
        return [case["case"], "skipped", *empty]
    limit = case.get("limit", {"ours of it": "", "by": ""})
    times = [case["times"].get(name, {"of ours": "-"})["of ours"] for name in others]
    measured = [case["times"][OURS]["median us"], *([limit["ours of it"], limit["by"]] if limited else []), *times]
    return [case["case"], *map(str, measured)]

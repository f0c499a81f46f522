"""The results of a comparison as a table: Markdown for readers, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from lsp.evaluation.comparison import Result

HEADINGS = {
    "scheduler": "scheduler",
    "tail": "tail",
    "accuracy": "solved, %",
    "interval": "95 % interval",
    "passes": "passes",
    "tokens_per_pass": "tokens / pass",
    "positions": "positions",
    "speed_up": "speed-up",
    "flip_rate": "flip rate, %",
}


def rows(task: str, results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row per result, of means over the problems; times against the first result that treats the tail alike."""
    first = {result.setting.options.stop_early: result for result in reversed(results)}
    return [_row(task, result, first[result.setting.options.stop_early]) for result in results]


def _row(task: str, result: Result, baseline: Result) -> dict[str, Any]:
    low, high = result.interval
    flips = result.flips
    return {
        "task": task,
        "scheduler": result.setting.name,
        "tail": not result.setting.options.stop_early,
        "accuracy": result.accuracy,
        "low": low,
        "high": high,
        "passes": mean(result.passes),
        "tokens_per_pass": sum(result.tokens) / max(1, sum(result.passes)),
        "positions": mean(result.positions),
        "speed_up": result.speed_up(baseline),
        "flip_rate": None if flips is None or math.isnan(flips) else flips,
        "problems": len(result.passes),
        "solved": sum(result.right) if result.right else None,
        "seconds": sum(result.seconds),
        "settings": repr(result.setting.scheduler),
        "options": {key: value for key, value in result.setting.arguments.items() if key != "scheduler"},
    }


def cells(row: dict[str, Any]) -> list[str]:
    """What a reader sees of a row, in the order of the headings."""
    flips, judged = row["flip_rate"], row["accuracy"] is not None
    return [
        row["scheduler"],
        "decoded" if row["tail"] else "dropped",
        f"{100 * row['accuracy']:.1f}" if judged else "?",
        f"{100 * row['low']:.1f} - {100 * row['high']:.1f}" if judged else "not judged",
        f"{row['passes']:.2f}",
        f"{row['tokens_per_pass']:.1f}",
        f"{row['positions']:.0f}",
        f"{row['speed_up']:.2f}x",
        "" if flips is None else f"{100 * flips:.1f}",
    ]


def markdown(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    """A table for each task."""
    out = ", ".join(f"{key} {_words(value)}" for key, value in about.items()) + "\n"
    for task in tasks(rows):
        lines = [list(HEADINGS.values()), ["---", "---", *["---:"] * (len(HEADINGS) - 2)]]
        lines += [cells(row) for row in rows if row["task"] == task]
        out += f"\n## {task}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return out


def tasks(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in rows))


def _words(value: Any) -> str:
    """A setting in words; one that depends on the task is said for each."""
    return " and ".join(f"{n} ({task})" for task, n in value.items()) if isinstance(value, dict) else str(value)


def as_csv(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | {"options": json.dumps(row["options"])} for row in rows)
    return out.getvalue()


def as_json(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    return json.dumps({**about, "rows": list(rows)}, indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Sequence[dict[str, Any]], dict[str, Any]], str]] = {
    ".md": markdown,
    ".csv": as_csv,
    ".json": as_json,
}
"""How a table is written, by the ending of the file's name."""

"""The results of a comparison as a table: Markdown for readers, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

from lsp.compare import Result

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


def rows(results: Sequence[Result], baseline: Result | None = None) -> list[dict[str, Any]]:
    """One row per result, of means over the problems; times are compared with the baseline, by default the first."""
    baseline = baseline or results[0]
    return [_row(result, baseline) for result in results]


def _row(result: Result, baseline: Result) -> dict[str, Any]:
    low, high = result.interval
    flips = result.flips
    return {
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
        "problems": len(result.right),
        "solved": sum(result.right),
        "seconds": sum(result.seconds),
        "settings": repr(result.setting.scheduler),
        "options": vars(result.setting.options),
    }


def cells(row: dict[str, Any]) -> list[str]:
    """What a reader sees of a row, in the order of the headings."""
    flips = row["flip_rate"]
    return [
        row["scheduler"],
        "decoded" if row["tail"] else "dropped",
        f"{100 * row['accuracy']:.1f}",
        f"{100 * row['low']:.1f} - {100 * row['high']:.1f}",
        f"{row['passes']:.2f}",
        f"{row['tokens_per_pass']:.1f}",
        f"{row['positions']:.0f}",
        f"{row['speed_up']:.2f}x",
        "" if flips is None else f"{100 * flips:.1f}",
    ]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = [list(HEADINGS.values()), ["---", "---", *["---:"] * (len(HEADINGS) - 2)], *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | {"options": json.dumps(row["options"])} for row in rows)
    return out.getvalue()


def as_json(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    return json.dumps({**about, "rows": list(rows)}, indent=2, ensure_ascii=False) + "\n"

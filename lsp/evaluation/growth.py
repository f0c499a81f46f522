"""How the cost of an answer grows with its length: passes, positions and seconds, and the exponents of their growth.

Problems of one level after the other are decoded one at a time, in a canvas that has room for the longest answer of the
level: so the canvas grows with the answers, as it does for whoever asks for longer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

import numpy as np

from lsp.evaluation.comparison import Setting, compare
from lsp.evaluation.problems import Problems

COSTS = ("passes", "positions", "seconds")
DEFAULT = "LSP, the default"
"""The name of the setting that the others are compared with."""
ROOM = 16
"""Masks that are left over after the longest answer of a level, at least."""


def canvas_of(problems: Problems) -> int:
    """How many masks there are for an answer: room for the longest, in steps of 32, the block length of Fast-dLLM."""
    return -(-(max(problems.lengths) + ROOM) // 32) * 32


def measure(
    model: Any,
    levels: Sequence[Problems],
    settings: Sequence[Setting],
    advance: Callable[[], None] = lambda: None,
    **arguments: Any,
) -> list[dict[str, Any]]:
    """One row per setting and level, of means over its problems; `points` has the length and the costs of each."""
    rows = []
    for problems in levels:
        canvas = canvas_of(problems)
        found = compare(model, problems, settings, max_new_tokens=canvas, batch=1, advance=advance, **arguments)
        for result in found:
            each = {"length": problems.lengths} | {cost: getattr(result, cost) for cost in COSTS}
            rows.append(
                {
                    "name": result.setting.name,
                    "problems": len(problems),
                    "canvas": canvas,
                    "accuracy": result.accuracy,
                    **{name: mean(values) for name, values in each.items()},
                    "points": each,
                }
            )
    return rows


def exponent(rows: Sequence[dict[str, Any]], cost: str) -> tuple[float, float]:
    """The slope of log cost over log length, over all problems of these rows, and its standard error.

    Both are NaN if all answers have one length.

    Examples
    --------
    >>> rows = [{"points": {"length": [10, 20, 40], "passes": [100, 400, 1600]}}]
    >>> slope, error = exponent(rows, "passes")
    >>> round(slope, 6), round(error, 6)
    (2.0, 0.0)
    """
    x, y = (np.log([value for row in rows for value in row["points"][name]]) for name in ("length", cost))
    if len(set(x)) < 2:
        return np.nan, np.nan
    slope, offset = np.polyfit(x, y, 1)
    left = y - (slope * x + offset)
    spread = float(((x - x.mean()) ** 2).sum())
    return float(slope), float(np.sqrt((left**2).sum() / max(1, len(x) - 2) / spread))


def by_setting(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each setting, from short answers to long ones."""
    out: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["length"]):
        out.setdefault(row["name"], []).append(row)
    return out


def times(row: dict[str, Any], other: dict[str, Any], cost: str) -> float:
    """How many times as much a problem costs as with another setting: the median over the problems of both rows."""
    pairs = zip(row["points"][cost], other["points"][cost], strict=True)
    return float(median(a / b for a, b in pairs))


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table: what each setting solves, its costs at the shortest and the longest answers, and how they grow.

    With the default among the settings: also how many times its costs the others have at the longest answers.
    """
    groups = by_setting(rows)
    lengths = [f"{row['length']:.0f}" for row in next(iter(groups.values()))]
    heads = [head for cost in COSTS for head in (f"{cost} at {lengths[0]} and {lengths[-1]} tokens", "growth")]
    default = groups.get(DEFAULT)
    if default:
        heads += [f"{cost} at {lengths[-1]}, x of the default" for cost in COSTS]
    out = f"| scheduler | solved, % | {' | '.join(heads)} |\n|---|---:|{'---:|' * len(heads)}\n"
    for name, own in groups.items():
        solved = sum(row["accuracy"] * row["problems"] for row in own) / sum(row["problems"] for row in own)
        cells = [name, f"{100 * solved:.1f}"]
        for cost in COSTS:
            form = "{:.3g}" if cost == "seconds" else "{:.1f}" if cost == "passes" else "{:.0f}"
            slope, error = exponent(own, cost)
            growth = f"{slope:.2f} ± {error:.2f}" if np.isfinite(slope) else "?"
            cells += [f"{form.format(own[0][cost])} and {form.format(own[-1][cost])}", growth]
        if default:
            cells += [f"{times(own[-1], default[-1], cost):.2f}" for cost in COSTS]
        out += f"| {' | '.join(cells)} |\n"
    return out

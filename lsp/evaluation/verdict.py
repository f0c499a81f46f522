"""What a grid has shown: which settings are worth running again, and how the default stands against its rivals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Any

from lsp.evaluation.grid import Candidate
from lsp.evaluation.intervals import paired
from lsp.evaluation.plot import COSTS, frontier

SHOWN = 4
NO_RIVALS = ("LSP", "Full")
FAST_DLLM = re.compile(r"Threshold block_length=\d+ cache=(block|dual)")  # with its default p


def worth_another_look(rows: Sequence[dict[str, Any]]) -> set[str]:
    """The names of the settings on the frontier of their family, on any task and in any cost."""
    kept = set()
    for task, family, cost in product({r["task"] for r in rows}, {r["family"] for r in rows}, COSTS):
        of_family = [row for row in rows if (row["task"], row["family"]) == (task, family)]
        kept |= {row["name"] for row in frontier(of_family, cost)}
    return kept


def always_shown(candidate: Candidate) -> bool:
    """Whether a verdict needs it, on a frontier or not: Full, and Threshold as Fast-dLLM runs it."""
    return candidate.family == "Full" or bool(FAST_DLLM.fullmatch(candidate.name))


def verdict(rows: Sequence[dict[str, Any]], preset: str) -> str:
    """Markdown: what the preset reaches on each task, against Full and against every setting of its rivals."""
    out = ""
    for task in dict.fromkeys(row["task"] for row in rows):
        here = [row for row in rows if row["task"] == task]
        ours = next(row for row in here if row["name"] == preset)
        out += f"\n## {task}\n\n| | solved, % | passes | positions | ours minus theirs, points |\n"
        out += "|---|---:|---:|---:|---:|\n" + _line("the preset", ours)
        rivals = [row for row in here if row["family"] not in NO_RIVALS]
        best = max((row["accuracy"] for row in here if row["family"] == "Full"), default=None)
        named = {
            "the best Full": [row for row in here if row["family"] == "Full" and row["accuracy"] == best],
            "as accurate, no more passes": _beating(rivals, ours, "passes"),
            "as accurate, no more positions": _beating(rivals, ours, "positions"),
            "Fast-dLLM": [row for row in here if FAST_DLLM.fullmatch(row["name"])],
        }
        for name, found in named.items():
            found.sort(key=lambda row: (-row["accuracy"], row["passes"]))
            out += "".join(_line(f"{name}: {row['name']}", row, ours) for row in found[:SHOWN])
            if not SHOWN >= len(found) > 0:
                out += f"| {name}: {f'{len(found) - SHOWN} more' if found else 'none'} | | | | |\n"
    return out


def _beating(rivals: Sequence[dict[str, Any]], ours: dict[str, Any], cost: str) -> list[dict[str, Any]]:
    return [row for row in rivals if row["accuracy"] >= ours["accuracy"] and row[cost] <= ours[cost]]


def _line(name: str, row: dict[str, Any], ours: dict[str, Any] | None = None) -> str:
    cells = [name, f"{100 * row['accuracy']:.1f}", f"{row['passes']:.2f}", f"{row['positions']:.0f}", ""]
    if ours is not None:
        first, second = ([bit == "1" for bit in each["right"]] for each in (ours, row))
        low, high = paired(first, second)
        cells[2] += f" ({row['passes'] / ours['passes']:.2f}x)"
        cells[3] += f" ({row['positions'] / ours['positions']:.2f}x)"
        cells[4] = f"{100 * (ours['accuracy'] - row['accuracy']):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"| {' | '.join(cells)} |\n"

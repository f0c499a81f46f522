"""What a grid has shown: which settings are worth running again, and how the default stands against its rivals."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import product
from statistics import geometric_mean, mean
from typing import Any

from lsp.evaluation.grid import Candidate
from lsp.evaluation.intervals import paired
from lsp.evaluation.plot import COSTS, frontier

SHOWN = 4
NO_RIVALS = ("LSP", "Full")
FAST_DLLM = re.compile(r"Threshold block_length=\d+ cache=(block|dual)( stop_early=False)?")  # with its default p


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
            "Fast-dLLM's loop": [row for row in here if FAST_DLLM.fullmatch(row["name"]) and _own_loop(row)],
            "Fast-dLLM's caches, our loop": [
                row for row in here if FAST_DLLM.fullmatch(row["name"]) and not _own_loop(row)
            ],
        }
        for name, found in named.items():
            found.sort(key=lambda row: (-row["accuracy"], row["passes"]))
            out += "".join(_line(f"{name}: {row['name']}", row, ours) for row in found[:SHOWN])
            if not SHOWN >= len(found) > 0:
                out += f"| {name}: {f'{len(found) - SHOWN} more' if found else 'none'} | | | | |\n"
    return out


def over_all_tasks(rows: Sequence[dict[str, Any]], preset: str, families: Collection[str] = ("LSP",)) -> str:
    """Markdown: the settings of some families that no other of them beats in mean accuracy, passes and positions.

    Only those that were run on every task. Costs are geometric means over the tasks, as multiples of the preset's; the
    last column has the task where most is lost against the best Full.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    best = {
        task: max((r["accuracy"] for r in rows if (r["task"], r["family"]) == (task, "Full")), default=None)
        for task in tasks
    }
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["family"] in families or row["name"] == preset:
            found.setdefault(row["name"], {})[row["task"]] = row
    whole = {name: own for name, own in found.items() if len(own) == len(tasks)}
    if preset not in whole:
        return ""
    means = [_mean(name, own, whole[preset], best) for name, own in whole.items()]
    kept = {each["name"] for each in frontier(means, *COSTS)} | {preset}
    out = "\n## Over all tasks\n\n| | solved, % | passes | positions | most is lost against Full |\n"
    out += "|---|---:|---:|---:|---|\n"
    for each in sorted((each for each in means if each["name"] in kept), key=lambda each: -each["accuracy"]):
        name = "the preset" if each["name"] == preset else each["name"]
        solved = f"{100 * each['accuracy']:.1f} | {each['passes']:.2f}x | {each['positions']:.2f}x"
        out += f"| {name} | {solved} | {each['lost']} |\n"
    return out


def _mean(
    name: str, own: dict[str, dict[str, Any]], preset: dict[str, dict[str, Any]], best: dict[str, float | None]
) -> dict[str, Any]:
    """One setting over all tasks."""
    costs = {cost: geometric_mean(row[cost] / preset[task][cost] for task, row in own.items()) for cost in COSTS}
    lost = {task: 100 * (row["accuracy"] - full) for task, row in own.items() if (full := best[task]) is not None}
    worst = min(lost, key=lambda task: lost[task], default="")
    words = f"{worst} {lost[worst]:+.1f}" if worst else ""
    return {"name": name, "accuracy": mean(row["accuracy"] for row in own.values()), "lost": words, **costs}


def _own_loop(row: dict[str, Any]) -> bool:
    return str(row["name"]).endswith("stop_early=False")


def best_of_families(rows: Sequence[dict[str, Any]], task: str, points: float = 2.0) -> dict[str, str]:
    """Of each family the name of its cheapest setting, in positions, among those within `points` of its most accurate.

    Full and settings that decode the tail are left out.
    """
    out = {}
    for family in dict.fromkeys(row["family"] for row in rows if row["task"] == task and row["family"] != "Full"):
        here = [r for r in rows if (r["task"], r["family"]) == (task, family) and not _own_loop(r)]
        enough = max(row["accuracy"] for row in here) - points / 100
        out[family] = min((r for r in here if r["accuracy"] >= enough), key=lambda r: r["positions"])["name"]
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

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
FAST_DLLM = re.compile(
    r"(Threshold|Factor) block_length=\d+ cache=(none|block|dual)( stop_early=False)?"
)  # its p and f
AS_PUBLISHED = re.compile(r"(Threshold|Factor) block_length=32 cache=(block|dual)( stop_early=False)?")
CLOSE = 3.0  # points under the best Full, within which another one may be the best on fresh problems
FAR = 8.0  # points under the preset, at which nothing will reach it on fresh problems
ALIKE = 1.1  # times the preset's passes and positions, under which whatever is not far less accurate may beat it
DEAR = 1.25  # times the preset's passes and its positions, at which nothing will be cheaper on fresh problems
TOO_DEAR = 6.0  # times either of them, at which even the most accurate setting of a family is no rival


def worth_another_look(
    candidates: Sequence[Candidate], seen: Sequence[dict[str, Any]], task: str, preset: str
) -> list[Candidate]:
    """The candidates that a verdict on a task needs, going by results: what is beaten there is not run again.

    Of rivals what costs about as much as the preset, or less, in both costs, and is not far less accurate. On the
    frontier of their family on this task in any cost, unless the preset is far more accurate or clearly cheaper in
    both costs; of every family its most accurate; neither if it costs more than six times as much in either. Of LSP on
    the frontier of any task, because its settings are compared over all tasks. Of Full the most accurate and the
    cheapest that is about as accurate, or all if none was run. The preset, and what Fast-dLLM runs, always. Where there
    are no results of the task, those of all tasks count.
    """
    known = {row["task"] for row in seen}
    tasks = {task} & known or known
    kept = {preset}
    for each, family in product(known, {row["family"] for row in seen}):
        if each in tasks or family == "LSP":
            rows = [row for row in seen if (row["task"], row["family"]) == (each, family)]
            ours = [row for row in seen if (row["task"], row["name"]) == (each, preset)]
            kept |= {row["name"] for row in (_close(rows) if family == "Full" else _promising(rows, ours))}
    no_full = not any(row["family"] == "Full" and row["task"] in tasks for row in seen)
    return [
        each
        for each in candidates
        if each.name in kept or AS_PUBLISHED.fullmatch(each.name) or (each.family == "Full" and no_full)
    ]


def _close(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The most accurate one, and the cheapest of those that are about as accurate."""
    top = _most_accurate(rows)
    enough = [row for each in top for row in rows if row["accuracy"] >= each["accuracy"] - CLOSE / 100]
    return [*top, *sorted(enough, key=lambda row: row["positions"])[:1]]


def _most_accurate(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of a ranking by accuracy, then by positions; none of none."""
    return sorted(rows, key=lambda row: (-row["accuracy"], row["positions"]))[:1]


def _promising(rows: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The most accurate, the frontier in any cost, what costs no more: each result once, if it may reach ours."""
    best = [row for cost in COSTS for row in frontier(rows, cost)]
    rivals = [row for row in rows if row["family"] not in NO_RIVALS]
    best += [row for row in rivals if any(all(row[cost] <= ALIKE * own[cost] for cost in COSTS) for own in ours)]
    each = {tuple(row[key] for key in ("accuracy", *COSTS)): row for row in reversed(best)}
    kept = [row for row in each.values() if not any(_out_of_reach(own, row) for own in ours)]
    return [row for row in (*_most_accurate(rows), *kept) if not any(_too_dear(own, row) for own in ours)]


def _out_of_reach(ours: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether ours is far more accurate, or clearly cheaper in both costs."""
    dearer = all(row[cost] > DEAR * ours[cost] for cost in COSTS)
    return dearer or bool(ours["accuracy"] >= row["accuracy"] + FAR / 100)


def _too_dear(ours: dict[str, Any], row: dict[str, Any]) -> bool:
    return any(row[cost] > TOO_DEAR * ours[cost] for cost in COSTS)


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
            "as accurate, no more of either": _beating(rivals, ours, *COSTS),
            "as accurate, no more passes": _beating(rivals, ours, "passes"),
            "as accurate, no more positions": _beating(rivals, ours, "positions"),
        }
        fast_dllm = [row for row in here if FAST_DLLM.fullmatch(row["name"])]
        whole = {
            "Fast-dLLM's loop": [row for row in fast_dllm if _own_loop(row)],
            "Fast-dLLM's caches, our loop": [row for row in fast_dllm if not _own_loop(row)],
        }
        for name, found in (named | whole).items():
            found.sort(key=lambda row: (-row["accuracy"], row["passes"]))
            shown = len(found) if name in whole else SHOWN
            out += "".join(_line(f"{name}: {row['name']}", row, ours) for row in found[:shown])
            if not shown >= len(found) > 0:
                out += f"| {name}: {f'{len(found) - shown} more' if found else 'none'} | | | | |\n"
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
    possible = [row for row in rows if row["task"] == task and row["family"] != "Full" and not _own_loop(row)]
    for family in dict.fromkeys(row["family"] for row in possible):
        here = [row for row in possible if row["family"] == family]
        enough = max(row["accuracy"] for row in here) - points / 100
        out[family] = min((r for r in here if r["accuracy"] >= enough), key=lambda r: r["positions"])["name"]
    return out


def _beating(rivals: Sequence[dict[str, Any]], ours: dict[str, Any], *costs: str) -> list[dict[str, Any]]:
    accurate = [row for row in rivals if row["accuracy"] >= ours["accuracy"]]
    return [row for row in accurate if all(row[cost] <= ours[cost] for cost in costs)]


def _line(name: str, row: dict[str, Any], ours: dict[str, Any] | None = None) -> str:
    cells = [name, f"{100 * row['accuracy']:.1f}", f"{row['passes']:.2f}", f"{row['positions']:.0f}", ""]
    if ours is not None:
        first, second = ([bit == "1" for bit in each["right"]] for each in (ours, row))
        low, high = paired(first, second)
        cells[2] += f" ({row['passes'] / ours['passes']:.2f}x)"
        cells[3] += f" ({row['positions'] / ours['positions']:.2f}x)"
        cells[4] = f"{100 * (ours['accuracy'] - row['accuracy']):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"| {' | '.join(cells)} |\n"

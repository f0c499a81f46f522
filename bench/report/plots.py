"""The plots of a run, as SVG that is the same for the same numbers."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.ratios import LIMIT, OURS, Row
from bench.report.run import Run, tables
from bench.report.short import ANSWER
from lsp.extras import needed_by
from lsp.files import write_whole

COLOURS = {"model": "#4878a8", "head": "#d98c3f", "host": "#7f7f7f"}


Drawing = tuple[Sequence[Any], Callable[..., None], tuple[float, float]]
"""Numbers (none if the run lacks them), who draws them, and the size in inches."""


def drawings(run: Run) -> dict[str, Drawing]:
    found = tables(run.rows())
    return {
        "commit": (of_size(found.get("commit_prefix", []), 126464, "float32"), by_rows, (7, 4.2)),
        "attention": (of_prefix(found.get("suffix_attention, even lengths, 8/2 heads", [])), by_prefix, (9, 3.8)),
        "answers": (found.get(ANSWER, []), by_part, (11, 4.6)),
        "growth": (list(tables(run.rows("growth")).values()), by_length, (11, 4.2)),
    }


def plots(run: Run, folder: Path) -> None:
    """Writes what the run has numbers for."""
    for name, (numbers, draw, size) in drawings(run).items():
        if numbers:
            write(folder / f"{name}.svg", numbers, draw, size)


def write(path: Path, numbers: Sequence[Any], draw: Callable[..., None], size: tuple[float, float]) -> None:
    with needed_by("a plot"):
        import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "lsp", "font.size": 9}):
        figure = pyplot.figure(figsize=size, layout="constrained")
        draw(figure, numbers)
        picture = io.BytesIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, picture.getvalue())


def of_size(rows: Sequence[Row], vocabulary: int, dtype: str) -> list[Row]:
    chosen = [row for row in rows if (row.facts["vocabulary"], row.facts["dtype"]) == (vocabulary, dtype)]
    return sorted(chosen, key=lambda row: row.facts["rows"])


def of_prefix(rows: Sequence[Row]) -> list[list[Row]]:
    """By dtype, those of the number of queries that has the most prefixes; a logarithmic axis has no 0."""
    rows = [row for row in rows if row.facts["prefix"] > 0]
    if not rows:
        return []
    (queries, _), *_ = Counter(row.facts["queries"] for row in rows).most_common(1)
    chosen = sorted((row for row in rows if row.facts["queries"] == queries), key=lambda row: row.facts["prefix"])
    dtypes = dict.fromkeys(row.facts["dtype"] for row in chosen)
    return [[row for row in chosen if row.facts["dtype"] == dtype] for dtype in dtypes]


def style(name: str) -> dict[str, Any]:
    """Ours stands out."""
    ours = name in (OURS, "LSP")
    return {"linewidth": 2.4 if ours else 1.2, "color": "black" if ours else None, "marker": "o", "markersize": 3}


def logarithmic(axis: Any) -> None:
    """Plain numbers on both axes."""
    axis.set(xscale="log", yscale="log")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter("{x:g}")
        side.set_minor_formatter("")
    axis.grid(alpha=0.3, which="both", linewidth=0.4)


def by_rows(figure: Any, rows: Sequence[Row]) -> None:
    axis = figure.subplots()
    for name in dict.fromkeys(name for row in rows for name in row.values if name != LIMIT):
        points = [(row.facts["rows"], row.values[name] / row.values[LIMIT]) for row in rows if name in row.values]
        axis.plot(*zip(*points, strict=True), label=name, **style(name))
    axis.axhline(1, label=LIMIT, linewidth=1.2, **dashes(LIMIT))
    logarithmic(axis)
    axis.set(xlabel="rows of 126464 float32 logits", ylabel="time over a read of the logits", title="commit_prefix")
    axis.set_xticks([row.facts["rows"] for row in rows])
    figure.legend(loc="outside right upper", frameon=False)


def by_prefix(figure: Any, groups: Sequence[Sequence[Row]]) -> None:
    for axis, rows in zip(figure.subplots(1, len(groups), squeeze=False, sharey=True)[0], groups, strict=True):
        for name in rows[0].values:
            points = [(row.facts["prefix"], 1e3 * row.values[name]) for row in rows]
            axis.plot(*zip(*points, strict=True), label=name, **style(name) | dashes(name))
        logarithmic(axis)
        axis.set_xticks([row.facts["prefix"] for row in rows])
        axis.set(xlabel=f"tokens of the prefix, {rows[0].facts['queries']} queries", title=rows[0].facts["dtype"])
    figure.axes[0].set_ylabel("milliseconds")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)


def dashes(name: str) -> dict[str, Any]:
    """A limit is nobody's time."""
    return {"linestyle": "--", "color": "gray", "marker": ""} if name == LIMIT else {}


def by_length(figure: Any, groups: Sequence[Sequence[Row]]) -> None:
    for axis, rows in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        rows = [row for row in rows if row.values]
        lengths = [row.facts["length"] for row in rows]
        for name in rows[0].values:
            axis.plot(lengths, [row.values[name] for row in rows], label=name, **style(name))
        logarithmic(axis)
        axis.set_xticks(lengths)
        axis.set(xlabel=f"tokens of the {rows[0].facts['of']}", ylabel="seconds of an answer")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False)


def by_part(figure: Any, rows: Sequence[Row]) -> None:
    """Bars of every way, as multiples of Fast-dLLM's loop, made of parts. LLaDA's loop would not fit."""
    axis, names = figure.subplots(), [name for name in rows[0].values if name != "LLaDA's loop"]
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        places = [j + (i - (len(names) - 1) / 2) * width for j in range(len(rows))]
        heights, bottoms = [row.values[name] / row.values[row.over] for row in rows], [0.0] * len(rows)
        for part, colour in COLOURS.items():
            shares = [height * row.facts["parts"][name][part] for height, row in zip(heights, rows, strict=True)]
            axis.bar(places, shares, 0.9 * width, bottoms, color=colour, label=None if i else part)
            bottoms = [a + b for a, b in zip(bottoms, shares, strict=True)]
        for place, top in zip(places, bottoms, strict=True):
            axis.annotate(f" {name}", (place, top), rotation=90, ha="center", va="bottom", fontsize="x-small")
    axis.set_xticks(range(len(rows)), [row.case.replace(", ", "\n") for row in rows])
    axis.set(ylabel="time over Fast-dLLM's loop")
    axis.set_ylim(top=1.5 * axis.get_ylim()[1])
    figure.legend(loc="outside right upper", frameon=False)

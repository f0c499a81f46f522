"""Accuracy against cost, in passes and in positions: the two sides of what decoding costs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from lsp.evaluation.growth import COSTS as GROWING
from lsp.evaluation.growth import by_setting, exponent
from lsp.evaluation.tables import tasks
from lsp.extras import needed_by
from lsp.files import write_whole

COSTS = {"passes": "passes per problem", "positions": "token positions per problem"}
MARKERS = "osD^vP*X<>hd"
FORMATS = (".png", ".svg", ".pdf")


def plot(rows: Sequence[dict[str, Any]], path: str | Path, *, group: str = "scheduler") -> None:
    """Writes a picture of the rows of `lsp.evaluation.tables.rows`: two plots per task, one for each cost, on
    logarithmic axes.

    Rows of the same `group` share a colour; where there are several, a line joins those that no other of them beats in
    both accuracy and cost.
    """
    pyplot = _pyplot(path)
    groups = list(dict.fromkeys(row[group] for row in rows))
    colours = pyplot.get_cmap("tab10" if len(groups) <= 10 else "tab20")
    styles = {
        name: {"color": colours(i % colours.N), "marker": MARKERS[i % len(MARKERS)]} for i, name in enumerate(groups)
    }
    names = tasks(rows)
    figure, grid = pyplot.subplots(
        len(names), 2, figsize=(11, 0.6 + 3.4 * len(names)), sharey="row", squeeze=False, layout="constrained"
    )
    for task, axes in zip(names, grid, strict=True):
        for axis, (cost, label) in zip(axes, COSTS.items(), strict=True):
            for name, style in styles.items():
                _draw(axis, [row for row in rows if (row["task"], row[group]) == (task, name)], cost, name, style)
            axis.set(xscale="log", xlabel=label, title=task)
            _logarithmic(axis, axis.xaxis)
        axes[0].set_ylabel("solved, %")
    handles = {label: handle for axis in grid.flat for handle, label in zip(*axis.get_legend_handles_labels())}  # noqa: B905
    figure.legend(handles.values(), handles, loc="outside right upper", fontsize="small", frameon=False)
    _write(figure, path)


def plot_growth(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Writes a picture of the rows of `lsp.evaluation.growth.measure`: each cost over the length of the answer."""
    pyplot = _pyplot(path)
    groups = by_setting(rows)
    colours = pyplot.get_cmap("tab20")
    figure, axes = pyplot.subplots(1, len(GROWING), figsize=(14, 5.4), layout="constrained")
    for axis, cost in zip(axes, GROWING, strict=True):
        for i, (name, own) in enumerate(groups.items()):
            ours = name.startswith("LSP")
            slopes = ", ".join(f"{exponent(own, each)[0]:.2f}" for each in GROWING)
            axis.plot(
                [row["length"] for row in own],
                [row[cost] for row in own],
                color="black" if ours else colours(i % colours.N),
                marker=MARKERS[i % len(MARKERS)],
                linewidth=2.6 if ours else 1.3,
                zorder=3 if ours else 2,
                label=fill(f"{name} ({slopes})", 80),
            )
        axis.set(xscale="log", yscale="log", xlabel="tokens of the answer", title=f"{cost} per answer")
        for one in (axis.xaxis, axis.yaxis):
            _logarithmic(axis, one)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    figure.suptitle(f"In brackets: the exponents of the growth of {', '.join(GROWING)}", fontsize="medium")
    _write(figure, path)


def _pyplot(path: str | Path) -> Any:
    """matplotlib's functions, without a window, once the name of the file is known to be good."""
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"Invalid plot: expected a file name with {', '.join(FORMATS)}, got {str(path)!r}")
    with needed_by("a plot"):
        import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _logarithmic(axis: Any, one: Any) -> None:
    """Plain numbers at 1, 2 and 5 of every decade on one axis of a plot, and a thin grid."""
    from matplotlib.ticker import LogLocator

    one.set_major_locator(LogLocator(subs=(1, 2, 5)))
    one.set_major_formatter("{x:g}")
    one.set_minor_formatter("")
    axis.grid(alpha=0.3, which="both", linewidth=0.4)


def _write(figure: Any, path: str | Path) -> None:
    from matplotlib import pyplot

    picture = io.BytesIO()
    figure.savefig(picture, format=Path(path).suffix[1:], dpi=150)
    pyplot.close(figure)
    write_whole(path, picture.getvalue())


def _draw(axis: Any, rows: Sequence[dict[str, Any]], cost: str, name: str, style: dict[str, Any]) -> None:
    if not rows:
        return
    solved = [100 * row["accuracy"] for row in rows]
    reach = [
        [100 * (row["accuracy"] - row["low"]) for row in rows],
        [100 * (row["high"] - row["accuracy"]) for row in rows],
    ]
    crowded, ours = len(rows) > 8, name.startswith("LSP")
    axis.errorbar(
        [row[cost] for row in rows],
        solved,
        None if crowded else reach,
        linestyle="none",
        elinewidth=0.6,
        alpha=0.35 if crowded else 0.9,
        markersize=(4 if crowded else 6) + 2 * ours,
        markeredgecolor="black" if ours else None,
        markeredgewidth=0.8,
        zorder=3 if ours else 2,
        label=name,
        **style,
    )
    best = sorted(frontier(rows, cost), key=lambda row: row[cost])
    axis.plot([row[cost] for row in best], [100 * row["accuracy"] for row in best], color=style["color"], linewidth=1.2)


def frontier(rows: Sequence[dict[str, Any]], *costs: str) -> list[dict[str, Any]]:
    """The rows that no other row beats, which means: is no worse in accuracy and every cost, and better in one."""

    def beats(a: dict[str, Any], b: dict[str, Any]) -> bool:
        pairs = [(a["accuracy"], b["accuracy"]), *((-a[cost], -b[cost]) for cost in costs)]
        return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)

    return [row for row in rows if not any(beats(other, row) for other in rows)]

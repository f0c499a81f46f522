"""Accuracy against cost, in passes and in positions: the two sides of what decoding costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

COSTS = {"passes": "passes per problem", "positions": "token positions per problem"}
MARKERS = "osD^vP*X<>hd"
FORMATS = (".png", ".svg", ".pdf")


def plot(rows: Sequence[dict[str, Any]], path: str | Path, *, title: str = "", group: str = "scheduler") -> None:
    """Writes a picture of the rows of `lsp.tables.rows`, both costs side by side, on logarithmic axes.

    Rows with the same `group` share a marker; where there are several, a line joins those that no other of them beats
    in both accuracy and cost.
    """
    if Path(path).suffix not in FORMATS:
        raise ValueError(f"Invalid plot: expected a file name with {', '.join(FORMATS)}, got {str(path)!r}")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row[group] for row in rows))
    colours = pyplot.get_cmap("tab10" if len(names) <= 10 else "tab20")
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    for axis, (cost, label) in zip(axes, COSTS.items(), strict=True):
        for i, name in enumerate(names):
            of_name = sorted((row for row in rows if row[group] == name), key=lambda row: row[cost])
            style = {"color": colours(i % colours.N), "marker": MARKERS[i % len(MARKERS)], "linestyle": "none"}
            axis.errorbar(
                [row[cost] for row in of_name],
                [100 * row["accuracy"] for row in of_name],
                [[100 * (row["accuracy"] - row["low"]) for row in of_name],
                 [100 * (row["high"] - row["accuracy"]) for row in of_name]],
                elinewidth=0.5, alpha=0.85, markersize=6, label=name, **style,
            )  # fmt: skip
            best = frontier(of_name, cost)
            axis.plot([r[cost] for r in best], [100 * r["accuracy"] for r in best], color=style["color"], linewidth=1)
        axis.set_xscale("log")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3, which="both", linewidth=0.4)
    axes[0].set_ylabel("solved, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small", frameon=False)
    if title:
        figure.suptitle(title)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def frontier(rows: Sequence[dict[str, Any]], *costs: str) -> list[dict[str, Any]]:
    """The rows that no other beats: none is as accurate and as cheap in every one of the costs, and better in one."""

    def beats(a: dict[str, Any], b: dict[str, Any]) -> bool:
        pairs = [(a["accuracy"], b["accuracy"]), *((-a[cost], -b[cost]) for cost in costs)]
        return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)

    return [row for row in rows if not any(beats(other, row) for other in rows)]

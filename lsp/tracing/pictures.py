"""One pass of traces as an SVG, and all of them as an animated GIF: for slides and documents. Needs matplotlib.

The page shows more. A picture has what can be read from afar: the tokens by what happened to them, and the values that
the scheduler went by.
"""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lsp.extras import needed_by
from lsp.tracing.headline import headline
from lsp.tracing.printable import printable
from lsp.tracing.records import Trace
from lsp.tracing.states import Cell, cells

with needed_by("a picture of a trace"):
    import matplotlib
    from matplotlib.animation import PillowWriter
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

COLUMNS, MOST_LINES, MOST_FRAMES, FRAMES_A_SECOND, HOLD = 60, 14, 80, 3, 8
"""Characters in a line of tokens, lines, frames, and for how many of these the last pass stays."""

ADVANCE = 1233 / 2048
"""How far DejaVu Sans Mono moves on after a character, in sizes of the font."""

TEXT, MUTED, LINE, ACCENT, FLOOR, ISLANDS, BAR = (
    "#16202c",
    "#55606e",
    "#d6dce3",
    "#0b5cad",
    "#b3261e",
    "#6b3fa0",
    "#a9b4c1",
)
FILLS = {"frozen": "#e3e8ee", "front": "#d9eee1", "given": "#ffffff", "now": ACCENT, "cut": "#fff0cc"}
LETTERS = {"now": "#ffffff", "cut": "#4d3500", "masked": MUTED}
EDGES = {"masked": "#97a2af", "cut": "#9a6a00", "given": LINE}
WORDS = {
    "frozen": "in the cache",
    "front": "committed, not in the cache yet",
    "now": "committed in this pass",
    "masked": "mask, with its best token",
}
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.monospace": ["DejaVu Sans Mono"],
    "svg.fonttype": "path",
    "svg.hashsalt": "lsp",
}


def still(traces: Sequence[Trace], at: int, *, title: str = "") -> bytes:
    """Pass `at`, counted from 1, of every trace side by side as SVG. A shorter trace stays at its end."""
    with drawing(traces) as figure:
        draw(figure, traces, at, title)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "lsp"})
        return out.getvalue()


def animated(traces: Sequence[Trace], *, title: str = "") -> bytes:
    """Every pass of the traces as a GIF; of very many a part, evenly spread."""
    passes = max((one.passes for one in traces), default=0)
    frames = max(2, min(MOST_FRAMES, passes))
    shown = sorted({1 + round(i * (passes - 1) / (frames - 1)) for i in range(frames)})
    writer = PillowWriter(fps=FRAMES_A_SECOND)
    with drawing(traces) as figure, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.gif"
        with writer.saving(figure, str(path), dpi=80):
            for at in [*shown, *[shown[-1]] * HOLD]:
                figure.clear()
                draw(figure, traces, at, title)
                writer.grab_frame()
        return path.read_bytes()


@contextmanager
def drawing(traces: Sequence[Trace]) -> Iterator[Figure]:
    """A figure with room for the traces, in the style of the page."""
    if not traces or not all(one.steps for one in traces):
        raise ValueError("Invalid traces: expected at least one, each with a pass, got none")
    lines = max(len(Layout.of(one, len(one.steps) - 1).lines) for one in traces)
    size = (6.6 * len(traces), 2.9 + 0.27 * min(MOST_LINES, lines))
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box stands for it
        yield Figure(figsize=size, facecolor="#ffffff")


class Chip(NamedTuple):
    """A token, or a run of dropped or equal ones, at a place in the lines."""

    line: int
    column: int
    text: str
    state: str


class Layout(NamedTuple):
    """The tokens of a pass in lines."""

    lines: range
    chips: list[Chip]

    @classmethod
    def of(cls, trace: Trace, k: int) -> Layout:
        line = column = 0
        chips = []
        for text, state, ends in texts(trace, cells(trace, k)):
            width = max(1, len(text))
            if column and column + width > COLUMNS:
                line, column = line + 1, 0
            chips.append(Chip(line, column, text[:COLUMNS], state))
            line, column = (line + 1, 0) if ends else (line, column + width)
        return cls(range(line + 1), chips)


def texts(trace: Trace, all_cells: list[Cell]) -> list[tuple[str, str, bool]]:
    """What stands in every chip, its state, and whether a line ends with it. Tails of stops and drops are one chip."""
    out: list[tuple[str, str, bool]] = []
    begin = 0
    while begin < len(all_cells):
        cell, end = all_cells[begin], begin + 1
        tail = cell.state == "dropped" or (cell.state == "masked" and (cell.token is None or cell.token in trace.stops))
        while tail and end < len(all_cells) and all_cells[end][:2] == (cell.state, cell.token):
            end += 1
        if cell.state == "dropped":
            end = len(all_cells)
            out.append((f" {end - begin} dropped", "dropped", False))
        else:
            piece = word(trace, cell.token)
            many = f"×{end - begin}" if end - begin > 1 else ""
            out.append((piece.replace("\n", "↵") + many, cell.state, "\n" in piece))
        begin = end
    return out


def word(trace: Trace, token: int | None) -> str:
    if token is None:
        return "□"
    if token in trace.stops:
        return "∎"
    return printable(trace.pieces.get(token, "")) or f"⟨{token}⟩"


def draw(figure: Figure, traces: Sequence[Trace], at: int, title: str) -> None:
    """The heading, and below it each trace: name, tokens, values."""
    heading = title or (headline(traces) if len(traces) > 1 else "")
    height = figure.get_size_inches()[1]
    figure.text(0.03, 1 - 0.2 / height, heading, size=17, weight="bold", color=TEXT, va="top", parse_math=False)
    legend = [
        Rectangle((0, 0), 1, 1, facecolor=FILLS.get(kind, "none"), edgecolor=EDGES.get(kind, "none")) for kind in WORDS
    ]
    figure.legend(
        legend,
        WORDS.values(),
        loc="lower left",
        bbox_to_anchor=(0.02, 0.0),
        ncols=len(WORDS),
        frameon=False,
        fontsize=8.5,
    )
    grid = figure.add_gridspec(
        2,
        len(traces),
        height_ratios=[height - 2.9, 1.1],
        left=0.03 if len(traces) > 1 else 0.06,
        right=0.985,
        top=1 - 0.95 / height,
        bottom=0.42 / height,
        hspace=0.12,
        wspace=0.08,
    )
    for column, trace in enumerate(traces):
        k = min(at, len(trace.steps)) - 1
        tokens, values = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
        draw_tokens(tokens, trace, k, at > len(trace.steps), figure.get_figwidth())
        draw_values(values, trace, k)


def draw_tokens(axes: Axes, trace: Trace, k: int, over: bool, inches: float) -> None:
    layout = Layout.of(trace, k)
    last = max(layout.lines.stop, 1)
    axes.set(xlim=(0, COLUMNS), ylim=(min(MOST_LINES, max(last, 3)), 0))
    axes.axis("off")
    state = f"finished in pass {trace.passes}" if over else f"pass {k + 1} of {trace.passes}"
    axes.set_title(trace.name, loc="left", size=12, weight="bold", color=TEXT, parse_math=False)
    axes.set_title(state, loc="right", size=11, color=MUTED)
    size = axes.get_position().width * inches * 72 / COLUMNS / ADVANCE
    for line, column, text, kind in layout.chips:
        if line >= MOST_LINES:
            break
        box = Rectangle((column + 0.06, line + 0.1), len(text) - 0.12, 0.8, linewidth=0.6)
        box.set(facecolor=FILLS.get(kind, "none"), edgecolor=EDGES.get(kind, "none"))
        axes.add_patch(box)
        look: dict[str, Any] = {"family": "monospace", "size": size, "va": "center_baseline", "parse_math": False}
        axes.text(column, line + 0.5, text, color=LETTERS.get(kind, TEXT), **look)


def draw_values(axes: Axes, trace: Trace, k: int) -> None:
    """The values of the open masks as bars, with the levels that the scheduler asks for."""
    found = cells(trace, k)
    top = axis_top(trace)
    bars = [(at, cell) for at, cell in enumerate(found) if cell.open]
    heights = [top if cell.value is None else min(top, cell.value) for _, cell in bars]
    colours = [ACCENT if cell.state == "now" else "#e5b94e" if cell.state == "cut" else BAR for _, cell in bars]
    axes.bar([at for at, _ in bars], heights, width=0.8, color=colours)
    axes.set(xlim=(-0.5, len(found) - 0.5), ylim=(0, top), xticks=[], yticks=[0, top])
    axes.tick_params(labelsize=8, length=0, colors=MUTED)
    axes.set_ylabel(trace.measure, size=8.5, color=MUTED, labelpad=-6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(BAR)
    rule = trace.steps[k].rule
    level = trace.level if rule is None else rule.tau
    name = "p" if trace.measure == "confidence" else "τ" if trace.level is None else "floor"
    lines: list[tuple[str, float | None, str, Any]]
    lines = [(name, level, FLOOR, (0, (6, 3))), ("islands", trace.islands, ISLANDS, (0, (2, 3)))]
    shown = [
        (name, value, colour, dashes) for name, value, colour, dashes in lines if value is not None and value <= top
    ]
    for i, (name, value, colour, dashes) in enumerate(shown):
        axes.axhline(value, color=colour, linewidth=1.1, linestyle=dashes)
        above = "bottom" if i == len(shown) - 1 else "top"
        axes.text(len(found) - 0.5, value, f"{name} {value:g} ", size=8.5, color=colour, ha="right", va=above)


def axis_top(trace: Trace) -> float:
    """The same for all passes: most values fit, and the levels do."""
    if trace.measure == "confidence":
        return 1.0
    known = sorted(margin for step in trace.steps for margin in step.margins if margin is not None)
    most = known[int(0.8 * (len(known) - 1))] if known else 1.0
    levels = [value for value in (trace.level, trace.islands) if value is not None and value < 1e300]
    return float(f"{max([most, *(2 * value for value in levels), 1e-3]):.2g}")

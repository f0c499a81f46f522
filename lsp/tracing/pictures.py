"""One pass of traces as an SVG, and all of them as an animated GIF: for slides and documents. Needs matplotlib.

The page shows more. A picture has what can be read from afar: the tokens by what happened to them, and the values that
the scheduler went by.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from lsp.extras import needed_by
from lsp.tracing.headline import headline
from lsp.tracing.printable import printable
from lsp.tracing.records import Trace
from lsp.tracing.states import Cell, cells, was_stopped

with needed_by("a picture of a trace"):
    import matplotlib
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from PIL import Image

COLUMNS, MOST_LINES, MOST_FRAMES, FRAME, HOLD, DPI = 60, 14, 80, 330, 9, 80
"""Characters in a line of tokens, lines, frames, milliseconds of one, for how many of these the last pass stays, and
pixels of an inch."""

FRONT = ("now", "cut", "masked")
"""What begins where all before it was committed in earlier passes."""

WIDTH, HEAD, LINE_HEIGHT, VALUES, FOOT, GAP = 6.6, 1.15, 0.32, 1.25, 0.28, 0.15
"""In inches: a trace; the heading and the name of a scheduler with its notes; a line of tokens; the bars; a line of the
legend; and what is between these."""

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
CUT, SHADES, NEAR = "#e5b94e", 10, 8
"""The bar of a candidate; the shades between two colours of a GIF, and how far they are apart."""

FILLS = {"frozen": "#e3e8ee", "front": "#d9eee1", "given": "#ffffff", "now": ACCENT, "cut": "#fff0cc"}
LETTERS = {"now": "#ffffff", "cut": "#4d3500", "masked": MUTED, "dropped": MUTED, "more": MUTED}
EDGES = {"masked": "#97a2af", "cut": "#9a6a00", "given": LINE}
WORDS = {
    "frozen": "in the cache",
    "front": "committed, not in the cache yet",
    "now": "committed in this pass",
    "cut": "candidate, cut off",
    "masked": "mask, with its best token",
}
_one_at_a_time = threading.Lock()  # the settings of matplotlib are those of the whole process
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.monospace": ["DejaVu Sans Mono"],
    "svg.fonttype": "path",
    "svg.hashsalt": "lsp",
}


def still(traces: Sequence[Trace], at: int, *, title: str = "") -> bytes:
    """Pass `at`, counted from 1, of every trace side by side as SVG. A shorter trace stays at its end."""
    with drawing(traces, [at]) as picture:
        picture.draw(at, title)
        out = io.BytesIO()
        picture.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "lsp"})
        return out.getvalue()


def animated(traces: Sequence[Trace], *, title: str = "", before_each: Callable[[], None] = lambda: None) -> bytes:
    """Every pass of the traces as a GIF; of very many a part, evenly spread.

    `before_each` is called before each of them is drawn, and ends it if it raises.
    """
    passes = max((one.passes for one in traces), default=0)
    frames = max(2, min(MOST_FRAMES, passes))
    shown = sorted({1 + round(i * (passes - 1) / (frames - 1)) for i in range(frames)})
    with drawing(traces, shown) as picture:
        canvas: Any = FigureCanvasAgg(picture.figure)
        picture.figure.set_dpi(DPI)

        def frame(at: int) -> Image.Image:
            before_each()
            picture.figure.clear()
            picture.draw(at, title)
            canvas.draw()
            pixels = np.asarray(canvas.buffer_rgba())
            return Image.fromarray(pixels[..., :3]).quantize(palette=palette(), dither=Image.Dither.NONE)

        first, *others = shown
        out = io.BytesIO()
        durations = [*[FRAME] * len(others), FRAME * HOLD]
        later = map(frame, others)  # each is drawn when the one before is written
        frame(first).save(out, "GIF", save_all=True, append_images=later, duration=durations, loop=0)
        return out.getvalue()


@cache
def palette() -> Image.Image:
    """The colours of every picture, so that a frame takes a byte for a pixel: ours, and what the edges of letters and
    lines mix of them. A mixture that is nearly one of ours is left out, as Pillow would take it for that."""
    ours = {TEXT, MUTED, LINE, ACCENT, FLOOR, ISLANDS, BAR, CUT, *LETTERS.values(), *FILLS.values(), *EDGES.values()}
    mixed = [(one, "#ffffff") for one in sorted(ours)]
    mixed += [(LETTERS.get(kind, TEXT), fill) for kind, fill in FILLS.items()]
    kept = [np.array(to_rgb(one)) * 255 for one in sorted(ours)]
    for one, other in mixed:
        for share in np.linspace(0, 1, SHADES):
            colour = 255 * (np.array(to_rgb(one)) * (1 - share) + np.array(to_rgb(other)) * share)
            if all(np.abs(colour - known).max() >= NEAR for known in kept):
                kept.append(colour)
    out = Image.new("P", (1, 1))
    out.putpalette(np.rint(kept).astype(np.uint8).tobytes())
    return out


@contextmanager
def drawing(traces: Sequence[Trace], shown: Sequence[int]) -> Iterator[Picture]:
    """A picture with room for these passes of the traces, in the style of the page."""
    if not traces or not all(one.steps for one in traces):
        raise ValueError("Invalid traces: expected at least one, each with a pass, got none")
    with _one_at_a_time, matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box stands for it
        yield Picture.of(traces, shown)


class Chip(NamedTuple):
    """A token, a run of dropped or equal ones, or how many lines are left out, at a place in the lines."""

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
            chips.append(Chip(line, column, text if width <= COLUMNS else f"{text[: COLUMNS - 1]}…", state))
            line, column = (line + 1, 0) if ends else (line, column + width)
        return cls(range(line + 1), chips)

    def window(self, room: int) -> list[Chip]:
        """The chips of so many lines around the front of what is committed, and how many lines there are besides."""
        over = len(self.lines) - room
        if over <= 0:
            return self.chips
        front = next((chip.line for chip in self.chips if chip.state in FRONT), self.lines[-1])
        begin = min(max(0, front - room // 3), over)
        above = begin + 1 if begin else 0  # a hint takes a line itself
        below = over - begin + 1 if begin < over else 0
        seen = range(begin + bool(above), begin + room - bool(below))
        places = ((0, above), (room - 1, below))
        hints = [Chip(line, 0, f"… {count} more lines", "more") for line, count in places if count]
        return [*hints, *(chip._replace(line=chip.line - begin) for chip in self.chips if chip.line in seen)]


def texts(trace: Trace, all_cells: list[Cell]) -> list[tuple[str, str, bool]]:
    """What stands in every chip, its state, and whether a line ends with it. Tails of stops, of line ends and of drops
    are one chip."""
    out: list[tuple[str, str, bool]] = []
    begin = 0
    while begin < len(all_cells):
        cell, end = all_cells[begin], begin + 1
        same = cell.token is None or cell.token in trace.stops or trace.pieces.get(cell.token) == "\n"
        open_ = cell.state in ("masked", "cut") and same
        tail = open_ or cell.state == "dropped"
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


class Picture(NamedTuple):
    """A figure, what it shows, and how many lines of tokens it has room for: the same for every pass."""

    figure: Figure
    traces: Sequence[Trace]
    lines: int
    kinds: list[str]

    @classmethod
    def of(cls, traces: Sequence[Trace], shown: Sequence[int]) -> Picture:
        passes = ((trace, k) for trace in traces for k in {min(at, len(trace.steps)) - 1 for at in shown})
        layouts = [Layout.of(trace, k) for trace, k in passes]
        lines = min(MOST_LINES, max(len(one.lines) for one in layouts))
        states = {chip.state for one in layouts for chip in one.chips}
        out = cls(Figure(facecolor="#ffffff"), traces, lines, [kind for kind in WORDS if kind in states])
        out.figure.set_size_inches(WIDTH * len(traces), out.foot + VALUES + GAP + lines * LINE_HEIGHT + HEAD)
        return out

    @property
    def foot(self) -> float:
        """Inches for the legend: a line if it has the width of several traces, else two entries in each."""
        return GAP + FOOT * (1 if len(self.traces) > 1 else -(-len(self.kinds) // 2))

    def draw(self, at: int, title: str) -> None:
        """The heading, and below it each trace: name, tokens, values."""
        figure, several = self.figure, len(self.traces) > 1
        left = 0.03 if several else 0.06
        heading = title or headline(self.traces)
        height = figure.get_size_inches()[1]
        figure.text(left, 1 - 0.2 / height, heading, size=17, weight="bold", color=TEXT, va="top", parse_math=False)
        legend = [
            Rectangle((0, 0), 1, 1, facecolor=FILLS.get(kind, "none"), edgecolor=EDGES.get(kind, "none"))
            for kind in self.kinds
        ]
        figure.legend(
            legend,
            [WORDS[kind] for kind in self.kinds],
            loc="lower left",
            bbox_to_anchor=(0.02, 0.0),
            ncols=len(self.kinds) if several else 2,
            frameon=False,
            fontsize=8.5,
        )
        tokens_height = self.lines * LINE_HEIGHT
        grid = figure.add_gridspec(
            2,
            len(self.traces),
            height_ratios=[tokens_height, VALUES],
            left=left,
            right=0.985,
            top=1 - HEAD / height,
            bottom=self.foot / height,
            hspace=2 * GAP / (tokens_height + VALUES),
            wspace=0.08,
        )
        for column, trace in enumerate(self.traces):
            k = min(at, len(trace.steps)) - 1
            tokens, values = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
            draw_tokens(tokens, trace, k, at >= len(trace.steps), figure.get_figwidth(), self.lines)
            draw_values(values, trace, k)


def draw_tokens(axes: Axes, trace: Trace, k: int, over: bool, inches: float, lines: int) -> None:
    axes.set(xlim=(0, COLUMNS), ylim=(lines, 0))
    axes.axis("off")
    ended = "stopped after" if was_stopped(trace) else "finished in"
    verdict = f", {trace.verdict}" if trace.verdict else ""
    state = f"{ended} pass {trace.passes}{verdict}" if over else f"pass {k + 1} of {trace.passes}"
    axes.set_title(trace.name, loc="left", size=12, weight="bold", color=TEXT, parse_math=False, pad=20)
    axes.set_title(state, loc="right", size=11, color=MUTED, pad=20)
    notes: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "size": 8.5, "color": MUTED}
    axes.annotate(", ".join(trace.notes), (0, 1), xytext=(0, 7), parse_math=False, **notes)
    size = axes.get_position().width * inches * 72 / COLUMNS / ADVANCE
    for line, column, text, kind in Layout.of(trace, k).window(lines):
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
    colours = [ACCENT if cell.state == "now" else CUT if cell.state == "cut" else BAR for _, cell in bars]
    axes.bar([at for at, _ in bars], heights, width=0.8, color=colours)
    axes.set(xlim=(-0.5, len(found) - 0.5), ylim=(0, top), xticks=[], yticks=[0, top])
    axes.tick_params(labelsize=8, length=0, colors=MUTED)
    axes.set_ylabel(trace.measure, size=8.5, color=MUTED, labelpad=-6, parse_math=False)
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

"""Decoding in a terminal: answers coloured by the pass that committed each token, and schedulers beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from lsp.decoding.writer import INCOMPLETE
from lsp.extras import needed_by
from lsp.generation import Generation
from lsp.tracing.printable import printable

with needed_by("showing an answer in a terminal"):
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

LIGHT, DARK = (222, 245, 217), (0, 84, 33)  # the first pass and the last


def answer(pieces: Sequence[str], committed_in: Sequence[int]) -> Text:
    """The text with every token on the green of its pass, from light to dark.

    Every run of tokens of one pass begins with its number, from 1, so that it also reads without colours. Control
    characters are shown as Python writes them.

    Parameters
    ----------
    pieces : sequence of str
        The text of each token, as from `pieces_of`; for a trace ``[trace.pieces[token] for token in trace.tokens]``.
    committed_in : sequence of int
        The pass of each token, from 0: `committed_in` of a `lsp.Generation` or of a trace. A given token, with -1, has
        neither a colour nor a number.
    """
    out, before = Text(), -1
    for piece, number in zip(pieces, committed_in, strict=True):
        if number < 0:
            out.append(printable(piece))
            before = -1
            continue
        if piece and number != before:
            out.append(f"[{number + 1}]", "bold")
            before = number
        out.append(printable(piece), shade(number, max(committed_in)))
    return out


def shade(number: int, last: int) -> Style:
    """The colours of a pass: a green from light to dark, and black or white on it, whichever is easier to read."""
    share = number / max(last, 1)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(LIGHT, DARK, strict=True))
    bright = 0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2
    ink = "#000000" if bright > 0.179 else "#ffffff"  # where both have the same contrast
    return Style(color=ink, bgcolor=f"#{red:02x}{green:02x}{blue:02x}")


def pieces_of(generation: Generation, tokenizer: Any) -> list[str]:
    """What each token adds to the text; a character of several tokens belongs to the last of them."""
    tokens, text = generation.tokens, generation.text or ""
    ends = [0]
    for n in range(1, len(tokens)):
        decoded = tokenizer.decode(tokens[:n], skip_special_tokens=True).rstrip(INCOMPLETE)
        ends.append(min(max(ends[-1], len(decoded)), len(text)))
    return [text[begin:end] for begin, end in pairwise([*ends, len(text)])] if tokens else []


def passes(n: int) -> str:
    return f"{n} pass" if n == 1 else f"{n} passes"


class Row(NamedTuple):
    """What one scheduler needed, for one problem or for several."""

    scheduler: str
    verdict: str
    passes: int
    positions: int
    tokens: int
    seconds: float


def table(groups: Mapping[str, Sequence[Row]], *, base: str) -> Table:
    """Schedulers beside each other, in groups with a heading if there are several.

    In brackets: how many times less each needed than the scheduler `base` of its group.
    """
    out = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("scheduler", "right"):
        out.add_column(name, no_wrap=True)
    for name in ("passes", "positions", "tokens/pass", "seconds"):
        out.add_column(name, justify="right", no_wrap=True)
    for heading, rows in groups.items():
        if len(groups) > 1:
            out.add_row(Text(heading, "bold"))
        against = next(row for row in rows if row.scheduler == base)
        for row in rows:
            counts = less(row.passes, against.passes, "d"), less(row.positions, against.positions, "d")
            per_pass = f"{row.tokens / max(row.passes, 1):.1f}"
            out.add_row(
                Text(row.scheduler), Text(row.verdict), *counts, per_pass, less(row.seconds, against.seconds, ".3f")
            )
    return out


def less(value: float, base: float, form: str) -> str:
    """A number, and how many times smaller it is than another one."""
    return f"{value:{form}} ({base / value:.1f}x)" if value and value != base else f"{value:{form}}"

"""Answers coloured by pass, and tables: what a terminal shows, with colours and without."""

from __future__ import annotations

import pytest

import lsp
from lsp.tracing import Trace

pytest.importorskip("rich")
from rich.console import Console

from lsp.tracing import terminal

PIECES, STEPS = ["The", " sum", " is", " 7", "."], [0, 0, 1, 0, 2]


def plain(renderable: object, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_every_run_of_a_pass_is_numbered_also_without_colours() -> None:
    assert plain(terminal.answer(PIECES, STEPS)) == "[1]The sum[2] is[1] 7[3].\n"
    assert plain(terminal.answer([], [])) == "\n"


def test_greens_fall_from_light_to_dark_and_stay_readable() -> None:
    greens, luminances = [], []
    for step in range(9):
        style = terminal.shade(step, 8)
        ink, ground = (luminance(colour.triplet) for colour in (style.color, style.bgcolor))
        assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) > 4.5  # as WCAG asks for
        red, green, blue = style.bgcolor.triplet
        assert green > max(red, blue)
        greens.append(green)
        luminances.append(ground)
    assert greens == sorted(greens, reverse=True)
    assert luminances == sorted(set(luminances), reverse=True)
    assert terminal.shade(0, 0) == terminal.shade(0, 8)


def luminance(triplet: tuple[int, int, int]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in triplet)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_markup_in_an_answer_is_only_text() -> None:
    assert plain(terminal.answer(["[bold]", "[/]", "[red]x"], [0, 1, 1])) == "[1][bold][2][/][red]x\n"


class Bytes:
    """A tokenizer with a token per byte, and 0 for the end."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i).decode(errors="replace")


@pytest.mark.parametrize("shown", ["größe 漢字🙂!", "grö", ""], ids=["whole", "up to a stop string", "nothing"])
def test_pieces_join_to_the_text_and_hold_whole_characters(shown: str) -> None:
    tokens = [*"größe 漢字🙂!".encode(), 0]
    out = lsp.Generation(shown, tokens, True, [0] * len(tokens), 1, 1, {}, lsp.Full(), lsp.Options())
    pieces = terminal.pieces_of(out, Bytes())
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == shown
    assert [piece for piece in pieces if piece] == list(shown)


def test_a_trace_shows_the_same_answer() -> None:
    model = lsp.load("tiny")
    tokenizer, prompt = lsp.load_tokenizer(model), "Use 3, 5 and 7 to make 15.\n"
    (out,) = lsp.generate(model, prompt, tokenizer=tokenizer, max_new_tokens=32)
    trace: Trace = lsp.trace(model, prompt, tokenizer=tokenizer, max_new_tokens=32)[0]
    pieces = ["" if token in trace.stops else trace.pieces[token] for token in trace.tokens]
    of_trace = terminal.answer(pieces, trace.committed_in)
    assert of_trace.plain == terminal.answer(terminal.pieces_of(out, tokenizer), out.committed_in).plain


def test_a_table_has_ratios_against_its_base_and_fits_80_columns() -> None:
    rows = [
        terminal.Row("LSP", "10/12", 24, 2087, 221, 0.203),
        terminal.Row("Full, blocks", "9/12", 228, 15528, 228, 1.6),
    ]
    lines = plain(terminal.table({"one": rows, "[two]": rows}, base="Full, blocks")).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["one"],
        ["LSP", "10/12", "24", "(9.5x)", "2087", "(7.4x)", "9.2", "0.203", "(7.9x)"],
        ["Full,", "blocks", "9/12", "228", "15528", "1.0", "1.600"],
    ]
    assert lines[4].strip() == "[two]"
    assert lines[5:] == lines[2:4]
    assert "one" not in plain(terminal.table({"one": rows}, base="LSP"))
    idle = terminal.Row("idle", "no", 0, 0, 0, 0.0)
    assert "(" not in plain(terminal.table({"": [idle]}, base="idle"))

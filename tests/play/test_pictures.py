"""Pictures of traces for slides: what is drawn can be read, is inside, and is explained."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

import lsp
from lsp.tracing import pictures
from lsp.tracing.states import cells
from tests import traces

SHORT = "Use 3, 5 and 7 to make 15.\n"
SHOWN = {
    "one": ("islands",),
    "two": ("paper", "full"),
    "four": ("lsp", "islands", "threshold", "prophet"),
}


def short() -> lsp.Trace:
    """A trace whose answer fits into one line."""
    (out,) = lsp.trace(lsp.load("tiny"), SHORT, max_new_tokens=48, scheduler=lsp.Threshold(0.9))
    return out


def long() -> lsp.Trace:
    """A trace whose answer has far more lines than there is room for."""

    def forward(ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(1 + torch.arange(ids.size(1)) % 5, 7)[None].float()

    model = lsp.adapt(forward, vocab_size=7, mask_id=6)
    (out,) = lsp.trace(model, [1], max_new_tokens=400, scheduler=lsp.FixedPrefix(50))
    return out


def drawn(shown: Sequence[lsp.Trace], passes: Sequence[int]) -> Iterator[tuple[int, pictures.Picture]]:
    """The picture of every pass."""
    with pictures.drawing(shown, passes) as picture:
        FigureCanvasAgg(picture.figure)
        for at in passes:
            picture.figure.clear()
            picture.draw(at, "")
            picture.figure.canvas.draw()
            yield at, picture


def texts(picture: pictures.Picture) -> list[Text]:
    return [text for text in picture.figure.findobj(Text) if text.get_visible() and text.get_text()]


def heights(picture: pictures.Picture) -> list[float]:
    """Those of the chips of all traces, in pixels."""
    boxes = [axes.patches for axes in picture.figure.axes[::2]]
    return [box.get_window_extent().height for each in boxes for box in each if isinstance(box, Rectangle)]


@pytest.mark.parametrize("name", SHOWN)
def test_all_text_is_inside(name: str) -> None:
    for _, picture in drawn([traces.of(one) for one in SHOWN[name]], [1, 2, 3]):
        width, height = picture.figure.canvas.get_width_height()
        for text in texts(picture):
            box = text.get_window_extent()
            assert (box.x0 >= 0, box.y0 >= 0, box.x1 <= width, box.y1 <= height) == (True,) * 4, text


@pytest.mark.parametrize("several", [1, 2])
def test_a_chip_is_as_high_as_its_letters_and_stays_so(several: int) -> None:
    for shown in ([short()] * several, [traces.of("paper")] * several):
        found = []
        for _, picture in drawn(shown, [1, 2, 3]):
            letters = [text.get_fontsize() for text in texts(picture) if text.get_family() == ["monospace"]]
            found += heights(picture)
            assert min(found) > max(letters) * picture.figure.dpi / 72
        assert max(found) == pytest.approx(min(found))


@pytest.mark.parametrize("name", SHOWN)
def test_what_a_picture_shows_its_legend_explains(name: str) -> None:
    shown = [traces.of(one) for one in SHOWN[name]]
    for at, picture in drawn(shown, [1, 2]):
        states = {cell.state for trace in shown for cell in cells(trace, min(at, trace.passes) - 1)}
        (legend,) = picture.figure.legends
        labels = {text.get_text() for text in legend.get_texts()}
        assert labels >= {pictures.WORDS[state] for state in states if state in pictures.WORDS}
        assert states <= {*pictures.WORDS, "dropped", "given"}  # these say it themselves: a number, and no frame


def test_two_runs_of_one_scheduler_can_be_told_apart() -> None:
    shown = [traces.of("lsp"), traces.of("islands")]
    assert shown[0].name == shown[1].name
    for _, picture in drawn(shown, [1]):
        words = {text.get_text() for text in texts(picture)}
        assert words >= {", ".join(one.notes) for one in shown}


def test_the_frames_of_an_animation_are_the_passes() -> None:
    trace = long()
    moving = Image.open(io.BytesIO(pictures.animated([trace])))
    assert moving.n_frames == trace.passes
    frames = []
    for number in range(moving.n_frames):
        moving.seek(number)
        frames.append(np.asarray(moving.convert("RGB"), dtype=int))
        assert (moving.info["duration"] > 2000) == (number == moving.n_frames - 1)  # the last one stays
    figure = next(drawn([trace], range(1, trace.passes + 1)))[1].figure
    assert frames[0].shape[::-1][1:] == tuple(round(inches * pictures.DPI) for inches in figure.get_size_inches())
    for colour in ("#ffffff", pictures.ACCENT, pictures.FILLS["frozen"]):  # as they are drawn, but for a shade
        near = np.abs(frames[4] - [round(255 * part) for part in to_rgb(colour)]).max(-1) <= 3
        assert near.sum() > 500, colour


def test_an_animation_may_have_a_single_frame() -> None:
    trace = long()
    once = replace(trace, steps=trace.steps[:1], passes=1, committed_in=[0] * 50 + [1] * 350)
    moving = Image.open(io.BytesIO(pictures.animated([once])))
    assert moving.n_frames == 1


def test_an_animation_can_be_ended_before_each_frame() -> None:
    drawn = []

    def ends() -> None:
        drawn.append(1)
        if len(drawn) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        pictures.animated([long()], before_each=ends)
    assert pictures.animated([short()]).startswith(b"GIF89a")  # the next one is drawn


def test_text_is_no_formula() -> None:
    strange = replace(short(), name="$\\frac{$", notes=["$\\frac{$"], measure="$\\frac{$", pieces={})
    assert pictures.still([strange], 1, title="$\\frac{$").startswith(b"<?xml")


def test_of_a_long_answer_the_lines_around_the_front_are_drawn_and_the_others_counted() -> None:
    trace = long()
    for k in range(trace.passes):
        whole = pictures.Layout.of(trace, k)
        chips = whole.window(pictures.MOST_LINES)
        hints = {chip.line: int(chip.text.split()[1]) for chip in chips if chip.state == "more"}
        lines = {chip.line for chip in chips if chip.state != "more"}
        assert lines | set(hints) == set(range(pictures.MOST_LINES))
        assert len(lines) + sum(hints.values()) == len(whole.lines)
        front = next(chip.line for chip in whole.chips if chip.state == "now")
        assert hints.get(0, 0) <= front < len(whole.lines) - hints.get(pictures.MOST_LINES - 1, 0)


def test_how_many_lines_are_left_out_can_be_read() -> None:
    for _, picture in drawn([long()] * 2, [4]):
        hints = [text.get_text() for text in texts(picture) if text.get_text().startswith("…")]
        assert len(hints) == 4  # above and below, of each trace


def test_the_last_pass_of_every_run_has_its_verdict() -> None:
    shown = [replace(traces.of("lsp"), verdict="right"), replace(traces.of("full"), verdict="wrong")]
    last = max(one.passes for one in shown)
    for _, picture in drawn(shown, [last]):
        words = {text.get_text() for text in texts(picture)}
        assert words >= {f"finished in pass {one.passes}, {one.verdict}" for one in shown}

"""The page of traces in a real browser. Run by ``make test-browser``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lsp
from lsp.tracing import html
from lsp.tracing.headline import headline
from lsp.tracing.states import cells
from tests import traces
from tests.browser import chromium
from tests.browser.looks import CONTRASTS, LISTEN, problems

pytest.importorskip("transformers")
pytestmark = pytest.mark.browser

NAMES = ("lsp", "threshold")
SENTENCES = "[...document.querySelectorAll('.sentence')].map(node => node.textContent)"
SEQUENCES = "[...document.querySelectorAll('.sequence')].map(node => node.textContent)"
COUNT = "document.getElementById('count').textContent"
OPEN_ALL = """Promise.all([...document.querySelectorAll("details")].map((node) => new Promise((done) => {
  node.addEventListener("toggle", () => done());
  node.open = true;
})))"""


@pytest.fixture
def page(browser: chromium.Chromium, tmp_path: Path) -> Iterator[chromium.Chromium]:
    """Two traces on a wide screen; in the end nothing has failed and nothing was fetched."""
    show(browser, tmp_path, *map(traces.of, NAMES))
    yield browser
    assert problems(browser) == []


def show(browser: chromium.Chromium, folder: Path, *shown: lsp.Trace, width: int = 1280, dark: bool = False) -> None:
    path = folder / "page.html"
    html.write(path, shown)
    browser.size(width, 740)
    browser.prefer(color_scheme="dark" if dark else "light", reduced_motion="reduce")
    browser.open(path)


def test_it_opens_with_the_first_pass(page: chromium.Chromium) -> None:
    passes = max(traces.of(name).passes for name in NAMES)
    assert page.run(COUNT) == f"pass 1 of {passes}"
    headings = page.run("[...document.querySelectorAll('article h2')].map(node => node.textContent)")
    assert headings == ["Longest stable prefix", "Confidence threshold"]
    assert all(sentence.startswith("Pass 1: 64 masks.") for sentence in page.run(SENTENCES))
    assert page.run("document.querySelector('#prompt pre').textContent") == traces.PROMPT


def test_the_address_leads_to_a_pass_and_follows_what_is_shown(browser: chromium.Chromium, tmp_path: Path) -> None:
    show(browser, tmp_path, *map(traces.of, NAMES))
    passes = max(traces.of(name).passes for name in NAMES)
    for asked, shown in ((3, 3), (0, 1), (10**6, passes)):
        browser.open("about:blank")
        browser.open(f"{(tmp_path / 'page.html').as_uri()}#pass={asked}")
        assert browser.run(COUNT) == f"pass {shown} of {passes}"
    browser.press("Home")
    browser.press("ArrowRight")
    assert browser.run("new Promise((done) => setTimeout(() => done(location.hash), 1000))") == "#pass=2"
    browser.run("location.hash = '#pass=3'; null")
    assert browser.run(f"new Promise((done) => setTimeout(() => done({COUNT}), 100))") == f"pass 3 of {passes}"
    assert problems(browser) == []


def test_the_headline_is_the_difference(page: chromium.Chromium) -> None:
    assert page.run("document.querySelector('#headline p').textContent") == headline([*map(traces.of, NAMES)])


def asked(prompt: str, length: int | None) -> list[lsp.Trace]:
    return [
        lsp.trace(lsp.load("tiny"), prompt, max_new_tokens=length, scheduler=name)[0] for name in ("lsp", "threshold")
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [((traces.PROMPT, 8), (traces.PROMPT, 9)), (("Use <mask:2> and 7.", None), ("Use <mask:2> and 8.", None))],
    ids=["other lengths", "other words after a hole"],
)
def test_answers_to_different_questions_have_no_headline(
    browser: chromium.Chromium, tmp_path: Path, one: tuple[str, int | None], other: tuple[str, int | None]
) -> None:
    seen = "document.getElementById('headline').checkVisibility()"
    show(browser, tmp_path, *asked(*one))
    assert browser.run(seen)
    mixed = [asked(*one)[0], asked(*other)[1]]
    assert mixed[0].prompt == mixed[1].prompt
    show(browser, tmp_path, *mixed)
    assert not browser.run(seen)
    assert headline(mixed) == ""
    assert problems(browser) == []


def test_answers_that_are_drawn_in_another_way_say_so(browser: chromium.Chromium, tmp_path: Path) -> None:
    model = lsp.load("tiny")
    drawn = [lsp.trace(model, traces.PROMPT, max_new_tokens=8, temperature=t, seed=3)[0] for t in (0.0, 0.7)]
    show(browser, tmp_path, *drawn)
    assert "temperature 0.7, seed 3" in browser.run("document.querySelector('#headline p:last-child').textContent")
    notes = browser.run("[...document.querySelectorAll('.notes')].map((node) => node.textContent)")
    assert [("seed" in note, note.endswith("max new tokens 8")) for note in notes] == [(False, True), (True, True)]
    assert problems(browser) == []


@pytest.mark.parametrize("name", traces.SCHEDULERS)
def test_every_mark_of_a_plot_is_explained_under_it(browser: chromium.Chromium, tmp_path: Path, name: str) -> None:
    trace = traces.of(name)
    show(browser, tmp_path, trace)
    marks = set()
    for _ in range(trace.passes):
        found = browser.run("[...document.querySelectorAll('svg text.mark')].map((node) => node.textContent)")
        marks |= {mark for text in found for mark in text.split(" = ")}
        browser.press("ArrowRight")
    assert bool(marks) == (name in ("lsp", "islands", "fading", "paper"))
    caption = browser.run("document.querySelector('.caption').textContent")
    assert caption.startswith("Margin: " if trace.measure == "margin" else "Confidence: ")
    assert ("the next one, less 0.25 for every mask before it." in caption) == (name == "fading")
    named = {word for part in caption.split(".") for word in part.partition(":")[0].replace(",", " ").split()}
    assert marks <= named
    for mark in ("lo", "snap"):
        assert (mark in marks) == (mark in named)


@pytest.mark.parametrize("focus", ["document.activeElement.blur()", "document.getElementById('pass').focus()"])
def test_keys_move_all_traces(page: chromium.Chromium, focus: str) -> None:
    passes = max(traces.of(name).passes for name in NAMES)
    page.run(focus)
    before = page.run(SENTENCES), page.run(SEQUENCES)
    page.press("ArrowRight")
    assert page.run(COUNT) == f"pass 2 of {passes}"
    after = page.run(SENTENCES), page.run(SEQUENCES)
    for was, became in zip(before, after, strict=True):
        assert all(a != b for a, b in zip(was, became, strict=True))
    page.press("End")
    assert page.run(COUNT) == f"pass {passes} of {passes}"
    page.press("ArrowLeft")
    assert page.run(COUNT) == f"pass {passes - 1} of {passes}"
    page.press("Home")
    assert (page.run(SENTENCES), page.run(SEQUENCES)) == before


def test_buttons_move_and_stop_at_the_ends(page: chromium.Chromium) -> None:
    assert page.run("[previous.ariaDisabled, next.ariaDisabled]") == ["true", "false"]
    page.click("#next")
    assert page.run(COUNT).startswith("pass 2 of")
    page.click("#previous")
    assert page.run(COUNT).startswith("pass 1 of")
    page.press("End")
    assert page.run("[previous.ariaDisabled, next.ariaDisabled]") == ["false", "true"]


def test_play_goes_on_by_itself_and_does_not_talk_meanwhile(page: chromium.Chromium) -> None:
    page.run(LISTEN)
    page.click("#play")
    assert page.run("play.textContent") == "Pause"
    script = (
        "new Promise(done => new MutationObserver(() => done(count.textContent)).observe(count, {childList: true}))"
    )
    assert page.run(script).startswith("pass 2 of")
    page.click("#play")
    assert page.run("[play.textContent, spoken.length]") == ["Play", 0]
    page.click("#next")
    assert sorted(region for region, _ in page.run("spoken")) == ["count", "sentence", "sentence"]


def test_the_last_pass_shows_the_answer_and_a_shorter_trace_stays_at_its_end(
    browser: chromium.Chromium, tmp_path: Path
) -> None:
    short, long = traces.of("lsp"), traces.of("full")  # as many passes as tokens
    assert short.passes < long.passes
    show(browser, tmp_path, short, long)
    browser.press("End")
    sentences = browser.run(SENTENCES)
    assert sentences[0].startswith(f"Finished in pass {short.passes}:")
    assert sentences[1].startswith(f"Pass {long.passes}:")
    for trace, sequence in zip((short, long), browser.run(SEQUENCES), strict=True):
        assert sequence.startswith(trace.text)
    assert problems(browser) == []


def test_a_page_says_whether_the_answers_are_right(browser: chromium.Chromium, tmp_path: Path) -> None:
    show(browser, tmp_path, replace(traces.of("lsp"), verdict="right"), replace(traces.of("full"), verdict="wrong"))
    verdicts = "[...document.querySelectorAll('.verdict')].map((node) => node.textContent)"
    assert browser.run(verdicts) == ["✓ right", "✗ wrong"]
    sentence = browser.run("document.querySelector('#headline p:last-child').textContent")
    assert sentence.endswith(" The first answer is right, the other one wrong.")
    assert problems(browser) == []


def test_a_column_that_is_pointed_at_says_what_it_is(page: chromium.Chromium) -> None:
    titles = "[...document.querySelectorAll('svg title')].map((node) => node.textContent)"
    assert page.run(titles) == []
    page.run("document.querySelector('svg [data-at=\"3\"] .column').scrollIntoView({ block: 'center' })")
    at = page.run(
        "(({ x, y }) => [x + 2, y + 60])(document.querySelector('svg [data-at=\"3\"]').getBoundingClientRect())"
    )
    page("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    (title,) = page.run(titles)
    assert title.startswith("position 4: ")
    assert page.run("document.querySelector('.readout').textContent") == title
    page.press("ArrowRight")
    assert page.run(titles) == []


def test_of_more_than_two_traces_the_headline_has_every_one(browser: chromium.Chromium, tmp_path: Path) -> None:
    judged = {"full": "right", "threshold": "wrong", "lsp": "right", "fixed": None}
    shown = [replace(traces.of(name), verdict=verdict) for name, verdict in judged.items()]
    show(browser, tmp_path, *shown)
    assert browser.run("document.querySelector('#headline p').textContent") == headline(shown)
    lines = browser.run("document.querySelector('#headline p:last-child').innerText").split("\n")
    wanted = [
        f"{one.name}: {one.passes} passes and {one.positions:,} positions{f', {one.verdict}' if one.verdict else ''}"
        for one in sorted(shown, key=lambda one: one.positions)
    ]
    assert lines == wanted
    assert problems(browser) == []


def test_a_run_that_was_stopped_has_masks_left(browser: chromium.Chromium, tmp_path: Path) -> None:
    stopped, whole = traces.stopped(traces.of("scattered"), 3), traces.of("full")
    show(browser, tmp_path, stopped, whole)
    open_ = sum(number == 3 for number in stopped.committed_in)
    browser.press("End")
    assert browser.run(SENTENCES)[0] == f"Stopped after pass 3: {open_} masks left."
    assert browser.run("document.querySelector('#headline p').textContent") == headline([stopped, whole])
    states = [cell.state for cell in cells(stopped, 2)]
    assert states.count("masked") + states.count("cut") == open_
    kinds = (
        "[...document.querySelectorAll('article')[0].querySelectorAll('rect.strip')].map((node) => node.classList[1])"
    )
    assert browser.run(kinds) == states
    figures = "[...document.querySelectorAll('article')[0].querySelectorAll('dd')].map((node) => node.textContent)"
    assert str(sum(0 <= number < 3 for number in stopped.committed_in)) in browser.run(figures)
    assert problems(browser) == []


def test_masks_that_predict_line_ends_take_one_line(browser: chromium.Chromium, tmp_path: Path) -> None:
    """With a line each, what is below would move with every pass."""
    trace = traces.of("full")
    first = trace.steps[0]
    line_end = max(trace.pieces) + 1
    predicted = replace(first, tokens=[line_end] * len(first.tokens))
    show(
        browser, tmp_path, replace(trace, steps=[predicted, *trace.steps[1:]], pieces={**trace.pieces, line_end: "\n"})
    )
    assert f"↵×{first.chosen[0] - first.masks[0]}" in browser.run(SEQUENCES)[0]
    assert browser.run("document.querySelector('.sequence').getBoundingClientRect().height") < 150


def test_committed_tokens_are_marked_and_drawn(page: chromium.Chromium) -> None:
    for i, name in enumerate(NAMES):
        trace = traces.of(name)
        step = trace.steps[0]
        stops = [at for at, token in zip(step.chosen, step.written, strict=True) if token in trace.stops]
        committed = sum(at <= min(stops, default=at) for at in step.chosen)  # what is behind a stop is dropped
        article = f"document.querySelectorAll('article')[{i}]"
        for drawn in (".sequence .now", "rect.bar.now"):
            assert page.run(f"{article}.querySelectorAll('{drawn}').length") == committed
        assert page.run(f"{article}.querySelectorAll('rect.bar').length") == 64


def test_values_are_there_as_a_table(page: chromium.Chromium) -> None:
    page.run(OPEN_ALL)
    assert page.run("[...document.querySelectorAll('table')].map(node => node.tBodies[0].rows.length)") == [64, 64]
    page.press("ArrowRight")
    assert page.run("document.querySelectorAll('table')[1].tBodies[0].rows.length") < 64


ROWS = """[...document.querySelectorAll("table")].map((table) =>
  [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent)))"""


def shown_as(text: str, value: float | None) -> bool:
    """Whether a text of the table is that number, with the few digits that it has room for."""
    if value is None:
        return text == "∞"
    return float(text.removeprefix("> ")) == pytest.approx(value, rel=0.05, abs=0.001)


@pytest.mark.parametrize("name", traces.SCHEDULERS)
def test_every_value_of_every_pass_is_what_was_recorded(browser: chromium.Chromium, tmp_path: Path, name: str) -> None:
    """The page holds only what changes from pass to pass, and writes the rest out itself."""
    trace = traces.of(name)
    show(browser, tmp_path, trace)
    browser.run(OPEN_ALL)
    for step in trace.steps:
        (rows,) = browser.run(ROWS)
        assert [int(row[0]) - 1 + len(trace.prompt) for row in rows] == step.masks_in_pass
        assert all(shown_as(row[2], margin) for row, margin in zip(rows, step.margins, strict=True))
        assert all(shown_as(row[3], confidence) for row, confidence in zip(rows, step.confidence, strict=True))
        taken = set(step.chosen)
        for row, position, token in zip(rows, step.masks_in_pass, step.tokens, strict=True):
            if position not in taken:
                assert row[1] == ("∎" if token in trace.stops else trace.pieces[token].replace("\n", "↵"))
        browser.press("ArrowRight")
    assert problems(browser) == []


def test_a_number_that_is_none_is_shown_as_unknown(browser: chromium.Chromium, tmp_path: Path) -> None:
    show(browser, tmp_path, *(traces.broken_ahead(scheduler) for scheduler in (lsp.FixedPrefix(1), lsp.Threshold())))
    browser.run(OPEN_ALL)
    for rows in browser.run(ROWS):
        assert [row[2:4] for row in rows][-1] == ["–", "–"]
    titles = browser.run("[...document.querySelectorAll('.sequence .chip:last-of-type')].map(node => node.title)")
    assert all("the model gave no number" in title for title in titles)
    labels = browser.run("[...document.querySelectorAll('svg')].map(node => node.getAttribute('aria-label'))")
    for text in [*browser.run(SENTENCES), *browser.run(SEQUENCES), *labels]:
        assert not any(word in text for word in ("undefined", "NaN", "null"))
    assert problems(browser) == []


def test_every_control_has_a_name(page: chromium.Chromium) -> None:
    controls = {"slider", "button", "DisclosureTriangle", "image"}
    found = [(role, name) for role, name in page.names() if role in controls]
    assert {role for role, _ in found} >= {"slider", "button", "image"}
    assert all(name for _, name in found)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read(browser: chromium.Chromium, tmp_path: Path, dark: bool) -> None:
    show(browser, tmp_path, traces.of("islands"), traces.of("paper"), dark=dark)
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(15, 19, 23)" if dark else "rgb(245, 246, 248)")
    seen: set[str] = set()
    for _ in range(4):
        contrasts = browser.run(CONTRASTS)
        assert {name: value for name, value in contrasts.items() if value < 4.5} == {}
        seen |= set(contrasts)
        browser.press("ArrowRight")
    for state in ("frozen", "front", "now", "cut", "masked", "dropped", "by-pass", "text mark"):
        assert any(state in name for name in seen), state
    assert problems(browser) == []


@pytest.mark.parametrize("several", [("lsp",), NAMES, ("islands", "paper", "scattered")], ids=len)
def test_a_phone_scrolls_down_only(browser: chromium.Chromium, tmp_path: Path, several: tuple[str, ...]) -> None:
    show(browser, tmp_path, *map(traces.of, several), width=360)
    for key in ("Home", "ArrowRight", "End"):
        browser.press(key)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    tops = browser.run("[...document.querySelectorAll('article')].map(node => node.getBoundingClientRect().top)")
    assert len(set(tops)) == len(several)
    browser.size(1400, 740)
    tops = browser.run("[...document.querySelectorAll('article')].map(node => node.getBoundingClientRect().top)")
    assert len(set(tops)) == 1
    assert problems(browser) == []


def test_a_hostile_prompt_runs_nothing(browser: chromium.Chromium, tmp_path: Path) -> None:
    shown = traces.hostile(traces.of("islands"))
    show(browser, tmp_path, shown, replace(shown, prompt=shown.prompt[:1]))
    for _ in range(shown.passes):
        browser.press("ArrowRight")
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.querySelector('article .prompt pre').textContent").startswith(traces.HOSTILE)
    assert problems(browser) == []


@pytest.mark.parametrize("name", traces.SCHEDULERS)
def test_every_scheduler_can_be_stepped_through(browser: chromium.Chromium, tmp_path: Path, name: str) -> None:
    trace = traces.of(name)
    show(browser, tmp_path, trace, replace(trace, pieces={}))  # and without a tokenizer
    for index in range(trace.passes):
        assert all(sentence.startswith(f"Pass {index + 1}: ") for sentence in browser.run(SENTENCES))
        for text in browser.run(SENTENCES) + browser.run(SEQUENCES):
            assert not any(word in text for word in ("undefined", "NaN", "null"))
        browser.press("ArrowRight")
    assert f"⟨{trace.tokens[0]}⟩" in browser.run(SEQUENCES)[1]
    assert problems(browser) == []


def test_a_trace_without_passes_is_shown(browser: chromium.Chromium, tmp_path: Path) -> None:
    empty = {"steps": [], "tokens": [], "committed_in": [], "passes": 0, "positions": 0, "max_new_tokens": 0}
    show(browser, tmp_path, replace(traces.of("lsp"), **empty))
    assert browser.run(SENTENCES) == ["No pass was needed."]
    assert problems(browser) == []


@pytest.mark.parametrize("name", ["lsp", "islands", "paper"])
def test_a_sentence_says_why(browser: chromium.Chromium, tmp_path: Path, name: str) -> None:
    trace = traces.of(name)
    show(browser, tmp_path, trace)
    for step in trace.steps:
        (sentence,) = browser.run(SENTENCES)
        assert step.rule is not None
        if trace.level is not None and step.margins[0] < trace.level:
            assert "is under the floor 2: " in sentence
            forced = step.chosen == step.masks[:1] and step.margins[0] < (trace.islands or 99)
            assert ("forced to commit the first token" in sentence) == forced
            assert ("stable island" in sentence) != forced
        elif trace.level is not None:
            assert f"at or above the floor 2 has length {step.rule.candidate} (L′)" in sentence
        else:
            assert f"Between lo = {step.rule.lo} and hi = {step.rule.hi}" in sentence
        if step.rule.snap not in (None, step.rule.candidate):
            assert f"the last delimiter cuts it to {step.rule.snap}" in sentence
        browser.press("ArrowRight")

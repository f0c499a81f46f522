"""Runs of the playground in a real browser. Run by ``make test-browser``."""

from __future__ import annotations

import gc
import json
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import lsp
from lsp.play import Playground
from lsp.play.page import DEFAULTS
from lsp.tiny.tasks import Problem, verify
from lsp.tracing.headline import headline
from lsp.tracing.states import cells
from tests.browser import chromium
from tests.browser.looks import problems
from tests.browser.playing import (
    COUNT,
    FIGURES,
    HEADLINE,
    IDLE,
    NAMES,
    NOTES,
    PROMPT,
    REMEMBER_FIGURES,
    STATES,
    STATUS,
    decode,
    field,
    first_example,
    first_problem,
    first_prompt,
    four_runs,
    longest,
    show,
    somebody_before,
)
from tests.play.serving import model, served, slow_down, until
from tests.traces import HOSTILE

pytestmark = pytest.mark.browser


def test_both_panels_advance(page: chromium.Chromium) -> None:
    page.run("document.getElementById('pace').value = '60'")
    page.run(REMEMBER_FIGURES)
    page.run("document.getElementById('run').click()")
    until(lambda: page.run(IDLE) and len(page.run("seen")) > 4)
    pairs = [pair for pair in page.run("seen") if len(pair) == 2]
    assert len({left for left, _ in pairs}) > 2
    assert len({right for _, right in pairs}) > 2
    until(lambda: page.run(COUNT) == f"pass {longest()} of {longest()}")
    assert page.run(FIGURES) == [trace.passes for trace in first_example()]
    assert page.run(HEADLINE) == headline(first_example())
    texts = [trace.text or "" for trace in first_example()]
    verdicts = ["✓ right" if right else "✗ wrong" for right in verify([first_problem()] * 2, texts)]
    assert page.run("[...document.querySelectorAll('.verdict')].map((node) => node.textContent)") == verdicts


def test_what_a_chip_is_the_trace_says_too(page: chromium.Chromium) -> None:
    decode(page)
    page.press("Home")
    for k in range(4):
        for trace, chips in zip(first_example(), page.run(STATES), strict=True):
            states = cells(trace, min(k, trace.passes - 1))  # a run that has ended stays as it is
            assert chips == [[at, states[at].state] for at, _ in chips]
            assert {at for at, _ in chips} >= {at for at, cell in enumerate(states) if cell.state == "now"}
        page.press("ArrowRight")


@pytest.mark.parametrize("scheduler", ["lsp", "threshold"])
def test_tokens_that_a_stop_has_dropped_are_not_counted(page: chromium.Chromium, scheduler: str) -> None:
    """The figure is that of the saved page in the end, and before it what can be seen."""
    decode(page, scheduler__0=scheduler)
    (trace,) = lsp.trace(model()[0], first_prompt(page), scheduler=scheduler, max_new_tokens=96)
    page.press("Home")
    for k in range(trace.passes):
        kept = sum(cell.state in ("frozen", "front", "now") for cell in cells(trace, k))
        assert page.run("Number(document.querySelector('[data-is=tokens]').textContent)") == kept
        page.press("ArrowRight")
    assert kept == len(trace.tokens)


def test_parameters_apply_and_what_has_changed_runs_beside_the_last(
    browser: chromium.Chromium, server: tuple[str, Playground]
) -> None:
    show(page := browser, server[0])
    decode(page, scheduler__1="threshold", p__1="0.7")
    assert page.run(NAMES) == ["Longest stable prefix", "Confidence threshold"]
    assert page.run(NOTES)[1] == "p = 0.7, max new tokens 96"
    decode(page, "#again", p__1="0.99")
    assert page.run(NAMES)[1:] == ["Confidence threshold"] * 2
    assert [note.partition(",")[0] for note in page.run(NOTES)[1:]] == ["p = 0.7", "p = 0.99"]


@pytest.mark.parametrize("button", ["run", "again"])
def test_a_request_that_is_refused_takes_nothing_away(
    browser: chromium.Chromium, server: tuple[str, Playground], button: str
) -> None:
    show(page := browser, server[0])
    four_runs(page, length="8")
    before = page.run(NOTES)
    field(page, "p__1", "7")
    page.run(f"document.getElementById('{button}').click()")
    until(lambda: page.run(STATUS).startswith("Invalid p: expected"))
    assert page.run(NOTES) == before
    assert len(before) == 4
    field(page, "seed", "-1")  # which the browser itself refuses
    page.run(f"document.getElementById('{button}').click()")
    assert page.run(STATUS) == ""


def test_a_stopped_run_stays_until_the_next_one_begins(
    browser: chromium.Chromium, server: tuple[str, Playground], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(page := browser, server[0])
    slow_down(monkeypatch)
    field(page, "scheduler__0", "threshold")
    page.run("document.getElementById('run').click()")
    until(lambda: min(page.run(FIGURES), default=0) > 1)
    page.run("document.getElementById('stop').click()")
    monkeypatch.undo()
    until(lambda: len(server[1].line) == 0)
    before = page.run(FIGURES)
    field(page, "p__0", "7")
    page.run("document.getElementById('again').click()")
    until(lambda: page.run(STATUS).startswith("Invalid p: expected"))
    assert page.run(FIGURES) == before
    with somebody_before(server[1]):
        field(page, "p__0", "0.7")
        page.run("document.getElementById('again').click()")
        until(lambda: page.run(STATUS).startswith("in line"))
        assert page.run(FIGURES) == before
        assert page.run("document.getElementById('save').checkVisibility()")
    until(lambda: page.run(IDLE))
    assert [note.partition(",")[0] for note in page.run(NOTES)] == ["p = 0.7", "max new tokens 96"]


def test_different_questions_have_no_headline(page: chromium.Chromium) -> None:
    decode(page, length="8")
    assert page.run("document.getElementById('headline').checkVisibility()")
    decode(page, "#again", length="16")
    assert len(page.run(NAMES)) == 4
    assert not page.run("document.getElementById('headline').checkVisibility()")


def test_a_temperature_comes_with_its_seed(page: chromium.Chromium) -> None:
    decode(page, length="8", seed="5")
    assert not any("seed" in note for note in page.run(NOTES))
    decode(page, temperature="0.5")
    assert all(note.endswith("temperature 0.5, seed 5, max new tokens 8") for note in page.run(NOTES))


def test_stop_stops_the_model(
    page: chromium.Chromium, server: tuple[str, Playground], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = slow_down(monkeypatch)
    page.run("document.getElementById('run').click()")
    until(lambda: page.run("document.querySelectorAll('article').length") == 2)
    page.run("document.getElementById('stop').click()")
    until(lambda: len(server[1].line) == 0)
    assert len(told) < longest()
    assert page.run(STATUS) == "stopped"
    assert page.run("document.querySelectorAll('article.running').length") == 0


def test_a_hostile_prompt_runs_nothing(page: chromium.Chromium) -> None:
    decode(page, prompt=HOSTILE, length="8")
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.querySelectorAll('img').length") == 0


def test_a_closed_tab_ends_its_run(
    browser: chromium.Chromium, server: tuple[str, Playground], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = slow_down(monkeypatch)
    address, held = server
    with browser.tab():
        show(browser, address)
        browser.run("document.getElementById('run').click()")
        until(lambda: len(told) > 4)
    until(lambda: len(held.line) == 0)
    assert len(told) < longest()


def test_who_waits_sees_the_place_in_the_line(page: chromium.Chromium, server: tuple[str, Playground]) -> None:
    with somebody_before(server[1]):
        page.run("document.getElementById('run').click()")
        until(lambda: page.run(STATUS) == "in line: 1 run before this one")
    until(lambda: page.run(IDLE))
    assert len(page.run(NAMES)) == 2


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problem 1 is found later than the others."""
    find = Playground.problem

    def slowly(held: Playground, task: str, index: int) -> Problem:
        time.sleep(0.6 * (index == 1))
        return find(held, task, index)

    monkeypatch.setattr(Playground, "problem", slowly)


def test_the_problem_that_was_chosen_last_is_shown(
    page: chromium.Chromium, server: tuple[str, Playground], late: None
) -> None:
    field(page, "index", "1")
    field(page, "index", "2")
    wanted = server[1].problem(DEFAULTS["task"], 2).prompt.strip()
    until(lambda: page.run(PROMPT) == wanted)
    time.sleep(1)
    assert page.run(PROMPT) == wanted
    assert page.run("document.getElementById('task').value") == DEFAULTS["task"]


def test_a_problem_that_comes_late_does_not_take_what_was_typed(page: chromium.Chromium, late: None) -> None:
    field(page, "index", "1")
    page.run("document.getElementById('prompt').focus()")
    page.type("mine ")
    typed = page.run(PROMPT)
    time.sleep(1)
    assert page.run(PROMPT) == typed
    assert page.run("document.getElementById('task').value") == ""


def test_a_selection_becomes_a_hole(page: chromium.Chromium) -> None:
    field(page, "prompt", "Use 3, 5 and 7 to make 15.\nFirst 7 + 5 = 12, then 12 + 3 = 15.")
    page.run("""(() => {
      const prompt = document.getElementById("prompt");
      const at = prompt.value.indexOf(" 7 + 5");
      prompt.setSelectionRange(at, at + 11);
    })()""")
    page.run("document.getElementById('hole').click()")
    until(lambda: "<mask:5>" in page.run("document.getElementById('prompt').value"))
    decode(page)
    assert "First" not in page.run("document.querySelector('.sequence').textContent")
    assert page.run("document.querySelector('.answer').textContent").count("then") == 1


def test_a_problem_that_was_changed_is_ones_own(page: chromium.Chromium) -> None:
    chosen = "[document.getElementById('task').value, document.getElementById('index').checkVisibility()]"
    assert page.run(chosen) == [DEFAULTS["task"], True]
    page.run("document.getElementById('prompt').focus()")
    page.type("And ")
    assert page.run(chosen) == ["", False]
    decode(page, length="8")
    assert page.run("document.querySelectorAll('.verdict:not(:empty)').length") == 0


def test_a_model_without_tasks_is_asked_by_prompts_alone(browser: chromium.Chromium) -> None:
    with served(Playground(*model(), name="mine", chat=False, embedded=False)) as (address, _):
        browser.size(1600, 900)
        browser.open(address)
        assert browser.run("document.getElementById('task').checkVisibility()") is False
        decode(browser, prompt="Use 3, 5 and 7 to make 15.\n", length="32", pace="0")
        assert browser.run("document.getElementById('about').textContent").startswith("mine on CPU")
        assert len(browser.run(NAMES)) == 2
        assert browser.run("document.querySelectorAll('.verdict:not(:empty)').length") == 0
        assert problems(browser, address) == []
        browser.open("about:blank")


def test_delimiters_are_marked(page: chromium.Chromium) -> None:
    decode(page)
    page.press("Home")
    for trace, article in zip(first_example(), range(2), strict=True):
        step = trace.steps[0]
        text = f"[...document.querySelectorAll('article')[{article}].querySelectorAll('.sequence .chip.delimiter')]"
        marked = page.run(f"{text}.map((node) => Number(node.dataset.at))")
        tokens = dict(zip(step.masks_in_pass, step.tokens, strict=True)) | dict(
            zip(step.chosen, step.written, strict=True)
        )
        assert marked
        assert all(tokens[at + len(trace.prompt)] in trace.delimiters for at in marked)
        assert all("a delimiter" in title for title in page.run(f"{text}.map((node) => node.title)"))
        drawn = {at for at, _ in page.run(STATES)[article]}
        dropped = {at for at, cell in enumerate(cells(trace, 0)) if cell.state == "dropped"}
        wanted = {p - len(trace.prompt) for p, token in tokens.items() if token in trace.delimiters}
        assert {*marked} == (wanted & drawn) - dropped
    assert page.run("document.querySelector('.legend .delimiter').parentElement.textContent.endsWith('delimiter')")


def test_a_hundred_runs_leave_nothing_behind_on_the_page(page: chromium.Chromium) -> None:
    found = []
    for i in range(110):
        decode(page, length="8")
        if i in (9, 109):
            page("HeapProfiler.collectGarbage")
            found.append(page("Memory.getDOMCounters") | page("Runtime.getHeapUsage"))
    assert found[1]["nodes"] < found[0]["nodes"] + 200  # a run has more, and which pass is shown makes a difference
    assert found[1]["jsEventListeners"] == found[0]["jsEventListeners"]
    assert found[1]["usedSize"] < found[0]["usedSize"] + 2**20


def test_a_hundred_runs_leave_nothing_behind(server: tuple[str, Playground]) -> None:
    address, held = server
    question = {"prompt": "Use 3, 5 and 7 to make 15.", "max_new_tokens": 16, "sides": [{"scheduler": "lsp"}] * 2}
    request = urllib.request.Request(
        f"{address}/api/runs", json.dumps(question).encode(), {"content-type": "application/json"}
    )
    sizes = []
    for i in range(110):
        with urllib.request.urlopen(request) as answer:
            assert b'"done"' in answer.read()
        if i in (9, 109):
            gc.collect()
            sizes.append((memory(), len(gc.get_objects())))
    assert sizes[1][0] < sizes[0][0] + 2**23
    assert sizes[1][1] < sizes[0][1] + 2000
    assert len(held.line) == 0


def memory() -> int:
    """Bytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

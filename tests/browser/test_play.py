"""The playground in a real browser. Run by ``make test-browser``."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import lsp
from lsp.play import Playground
from lsp.play.page import DEFAULTS
from lsp.tiny.tasks import Problem, verify
from lsp.tracing import html
from lsp.tracing.headline import headline
from lsp.tracing.states import cells
from tests import traces as shared
from tests.browser import chromium
from tests.browser.looks import COLLISIONS, CONTRASTS, EDGES, LISTEN, problems, screenshot
from tests.play.serving import model, served, slow_down, until
from tests.traces import HOSTILE

pytestmark = pytest.mark.browser

COUNT = "document.getElementById('count').textContent"
STATUS = "document.getElementById('status').textContent"
PROMPT = "document.getElementById('prompt').value"
HEADLINE = "document.querySelector('#headline p').textContent"
FIGURES = "[...document.querySelectorAll('[data-is=passes]')].map((node) => Number(node.textContent))"
NAMES = "[...document.querySelectorAll('article h2')].map((node) => node.textContent)"
NOTES = "[...document.querySelectorAll('article .notes')].map((node) => node.textContent)"
STATES = """[...document.querySelectorAll("article")].map((article) =>
  [...article.querySelectorAll(".sequence .chip")].map((chip) => [Number(chip.dataset.at), chip.classList[1]]))"""
IDLE = f"document.getElementById('stop').ariaDisabled === 'true' && {STATUS} !== 'starting'"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Playground]]:
    with served() as (address, held):
        held.warm_up()
        yield address, held


@pytest.fixture
def page(browser: chromium.Chromium, server: tuple[str, Playground]) -> Iterator[chromium.Chromium]:
    """The playground as it opens; in the end nothing has failed and nobody else was asked."""
    show(browser, server[0])
    yield browser
    assert problems(browser, server[0]) == []


def show(browser: chromium.Chromium, address: str, width: int = 1600, dark: bool = False) -> None:
    browser.size(width, 900)
    browser.prefer(color_scheme="dark" if dark else "light", reduced_motion="reduce")
    browser.open("about:blank")
    browser.open(address)
    until(lambda: browser.run("document.getElementById('prompt').value.length > 0"))
    browser.run("document.getElementById('pace').value = '0'")


@cache
def first_problem() -> Problem:
    return Playground(*model()).problem(DEFAULTS["task"], DEFAULTS["index"])


@cache
def first_example() -> list[lsp.Trace]:
    """What the page decodes if nothing is changed."""
    loaded, _ = model()
    prompt = [{"role": "user", "content": first_problem().prompt.strip()}]
    return [lsp.trace(loaded, [prompt], scheduler=name, max_new_tokens=96)[0] for name in DEFAULTS["sides"]]


def longest() -> int:
    return max(trace.passes for trace in first_example())


def decode(browser: chromium.Chromium, button: str = "#run", **values: str) -> None:
    """Fills fields in, presses a button and waits for the end."""
    for name, value in values.items():
        field(browser, name, value)
    browser.run(f"document.querySelector('{button}').click()")
    until(lambda: browser.run(IDLE) and browser.run("document.querySelectorAll('article').length") > 0)


def field(browser: chromium.Chromium, name: str, value: str) -> None:
    """Sets a field by its id or, for a parameter, by its name and side: ``p_1`` is that of the right side."""
    name, _, side = name.partition("__")
    where = (
        f"document.querySelectorAll('.side')[{side}].querySelector('[name={name}], .{name}')"
        if side
        else f"document.getElementById('{name}')"
    )
    browser.run(f"(({where}).value = {json.dumps(value)}, ({where}).dispatchEvent(new Event('change')), null)")


def test_both_panels_advance(page: chromium.Chromium) -> None:
    page.run("document.getElementById('pace').value = '60'")
    page.run("document.getElementById('run').click()")
    seen: set[tuple[int, ...]] = set()
    until(lambda: seen.add(tuple(page.run(FIGURES))) or (page.run(IDLE) and len(seen) > 4))
    pairs = [pair for pair in seen if len(pair) == 2]
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


def first_prompt(page: chromium.Chromium) -> list[Any]:
    return [[{"role": "user", "content": page.run("document.getElementById('prompt').value")}]]


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


def four_runs(page: chromium.Chromium, **values: str) -> None:
    decode(page, scheduler__0="threshold", scheduler__1="threshold", p__0="0.6", p__1="0.7", **values)
    decode(page, "#again", p__0="0.8", p__1="0.9")


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


@contextmanager
def somebody_before(held: Playground) -> Iterator[None]:
    """Inside, another run has the model."""

    async def stand_before() -> Any:
        return held.line.join(lambda: iter(gate.wait, True))

    gate = threading.Event()
    before = asyncio.run(stand_before())
    try:
        yield
    finally:
        gate.set()
        before.gone.set()


def test_a_run_is_not_spoken_pass_by_pass(page: chromium.Chromium) -> None:
    page.run(LISTEN)
    decode(page)
    until(lambda: page.run("document.getElementById('play').textContent") == "Play")
    assert page.run("spoken.filter(([id]) => id !== 'status')") == []
    said = page.run("spoken.map(([, text]) => text)")
    assert said[-1] == "finished"
    assert len(said) <= 3
    page.run("document.getElementById('previous').click()")
    assert "count" in page.run("new Promise(requestAnimationFrame).then(() => spoken.map(([id]) => id))")


@pytest.mark.parametrize("name", ["stop", "next", "previous", "again"])
def test_a_button_that_can_do_nothing_keeps_the_focus(page: chromium.Chromium, name: str) -> None:
    if name == "again":
        decode(page, length="8")
    else:
        page.run("document.getElementById('run').click()")
        until(lambda: max(page.run(FIGURES), default=0) > 2)
    page.run(f"document.getElementById('{name}').focus()")
    if name in ("stop", "again"):
        page.press("Enter")
    until(lambda: page.run(IDLE))
    for _ in range(longest() if name in ("next", "previous") else 0):
        page.press("Enter")
    assert page.run("document.activeElement.id") == name
    assert page.run(f"document.getElementById('{name}').ariaDisabled") == str(name != "again").lower()


def test_a_button_that_can_do_nothing_does_nothing(page: chromium.Chromium) -> None:
    for name in ("stop", "again"):
        page.run(f"document.getElementById('{name}').click()")
        assert page.run(f"document.getElementById('{name}').ariaDisabled") == "true"
    time.sleep(0.5)
    assert (page.run(STATUS), page.run(NAMES)) == ("", [])


def test_what_is_out_of_bounds_does_not_run_beside_the_last(page: chromium.Chromium) -> None:
    decode(page, length="8")
    field(page, "temperature", "-1")
    page.run("document.getElementById('again').click()")
    assert page.run("document.activeElement.id") == "temperature"
    assert page.run(STATUS) == "finished"
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


def tab_to(page: chromium.Chromium, name: str) -> None:
    """Presses Tab until what has this id or class, or what is in it, has the focus."""
    for _ in range(80):
        page.press("Tab")
        if page.run(f"document.activeElement.closest('#{name}, .{name}, [data-kind={name}]') !== null"):
            return
    raise AssertionError(f"{name} cannot be reached")


def test_the_keyboard_alone_suffices(page: chromium.Chromium) -> None:
    tab_to(page, "run")
    page.press("Enter")
    until(lambda: page.run("document.querySelectorAll('article').length") == 2)
    until(lambda: page.run(f"!/of [012] /.test({COUNT})"))
    page.press("Home")
    assert page.run(COUNT).startswith("pass 1 of ")
    page.press("ArrowRight")
    assert page.run(COUNT).startswith("pass 2 of ")
    page.press("ArrowLeft")
    assert page.run(COUNT).startswith("pass 1 of ")
    until(lambda: page.run(IDLE))
    page.press("End")
    assert page.run(COUNT) == f"pass {longest()} of {longest()}"


def test_keys_choose_a_scheduler_and_run_it_beside_the_last(page: chromium.Chromium) -> None:
    decode(page, length="8")
    before = page.run(NAMES)
    page.run("document.getElementById('prompt').focus()")
    tab_to(page, "scheduler")
    page.press("ArrowDown")
    chosen = page.run("document.activeElement.selectedOptions[0].textContent")
    tab_to(page, "again")
    page.press("Enter")
    until(lambda: len(page.run(NAMES)) == 3 and page.run(IDLE))
    assert [name.removesuffix(" …") for name in page.run(NAMES)[:2]] == before
    assert chosen.startswith(page.run(NAMES)[2])


def test_keys_make_a_hole(page: chromium.Chromium) -> None:
    page.run("document.getElementById('prompt').focus(), document.getElementById('prompt').setSelectionRange(0, 0)")
    for _ in range(7):
        page.press("ArrowRight", shift=True)
    tab_to(page, "hole")
    page.press("Enter")
    until(lambda: page.run(PROMPT).startswith("<mask:"))
    assert page.run("document.activeElement.id") == "prompt"


def test_keys_stop_save_and_open(
    browser: chromium.Chromium, server: tuple[str, Playground], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(page := browser, server[0])
    slow_down(monkeypatch)
    tab_to(page, "run")
    page.press("Enter")
    until(lambda: max(page.run(FIGURES), default=0) > 2)
    tab_to(page, "stop")
    page.press("Enter")
    assert page.run(STATUS) == "stopped"
    monkeypatch.undo()
    page.run(KEEP)
    tab_to(page, "jsonl")
    page.press("Enter")
    until(lambda: page.run("'run.2.jsonl' in window.kept"))
    kept = tmp_path / "run.1.jsonl"
    kept.write_bytes(base64.b64decode(page.run("window.kept")["run.1.jsonl"]))

    page("Page.setInterceptFileChooserDialog", enabled=True)
    page.run("document.getElementById('prompt').focus()")
    tab_to(page, "open")
    page.press("Enter")
    chosen = page.wait_for("Page.fileChooserOpened")["backendNodeId"]
    page("DOM.setFileInputFiles", backendNodeId=chosen, files=[str(kept)])
    until(lambda: page.run(STATUS) == "opened 1 trace")
    page("Page.setInterceptFileChooserDialog", enabled=False)
    assert problems(page, server[0]) == []


def test_every_control_has_a_name(page: chromium.Chromium) -> None:
    decode(page, length="8")
    controls = {"button", "combobox", "textbox", "spinbutton", "checkbox", "slider", "DisclosureTriangle", "image"}
    found = [(role, name) for role, name in page.names() if role in controls]
    assert {role for role, _ in found} == controls
    assert [role for role, name in found if not name.strip()] == []
    assert [name for role, name in found if role == "combobox"].count("Scheduler") == 2


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


def test_a_link_leads_to_its_pass(page: chromium.Chromium, server: tuple[str, Playground]) -> None:
    decode(page)
    page.press("Home")
    page.press("ArrowRight")
    until(lambda: page.run("location.hash") == "#pass=2")
    follow(page, linked(page, server[0]))
    page.press("Enter")
    until(lambda: page.run(COUNT) == f"pass 2 of {longest()}")
    assert page.run(NAMES) == [trace.name for trace in first_example()]


def follow(page: chromium.Chromium, link: str) -> None:
    """Opens a link; it waits for a click on Run, which has the focus."""
    page.open("about:blank")
    page.open(link)
    until(lambda: page.run(STATUS).endswith("press Run"))
    assert page.run("document.activeElement.id") == "run"


def test_a_link_decodes_nothing_by_itself(
    page: chromium.Chromium, server: tuple[str, Playground], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode(page, length="8")
    link = linked(page, server[0])
    told = slow_down(monkeypatch, 0)
    follow(page, link)
    assert page.run(STATUS) == "This link holds 2 runs: press Run"
    time.sleep(0.5)
    assert (len(server[1].line), told, page.run(NAMES)) == (0, [], [])


def test_a_form_that_was_changed_is_decoded_and_not_the_link(
    page: chromium.Chromium, server: tuple[str, Playground]
) -> None:
    decode(page, length="8")
    follow(page, linked(page, server[0]))
    decode(page, length="9")
    assert all(note.endswith("max new tokens 9") for note in page.run(NOTES))


def test_a_link_whose_run_was_stopped_leads_nowhere(
    page: chromium.Chromium, server: tuple[str, Playground], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode(page)
    page.press("Home")
    until(lambda: page.run("location.hash") == "#pass=1")
    follow(page, linked(page, server[0]))
    slow_down(monkeypatch)
    page.run("document.getElementById('pace').value = '0'")
    page.press("Enter")
    until(lambda: max(page.run(FIGURES), default=0) > 3)
    page.run("document.getElementById('stop').click()")
    until(lambda: len(server[1].line) == 0)
    assert not page.run(COUNT).startswith("pass 1 of")


def test_a_link_holds_what_is_shown(page: chromium.Chromium, server: tuple[str, Playground]) -> None:
    """All runs with the parameters that they had, whatever the form has been changed to; also when a page is open."""
    decode(page, scheduler__1="threshold", p__1="0.7")
    decode(page, "#again", p__1="0.99")
    field(page, "prompt", "something else")
    link = linked(page, server[0])
    decode(page)
    assert "run=" not in page.run("location.hash")  # what is shown now is another run
    page.events.clear()
    page.run(f"location.href = {json.dumps(link)}; null")
    page.wait_for("Page.loadEventFired")
    until(lambda: page.run(STATUS) == "This link holds 3 runs: press Run")
    decode(page)
    assert [note.partition(",")[0] for note in page.run(NOTES)[1:]] == ["p = 0.7", "p = 0.99"]
    assert page.run("document.getElementById('prompt').value") != "something else"


def test_a_link_that_holds_no_question_is_refused(page: chromium.Chromium, server: tuple[str, Playground]) -> None:
    for part in ("5", "null", "%", "{", "%7B%22sides%22:5%7D"):
        page.open("about:blank")
        page.open(f"{server[0]}/#run={part}")
        until(lambda: page.run(STATUS).startswith("Invalid link: expected a question"))
        assert page.run("document.getElementById('prompt').value.length > 0")


def linked(page: chromium.Chromium, address: str) -> str:
    """The link to what is shown."""
    page.run("document.getElementById('link').click()")
    until(lambda: "run=" in page.run("location.hash"))
    out: str = page.run("location.href")
    assert out.startswith(f"{address}/#pass=")
    return out


# Files that the page hands out are kept here instead of in a folder.
KEEP = """(() => {
  const [make, blobs] = [URL.createObjectURL, new Map()];
  window.kept = {};
  URL.createObjectURL = (blob) => {
    const url = make(blob);
    blobs.set(url, blob);
    return url;
  };
  HTMLAnchorElement.prototype.click = async function () {
    const bytes = new Uint8Array(await blobs.get(this.href).arrayBuffer());
    window.kept[this.download] = btoa(Array.from(bytes, (one) => String.fromCharCode(one)).join(""));
  };
})()"""


def test_a_run_is_saved_and_opened_again(
    browser: chromium.Chromium, server: tuple[str, Playground], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    show(page := browser, server[0])
    decode(page, prompt=shared.PROMPT.strip(), length="64", scheduler__0="prophet", scheduler__1="threshold")
    page.run(KEEP)
    names = {"jsonl": ["run.1.jsonl", "run.2.jsonl"], "html": ["run.html"], "svg": ["run.svg"], "gif": ["run.gif"]}
    for kind, files in names.items():
        page.run(f"document.querySelector('[data-kind={kind}]').click()")
        until(lambda files=files: all(page.run(f"{json.dumps(name)} in window.kept") for name in files))
    saved = {name: base64.b64decode(text) for name, text in page.run("window.kept").items()}
    for name, content in saved.items():
        (tmp_path / name).write_bytes(content)
    traces = [lsp.Trace.load(tmp_path / name) for name in names["jsonl"]]
    assert [trace.name for trace in traces] == page.run(NAMES)
    assert (tmp_path / "run.html").read_text("utf-8") == html.page(traces)
    assert saved["run.svg"].startswith(b"<?xml")
    assert saved["run.gif"].startswith(b"GIF89a")
    before = page.run(HEADLINE), page.run(STATES)

    show(page, server[0])
    node = page("DOM.querySelector", nodeId=page("DOM.getDocument")["root"]["nodeId"], selector="#files")["nodeId"]
    page("DOM.setFileInputFiles", nodeId=node, files=[str(tmp_path / name) for name in names["jsonl"]])
    until(lambda: page.run(STATUS) == "opened 2 traces")
    page.press("End")
    assert (page.run(HEADLINE), page.run(STATES)) == before
    assert page.run("document.querySelector('#prompt-shown pre').textContent").count(shared.PROMPT.strip()) == 1
    page.run("document.getElementById('link').click()")
    until(lambda: page.run(STATUS).startswith("A link holds runs that were decoded here"))
    assert problems(page, server[0]) == []


def test_a_run_that_was_stopped_is_saved_as_far_as_it_came(
    browser: chromium.Chromium, server: tuple[str, Playground], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = slow_down(monkeypatch, 0.2)
    show(page := browser, server[0])
    field(page, "scheduler__0", "full")
    page.run("document.getElementById('run').click()")
    until(lambda: len(told) > 12 and min(page.run(FIGURES), default=0) > 2)
    page.run("document.getElementById('stop').click()")
    monkeypatch.undo()
    page.run(KEEP)
    page.run("document.querySelector('[data-kind=jsonl]').click()")
    until(lambda: page.run("'run.2.jsonl' in window.kept"))
    page.press("End")
    page.press("ArrowLeft")
    for number, chips in enumerate(page.run(STATES), start=1):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(base64.b64decode(page.run("window.kept")[f"run.{number}.jsonl"]))
        trace = lsp.Trace.load(path)
        (whole,) = lsp.trace(model()[0], first_prompt(page), scheduler="full", max_new_tokens=96)
        assert trace == shared.stopped(whole, trace.passes)
        shown = cells(trace, min(trace.passes, page.run("Number(document.getElementById('pass').value)")) - 1)
        assert chips == [[at, shown[at].state] for at, _ in chips]
    assert problems(page, server[0]) == []


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


def test_four_runs_are_two_by_two(page: chromium.Chromium) -> None:
    four_runs(page)
    boxes = "[...document.querySelectorAll('article')].map((node) => node.getBoundingClientRect())"
    lefts, tops = page.run(f"[{boxes}.map(({{ x }}) => x), {boxes}.map(({{ y }}) => y)]")
    assert (len(set(lefts)), len(set(tops))) == (2, 2)
    assert page.run(COLLISIONS) == []


@pytest.fixture(params=[False, True], ids=["light", "dark"])
def dark(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def check_looks(page: chromium.Chromium) -> None:
    """Nothing lies over anything else or sticks out, and all can be read."""
    assert page.run(COLLISIONS) == []
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert {name: value for name, value in page.run(CONTRASTS).items() if value < 4.5} == {}
    assert {name: value for name, value in page.run(EDGES).items() if value < 3} == {}


@pytest.mark.parametrize("width", [500, 1600])
def test_nothing_collides_and_all_can_be_read(
    browser: chromium.Chromium, server: tuple[str, Playground], width: int, dark: bool
) -> None:
    show(browser, server[0], width, dark)
    check_looks(browser)
    decode(browser)
    for key in ("Home", "ArrowRight", "ArrowRight", "End"):
        browser.press(key)
        check_looks(browser)
        screenshot(browser, f"play-{'dark' if dark else 'light'}-{width}-{key.lower()}")
    assert any("::placeholder" in name for name in browser.run(CONTRASTS))
    assert any("delimiter" in name for name in browser.run(EDGES))
    assert problems(browser, server[0]) == []


@pytest.mark.parametrize("width", [500, 1600])
def test_nothing_collides_while_it_decodes_and_with_an_error(
    browser: chromium.Chromium,
    server: tuple[str, Playground],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    dark: bool,
) -> None:
    show(page := browser, server[0], width, dark)
    name = f"play-{'dark' if dark else 'light'}-{width}"
    with somebody_before(server[1]):
        page.run("document.getElementById('run').click()")
        until(lambda: page.run(STATUS).startswith("in line"))
        check_looks(page)
        slow_down(monkeypatch)
    for passes in (1, 3, 6):
        until(lambda passes=passes: max(page.run(FIGURES), default=0) >= passes)
        check_looks(page)
    screenshot(page, f"{name}-running")
    page.run("document.getElementById('stop').click()")
    monkeypatch.undo()
    check_looks(page)
    for side in ("0", "1"):
        field(page, f"scheduler__{side}", "threshold")
        field(page, f"p__{side}", "7" * 100)
    page.run("document.getElementById('run').click()")
    until(lambda: page.run("document.getElementById('status').className") == "error")
    check_looks(page)
    screenshot(page, f"{name}-error")


def test_four_runs_fit_a_narrow_window(browser: chromium.Chromium, server: tuple[str, Playground], dark: bool) -> None:
    show(page := browser, server[0], 500, dark)
    decode(page, scheduler__0="paper")
    decode(page, "#again", scheduler__0="threshold", scheduler__1="prophet")
    assert len(page.run(NAMES)) == 4
    for key in ("Home", "ArrowRight", "ArrowRight", "End"):
        page.press(key)
        check_looks(page)
    page.press("Home")
    screenshot(page, f"play-{'dark' if dark else 'light'}-500-four")


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

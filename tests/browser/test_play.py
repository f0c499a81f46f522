"""The playground in a real browser. Run by ``make test-browser``."""

from __future__ import annotations

import gc
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import lsp
from lsp.play import Playground
from lsp.tracing.states import cells
from tests.browser import chromium
from tests.browser.looks import CONTRASTS, problems
from tests.play.serving import served
from tests.traces import HOSTILE

pytestmark = pytest.mark.browser

COUNT = "document.getElementById('count').textContent"
STATUS = "document.getElementById('status').textContent"
HEADLINE = "document.querySelector('#headline p').textContent"
FIGURES = "[...document.querySelectorAll('[data-is=passes]')].map((node) => Number(node.textContent))"
NAMES = "[...document.querySelectorAll('article h2')].map((node) => node.textContent)"
NOTES = "[...document.querySelectorAll('article .notes')].map((node) => node.textContent)"
STATES = """[...document.querySelectorAll("article")].map((article) =>
  [...article.querySelectorAll(".sequence .chip")].map((chip) => [Number(chip.dataset.at), chip.classList[1]]))"""
IDLE = "document.getElementById('stop').disabled && document.getElementById('status').textContent !== 'starting'"
# Boxes of text and controls that lie over each other, and what sticks out of the window.
COLLISIONS = """(() => {
  const kinds = "button, input, select, textarea, label, legend, h1, h2, dt, dd, summary, p";
  const visible = (node) => node.checkVisibility({ visibilityProperty: true });
  const shown = [...document.querySelectorAll(kinds)].filter(visible);
  const nameOf = (node) => `${node.tagName} ${node.id} ${node.textContent.slice(0, 20)}`;
  const boxes = shown.map((node) => ({ node, box: node.getBoundingClientRect(), name: nameOf(node) }));
  const outside = boxes.filter(({ box }) => box.width && (box.right > innerWidth + 1 || box.left < -1));
  const out = outside.map(({ name }) => name);
  boxes.forEach(({ node, box, name }, i) => boxes.slice(i + 1).forEach((other) => {
    if (node.contains(other.node) || other.node.contains(node)) return;
    if (node.closest(".controls") !== other.node.closest(".controls")) return; // it sticks to the top, over the rest
    const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
    const high = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
    if (wide > 2 && high > 2) out.push(`${name} | ${other.name}`);
  }));
  return out;
})()"""


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


def until(true: Callable[[], Any], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


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
    until(lambda: page.run(COUNT) == "pass 61 of 61")
    assert page.run(FIGURES) == [5, 61]
    assert page.run(HEADLINE) == "5 passes and 247 positions instead of 61 and 3,559"
    assert page.run("[...document.querySelectorAll('.verdict')].map((node) => node.textContent)") == ["✓ right"] * 2


def test_what_a_chip_is_the_trace_says_too(page: chromium.Chromium, server: tuple[str, Playground]) -> None:
    decode(page)
    prompt = [{"role": "user", "content": page.run("document.getElementById('prompt').value")}]
    held = server[1]
    traces = [lsp.trace(held.model, [prompt], scheduler=name, max_new_tokens=96)[0] for name in ("lsp", "full")]
    page.press("Home")
    for k in range(4):
        for trace, chips in zip(traces, page.run(STATES), strict=True):
            states = cells(trace, k)
            assert chips == [[at, states[at].state] for at, _ in chips]
            assert {at for at, _ in chips} >= {at for at, cell in enumerate(states) if cell.state == "now"}
        page.press("ArrowRight")


def test_parameters_apply_and_what_has_changed_runs_beside_the_last(
    browser: chromium.Chromium, server: tuple[str, Playground]
) -> None:
    show(page := browser, server[0])
    decode(page, scheduler__1="threshold", p__1="0.7")
    assert page.run(NAMES) == ["Longest stable prefix", "Confidence threshold"]
    assert page.run(NOTES)[1] == "p = 0.7"
    decode(page, "#again", p__1="0.99")
    assert page.run(NAMES)[1:] == ["Confidence threshold"] * 2
    assert page.run(NOTES)[1:] == ["p = 0.7", "p = 0.99"]
    field(page, "p__1", "7")
    page.run("document.getElementById('run').click()")
    until(lambda: page.run(STATUS).startswith("Invalid p: expected"))
    assert len(page.run(NAMES)) == 3  # what was there stays


def test_stop_stops_the_model(page: chromium.Chromium, server: tuple[str, Playground]) -> None:
    field(page, "scheduler__0", "full")
    page.run("document.getElementById('run').click()")
    until(lambda: page.run("document.querySelectorAll('article').length") == 2)
    page.run("document.getElementById('stop').click()")
    until(lambda: len(server[1].line) == 0, 10)
    assert page.run(STATUS) == "stopped"
    assert page.run("document.querySelectorAll('article.running').length") == 0


def test_a_hostile_prompt_runs_nothing(page: chromium.Chromium) -> None:
    decode(page, prompt=HOSTILE, length="8")
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.querySelectorAll('img').length") == 0


def test_a_closed_tab_ends_its_run(browser: chromium.Chromium, server: tuple[str, Playground]) -> None:
    address, held = server
    show(browser, address)
    browser.run("document.getElementById('run').click()")
    until(lambda: len(held.line) == 1)
    browser.open("about:blank")
    until(lambda: len(held.line) == 0, 10)


def test_the_keyboard_alone_suffices(page: chromium.Chromium) -> None:
    page.run("document.getElementById('prompt').focus()")
    reached = set()
    for _ in range(60):
        page.press("Tab")
        reached.add(page.run("document.activeElement.id || document.activeElement.className"))
        if page.run("document.activeElement.id") == "run":
            break
    assert {"hole", "scheduler", "run"} <= reached
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
    assert page.run(COUNT) == "pass 61 of 61"
    names = "[...document.querySelectorAll('button, select, input, textarea')].filter((node) => node.offsetParent)"
    unnamed = f"{names}.filter((node) => !(node.textContent.trim() || node.ariaLabel || node.labels?.length))"
    assert page.run(f"{unnamed}.map((node) => node.outerHTML)") == []


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
    page.run("document.getElementById('link').click()")
    until(lambda: "run=" in page.run("location.hash"))
    link = page.run("location.href")
    page.open("about:blank")
    page.open(link)
    until(lambda: page.run(COUNT) == "pass 2 of 61")
    assert page.run(NAMES) == ["Longest stable prefix", "Full: one token a pass"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [500, 1600])
def test_nothing_collides_and_all_can_be_read(
    browser: chromium.Chromium, server: tuple[str, Playground], tmp_path: Path, width: int, dark: bool
) -> None:
    show(browser, server[0], width, dark)
    assert browser.run(COLLISIONS) == []
    decode(browser)
    for key in ("Home", "ArrowRight", "ArrowRight", "End"):
        browser.press(key)
        assert browser.run(COLLISIONS) == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert {name: value for name, value in browser.run(CONTRASTS).items() if value < 4.5} == {}
    assert problems(browser, server[0]) == []


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

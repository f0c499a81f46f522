"""The playground in light and dark, wide and narrow: nothing collides. Run by ``make test-browser``."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from lsp.play import Playground
from tests.browser import chromium
from tests.browser.looks import COLLISIONS, CONTRASTS, EDGES, problems, screenshot
from tests.browser.playing import FIGURES, NAMES, STATUS, decode, field, four_runs, show, somebody_before
from tests.play.serving import slow_down, until

pytestmark = pytest.mark.browser


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

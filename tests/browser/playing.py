"""How tests use the playground in a browser: what they read off it, fill in and press."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import lsp
from lsp.play import Playground
from lsp.play.page import DEFAULTS
from lsp.tiny.tasks import Problem
from tests.browser import chromium
from tests.play.serving import model, until

COUNT = "document.getElementById('count').textContent"
STATUS = "document.getElementById('status').textContent"
PROMPT = "document.getElementById('prompt').value"
HEADLINE = "document.querySelector('#headline p').textContent"
FIGURES = "[...document.querySelectorAll('[data-is=passes]')].map((node) => Number(node.textContent))"
NAMES = "[...document.querySelectorAll('article h2')].map((node) => node.textContent)"
NOTES = "[...document.querySelectorAll('article .notes')].map((node) => node.textContent)"
STATES = """[...document.querySelectorAll("article")].map((article) =>
  [...article.querySelectorAll(".sequence .chip")].map((chip) => [Number(chip.dataset.at), chip.classList[1]]))"""
REMEMBER_FIGURES = f"""(() => {{
  window.seen = [];
  new MutationObserver(() => seen.push({FIGURES})).observe(document.body, {{ childList: true, subtree: true }});
}})()"""
IDLE = f"document.getElementById('stop').ariaDisabled === 'true' && {STATUS} !== 'starting'"


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


def first_prompt(page: chromium.Chromium) -> list[Any]:
    return [[{"role": "user", "content": page.run("document.getElementById('prompt').value")}]]


def four_runs(page: chromium.Chromium, **values: str) -> None:
    decode(page, scheduler__0="threshold", scheduler__1="threshold", p__0="0.6", p__1="0.7", **values)
    decode(page, "#again", p__0="0.8", p__1="0.9")


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


def tab_to(page: chromium.Chromium, name: str) -> None:
    """Presses Tab until what has this id or class, or what is in it, has the focus."""
    for _ in range(80):
        page.press("Tab")
        if page.run(f"document.activeElement.closest('#{name}, .{name}, [data-kind={name}]') !== null"):
            return
    raise AssertionError(f"{name} cannot be reached")


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

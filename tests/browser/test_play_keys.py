"""The playground by keys alone, and what a screen reader says. Run by ``make test-browser``."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from lsp.play import Playground
from tests.browser import chromium
from tests.browser.looks import LISTEN, problems
from tests.browser.playing import (
    COUNT,
    FIGURES,
    IDLE,
    KEEP,
    NAMES,
    PROMPT,
    STATUS,
    decode,
    field,
    longest,
    show,
    tab_to,
)
from tests.play.serving import slow_down, until

pytestmark = pytest.mark.browser


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

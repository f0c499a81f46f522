"""What the playground hands out and opens again: links and files. Run by ``make test-browser``."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import lsp
from lsp.play import Playground
from lsp.tracing import html
from lsp.tracing.states import cells
from tests import traces as shared
from tests.browser import chromium
from tests.browser.looks import problems
from tests.browser.playing import (
    COUNT,
    FIGURES,
    HEADLINE,
    KEEP,
    NAMES,
    NOTES,
    STATES,
    STATUS,
    decode,
    field,
    first_example,
    first_prompt,
    longest,
    show,
)
from tests.play.serving import model, slow_down, until

pytestmark = pytest.mark.browser


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

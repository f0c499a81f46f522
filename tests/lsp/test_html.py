"""The page of traces, as far as it can be told without a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lsp
from lsp.tracing import html
from lsp.tracing.compact import expand
from tests import traces

pytest.importorskip("transformers")


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script" and data.strip():
            self.scripts.append(data)


@pytest.fixture(scope="module")
def page() -> str:
    return html.page([traces.of("lsp"), traces.of("threshold")])


def test_a_page_fetches_nothing(page: str) -> None:
    for _, attributes in Elements(page).found:
        assert not {"src", "href", "action", "srcset"} & set(attributes)
    assert "url(" not in page
    assert "@import" not in page
    assert set(re.findall(r"https?://[^\s\"']*", page)) == {"http://www.w3.org/2000/svg"}  # the name of SVG, no address


def test_every_step_is_in_the_page_as_it_was(page: str) -> None:
    data, _ = Elements(page).scripts
    for shown, trace in zip(json.loads(data), [traces.of("lsp"), traces.of("threshold")], strict=True):
        assert expand(shown.pop("steps")) == trace.steps
        assert shown == json.loads(json.dumps({k: v for k, v in vars(trace).items() if k != "steps"}))


def test_saved_traces_give_the_same_page(page: str, tmp_path: Path) -> None:
    for name in ("lsp", "threshold"):
        traces.of(name).save(tmp_path / name)
    html.write(tmp_path / "page.html", [lsp.Trace.load(tmp_path / name) for name in ("lsp", "threshold")])
    assert (tmp_path / "page.html").read_text("utf-8") == page


@pytest.mark.abuse("result files and traces")
def test_a_hostile_text_stays_text(page: str) -> None:
    hostile = html.page([traces.hostile(traces.of("lsp")), traces.of("threshold")], title=traces.HOSTILE)
    assert [tag for tag, _ in Elements(hostile).found] == [tag for tag, _ in Elements(page).found]
    data, script = Elements(hostile).scripts
    assert script == Elements(page).scripts[1]
    assert set(json.loads(data)[0]["pieces"].values()) == {traces.HOSTILE}
    assert "\u2028" not in data


def test_only_the_script_of_the_page_may_run(page: str) -> None:
    elements = Elements(page)
    (policy,) = [a["content"] for tag, a in elements.found if tag == "meta" and "http-equiv" in a]
    digest = base64.b64encode(hashlib.sha256(elements.scripts[1].encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")


def test_an_infinite_floor_can_be_shown() -> None:
    trace = replace(traces.of("lsp"), level=math.inf)
    data, _ = Elements(html.page([trace])).scripts
    assert json.loads(data)[0]["level"] > 1e300


@pytest.mark.abuse("result files and traces")
def test_no_traces_are_refused() -> None:
    with pytest.raises(ValueError, match="Invalid traces: expected at least one, got none"):
        html.page([])


@pytest.mark.parametrize(
    ("name", "heading", "notes"),
    [
        ("lsp", "Longest stable prefix", ["floor 2"]),
        ("islands", "Longest stable prefix", ["floor 2", "islands 3", "lookahead 24", "refresh scattered"]),
        ("paper", "Longest stable prefix", ["no floor, α = 0.25, β = 0.5"]),
        ("threshold", "Confidence threshold", ["p = 0.9"]),
        ("scattered", "Scattered by margin", []),
        ("fixed", "Fixed prefix", ["k = 4"]),
    ],
)
def test_a_heading_says_which_scheduler_it_was(name: str, heading: str, notes: list[str]) -> None:
    trace = traces.of(name)
    assert (trace.name, trace.notes) == (heading, notes)


def test_options_are_named_where_they_are_not_the_default() -> None:
    assert traces.of("threshold", block_length=16).notes == ["p = 0.9", "block length 16"]

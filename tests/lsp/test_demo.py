"""The demonstration runs on held-out problems and tells what it measured."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("rich")
from rich.console import Console

from lsp.cli import demo
from lsp.tiny import known_tasks
from lsp.tiny.tasks import generate

TASKS = known_tasks()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    page, out = tmp_path_factory.mktemp("demo") / "trace.html", io.StringIO()
    demo.run(Console(file=out, width=80), 1, page)
    return out.getvalue(), page


def test_a_problem_of_every_task_is_shown_with_answers_by_pass(shown: tuple[str, Path]) -> None:
    text, _ = shown
    for task in TASKS:
        (problem,) = generate(task, 1, split="test", seed=demo.SEED)
        assert problem.prompt[:40].splitlines()[0] in text
        assert f" {task} " in text
    for name in (demo.LSP, demo.THRESHOLD):
        assert len(re.findall(rf"^{name}, \d+ pass", text, re.MULTILINE)) == len(TASKS)
    assert text.count("[1]") >= 2 * len(TASKS)


def test_the_page_shows_schedulers_that_differ_visibly(shown: tuple[str, Path]) -> None:
    data = re.search(r'id="data">(.*?)</script>', shown[1].read_text("utf-8"))
    assert data is not None
    few, many = json.loads(data[1])
    assert few["prompt"] == many["prompt"]
    assert many["passes"] > 2 * few["passes"]
    assert many["positions"] > 2 * few["positions"]


def test_totals_count_every_problem_of_every_scheduler(shown: tuple[str, Path]) -> None:
    text = shown[0].partition("all problems, 1 of each task")[2]
    for name in demo.SCHEDULERS:
        *each, last = re.findall(rf"^{name} +(\S+) +(\d+)", text, re.MULTILINE)
        assert len(each) == len(TASKS)
        assert int(last[1]) == sum(int(passes) for _, passes in each)
        assert last[0] == f"{sum(verdict == 'yes' for verdict, _ in each)}/{len(TASKS)}"


def test_the_trace_of_a_problem_is_written_as_a_page(shown: tuple[str, Path]) -> None:
    text, page = shown
    assert str(page) in text
    assert "<html" in page.read_text("utf-8")


def test_it_is_seconds_of_decoding_that_are_compared() -> None:
    (problem,) = generate("countdown", 1, split="test", seed=demo.SEED)
    for one in demo.Solver().solve(problem):
        (row,) = (row for row in demo.total([one]) if row.passes)
        assert row.seconds == sum(one.answer.seconds.values())

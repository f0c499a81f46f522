"""Tests of bad inputs, counted by area from a run of them: the table of docs/verification.md, by ``make test-abuse``.

A test is one of them if it has the marker ``abuse`` with an area. Every parametrised case counts as one bad input, and
as held if the test passes: it was refused by name, or did no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

AREAS = (
    "operators",
    "models and checkpoints",
    "prompts and generation",
    "schedulers",
    "result files and traces",
    "command line",
    "playground",
    "sandbox",
    "install",
)
BEGIN, END = "<!-- written by make test-abuse -->", "<!-- end of what make test-abuse writes -->"


def area_of(item: pytest.Item) -> str | None:
    """The area of a test of bad inputs; None for other tests."""
    marker = item.get_closest_marker("abuse")
    if marker is None:
        return None
    if len(marker.args) != 1 or marker.args[0] not in AREAS:
        got = ", ".join(map(repr, marker.args)) or "none"
        raise pytest.UsageError(f"Invalid area of {item.nodeid}: expected one of {', '.join(AREAS)}, got {got}")
    return str(marker.args[0])


class Count:
    """A pytest plugin that counts bad inputs and, in the end, writes the table into a page."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.areas: dict[str, str] = {}  # of every test that was run
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        area = area_of(item)
        if area is not None and report.skipped:
            self.areas.pop(item.nodeid, None)
        elif area is not None and (report.when != "teardown" or report.failed):
            self.areas[item.nodeid] = area
            self.failed |= {item.nodeid} if report.failed else set()
        return report

    def pytest_sessionfinish(self) -> None:
        self.page.write_text(replaced(self.page.read_text("utf-8"), self.table()), "utf-8")

    def table(self) -> str:
        tried = Counter(self.areas.values())
        held = tried - Counter(self.areas[test] for test in self.failed)
        rows = [*((area, tried[area], held[area]) for area in AREAS), ("**all**", tried.total(), held.total())]
        lines = ["| area | bad inputs tried | held |", "|---|---:|---:|"]
        return "\n".join([*lines, *(f"| {area} | {tried} | {held} |" for area, tried, held in rows)]) + "\n"


def replaced(page: str, table: str) -> str:
    """The page with this table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise pytest.UsageError(f"Invalid page: expected {BEGIN} and {END}, got one without")
    return f"{before}{BEGIN}\n{table}{END}{after}"

"""What every benchmark is given. A run that measures closes with the tables of ratios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench import sizes
from bench.ratios import Report

_report = Report()


@pytest.fixture
def report() -> Report:
    """Where a benchmark writes what it found; nobody reads it where nothing is measured."""
    return _report if sizes.measuring else Report()


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Each benchmark draws the same random numbers and starts with all threads, whatever ran before it."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    for table in _report.tables.values():
        terminalreporter.write_sep("-", table.title)
        for line in table.lines():
            write(line)
    if _report.targets:
        terminalreporter.write_sep("-", "targets")
    for met, text in _report.targets:
        write(f"{'met   ' if met else 'MISSED'}  {text}")

"""Closes a benchmark run with its tables of ratios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench.ratios import Report

_report = Report()


@pytest.fixture
def report() -> Report:
    return _report


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
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

"""What every benchmark is given. A run that measures keeps what it finds in a file and closes with the tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
import torch

from bench import sizes
from bench.ratios import Report, lines_of
from bench.report.machine import machine, sources
from bench.report.run import Run, put_aside, tables

KEY = pytest.StashKey[Run]()


@pytest.fixture
def report() -> Report:
    """Where a benchmark writes what it found; nobody reads it where nothing is measured."""
    return Report()


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Each benchmark draws the same random numbers and starts with all threads, whatever ran before it."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins a run, or goes on with the one that was interrupted: what has passed there does not run again."""
    if not sizes.measuring or config.option.collectonly:
        return
    run = continued(file_of(config)) if config.getoption("--resume") else Run(here(), sources())
    done = [item for item in items if item.nodeid in run.tests]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if item.nodeid not in run.tests]
    run.left = [item.nodeid for item in items]
    run.all_families = config.args_source is not pytest.Config.ArgsSource.ARGS
    run.sessions.append({"begun": now()})
    config.stash[KEY] = run


def continued(path: Path | None) -> Run:
    """The run of a file, if it was measured here, without the benchmarks whose own file is another one now."""
    if path is None:
        raise pytest.UsageError("Invalid --resume: expected --run FILE beside it, got no file to go on with")
    if not path.exists():
        raise pytest.UsageError(f"Invalid --resume: expected a run in {path}, got no such file")
    run, this, now_here = Run.read(path), here(), sources()
    changed = different(run.sources, now_here)
    mended = [name for name in changed if name.endswith(".py") and name.startswith("bench/")]
    if other := [*different(run.machine, this), *(name for name in changed if name not in mended)]:
        raise pytest.UsageError(
            f"Invalid --resume: expected a run of this machine and source, got another {', '.join(other)}"
        )
    run.tests = {name: found for name, found in run.tests.items() if name.split("::")[0] not in mended}
    run.sources = now_here
    if this["commit"] not in run.machine["commit"].split(" and "):
        run.machine["commit"] += f" and {this['commit']}"
    return run


def different(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """What is not the same; the commit is for the reader: it may be one of the documentation."""
    return [name for name in one | other if name != "commit" and one.get(name) != other.get(name)]


def here() -> dict[str, str]:
    return machine() | ({"sizes": "tiny: these numbers say nothing"} if sizes.tiny_only else {})


def file_of(config: pytest.Config) -> Path | None:
    """Where the run is kept, if anywhere: a trial must not touch the run that the page is made of."""
    file = config.getoption("--run")
    return Path(file) if file else None


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="minutes")


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Keeps what a benchmark found as soon as it has passed, so that nothing is lost with the next one."""
    run = item.config.stash.get(KEY, None)
    if run is None:
        return
    if call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception):
        run.left.remove(item.nodeid)
    elif call.excinfo is None and call.when == "call":
        run.add(item.nodeid, call.duration, item.funcargs.get("report", Report()))
    else:
        return
    file = file_of(item.config)
    if file is not None and run.is_new:
        put_aside(file)
    run.sessions[-1]["ended"] = now()
    if file is not None:
        run.write(file)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    run = config.stash.get(KEY, None)
    if run is None:
        return
    write = terminalreporter.write_line
    for title, rows in tables(run.rows()).items():
        terminalreporter.write_sep("-", title)
        for line in lines_of(rows):
            write(line)
    if run.targets:
        terminalreporter.write_sep("-", "targets")
    for each in run.targets:
        write(f"{'met   ' if each.met else 'MISSED'}  {each.what}: {each.measured}, {each.asked}")
    where = f"the run is in {file_of(config)}" if file_of(config) else "this run is not kept (--run FILE keeps one)"
    write(f"{where}: {len(run.tests)} benchmarks in {run.minutes:.0f} minutes")

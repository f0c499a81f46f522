"""The line before the model: one at a time, in order, and nothing runs that nobody waits for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lsp.play import line as lines
from lsp.play.errors import Busy, Left, Unread
from lsp.play.line import Line, Place, Ticket


async def collect(ticket: Ticket) -> list[Any]:
    out = []
    while (event := await ticket.next()) is not None:
        out.append(event.ahead if isinstance(event, Place) else event)
    return out


class Gate:
    """Work that waits to be let through."""

    def __init__(self, name: str) -> None:
        self.name, self.open, self.steps, self.closed = name, threading.Event(), 0, threading.Event()

    def __call__(self) -> Iterator[Any]:
        try:
            self.open.wait(20)
            for _ in range(100_000):
                self.steps += 1
                yield self.name
                time.sleep(0.001)
        finally:
            self.closed.set()


def quickly(*names: str) -> Any:
    return lambda: (name for name in names)


def running(test: Any) -> None:
    line = Line()
    try:
        asyncio.run(asyncio.wait_for(test(line), 30))
    finally:
        line.close()


def test_one_after_the_other_in_order() -> None:
    async def test(line: Line) -> None:
        gate = Gate("a")
        first = line.join(gate)
        others = [line.join(quickly(name)) for name in "bc"]
        tasks = [asyncio.create_task(collect(ticket)) for ticket in others]
        while len(line) < 3:
            await asyncio.sleep(0.01)
        first.leave()
        gate.open.set()
        found = await asyncio.gather(*tasks)
        for places, last in zip(found, "bc", strict=True):
            assert places[-1] == last
            assert places[:-1] == sorted(places[:-1], reverse=True)
            assert places[0] > 0

    running(test)


def test_work_stops_when_nobody_waits() -> None:
    async def test(line: Line) -> None:
        gate = Gate("a")
        gate.open.set()
        ticket = line.join(gate)
        while gate.steps == 0:
            await asyncio.sleep(0.01)
        ticket.leave()
        assert await asyncio.to_thread(gate.closed.wait, 10)
        assert gate.steps < 100_000
        with pytest.raises(Left):
            await collect(ticket)

    running(test)


def test_work_goes_no_faster_than_it_is_read() -> None:
    async def test(line: Line) -> None:
        gate = Gate("a")
        gate.open.set()
        ticket = line.join(gate)
        await asyncio.sleep(0.5)
        assert gate.steps <= lines.MOST_UNREAD + 1
        while gate.steps < 3 * lines.MOST_UNREAD:
            await ticket.next()
        ticket.leave()
        assert await asyncio.to_thread(gate.closed.wait, 10)  # at once, though much is unread

    running(test)


def test_work_that_is_not_read_for_long_is_stopped_and_the_next_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "PATIENCE", 0.2)

    async def test(line: Line) -> None:
        gate = Gate("a")
        gate.open.set()
        first, second = line.join(gate), line.join(quickly("b"))
        assert (await collect(second))[-1] == "b"
        assert gate.closed.is_set()
        with pytest.raises(Unread, match=r"its events were not read for 0\.2 seconds"):
            await collect(first)

    running(test)


def test_who_leaves_the_line_is_not_served() -> None:
    async def test(line: Line) -> None:
        gate, never = Gate("a"), Gate("b")
        first, second, third = line.join(gate), line.join(never), line.join(quickly("c"))
        second.leave()
        first.leave()
        gate.open.set()
        assert (await collect(third))[-1] == "c"
        assert never.steps == 0

    running(test)


def test_an_error_reaches_the_one_who_asked_and_the_next_is_served() -> None:
    def broken() -> Iterator[Any]:
        yield 1
        raise ValueError("no")

    async def test(line: Line) -> None:
        bad, good = line.join(broken), line.join(quickly("b"))
        with pytest.raises(ValueError, match="no"):
            await collect(bad)
        assert (await collect(good))[-1] == "b"

    running(test)


@pytest.mark.abuse("playground")
def test_the_line_has_an_end() -> None:
    async def test(line: Line) -> None:
        gate = Gate("a")
        line.join(gate)
        while line._served is None:
            await asyncio.sleep(0.01)
        for _ in range(lines.LONGEST):
            line.join(quickly("b"))
        with pytest.raises(Busy, match="expected at most 16 in the line"):
            line.join(quickly("c"))
        gate.open.set()
        line.close()

    running(test)

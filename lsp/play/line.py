"""One thread owns the model. What it is asked for stands in a line, and everybody in it is told their place.

Nothing here knows of models or pages: work is a generator of events. Between two of them it can be stopped, and it is
as soon as nobody waits for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from lsp.play.errors import Busy, Left, Unread, note

Work = Callable[[], Generator[Any, None, None]]
LONGEST = 16
MOST_UNREAD, PATIENCE = 64, 30.0
"""How many events may wait for a slow reader before the work does, and for how many seconds it does."""


class Place:
    """How many are before a ticket in the line."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead


class Ticket:
    """One's place in the line, and then what the work yields. Belongs to the event loop that took it."""

    def __init__(self, line: Line, work: Work) -> None:
        self.work, self.gone = work, threading.Event()
        self._line, self._loop = line, asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._unread, self._changed = 0, threading.Condition()

    async def next(self) -> Any:
        """The next event, a `Place` among them; None at the end. What the work raises is raised here."""
        event = await self._events.get()
        with self._changed:
            self._unread -= 1
            self._changed.notify()
        if isinstance(event, Exception):
            raise event
        return event

    def leave(self) -> None:
        """Nobody waits any longer: the work is not begun, or stops after this pass."""
        self.stop()
        self._line.forget(self)
        self._events.put_nowait(Left())

    def tell(self, event: Any) -> None:
        """Called by the thread of the model."""
        with self._changed:
            self._unread += 1
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def stop(self) -> None:
        with self._changed:
            self.gone.set()
            self._changed.notify()

    def wait(self) -> None:
        """Called by the thread of the model: waits while much is unread."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._unread < MOST_UNREAD or self.gone.is_set(), PATIENCE):
                raise Unread(f"The run was stopped, as its events were not read for {PATIENCE:g} seconds")


class Line:
    """The thread and those who wait for it."""

    def __init__(self) -> None:
        self._waiting: deque[Ticket] = deque()
        self._served: Ticket | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lsp play", daemon=True)
        self._thread.start()

    def join(self, work: Work) -> Ticket:
        """A ticket for this work, at the end of the line."""
        with self._changed:
            if self._closed or len(self._waiting) >= LONGEST:
                raise Busy(f"Invalid request: expected at most {LONGEST} in the line, got one more; try again later")
            ticket = Ticket(self, work)
            self._waiting.append(ticket)
            ticket.tell(Place(len(self._waiting) - 1 + (self._served is not None)))
            self._changed.notify()
        return ticket

    def forget(self, ticket: Ticket) -> None:
        with self._changed, contextlib.suppress(ValueError):
            self._waiting.remove(ticket)
            self._tell_places()

    def close(self) -> None:
        """Stops what runs after its pass and begins nothing more."""
        with self._changed:
            self._closed = True
            for ticket in [*self._waiting, *filter(None, [self._served])]:
                ticket.stop()
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(timeout=10)

    def __len__(self) -> int:
        """How many wait or are served."""
        return len(self._waiting) + (self._served is not None)

    def _tell_places(self) -> None:
        for ahead, ticket in enumerate(self._waiting, start=int(self._served is not None)):
            ticket.tell(Place(ahead))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._served = None
                self._tell_places()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._served = ticket = self._waiting.popleft()
                self._tell_places()
            serve(ticket)
            del ticket  # and with it what the work holds


def serve(ticket: Ticket) -> None:
    """Does the work of a ticket for as long as somebody waits for it, and no faster than it is read."""
    try:
        with contextlib.closing(ticket.work()) as events:
            for event in events:
                ticket.wait()
                if ticket.gone.is_set():
                    return
                ticket.tell(event)
        ticket.tell(None)
    except Exception as error:
        note(error)
        ticket.tell(error)

"""Server-sent events: each is written as soon as it is there, and the sender is told when nobody reads any longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from starlette.requests import Request

from lsp.play.guard import Receive, Scope, Send

START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")],
}


class Events:
    """A response of events, each a text. `left` is called when the reader is gone, also while nothing is written."""

    def __init__(self, texts: AsyncIterator[str], left: Callable[[], None]) -> None:
        self.texts, self.left = texts, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        watching = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait({writing, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.left()
            for task in (writing, watching):
                task.cancel()
            await asyncio.gather(writing, watching, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        await send(dict(START))
        async for text in self.texts:
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextmanager
def watched(request: Request, left: Callable[[], None]) -> Iterator[None]:
    """Inside, `left` is called when the client goes away. Its request must have been read."""
    watching = asyncio.ensure_future(until_gone(request.receive))
    watching.add_done_callback(lambda task: None if task.cancelled() else left())
    try:
        yield
    finally:
        watching.cancel()

"""What a client asks, and the server-sent events of an answer; the sender is told when nobody waits any longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from lsp.play.fields import parse
from lsp.play.guard import LARGEST_REQUEST, Receive, Scope, Send, read

START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")],
}


async def asked(
    request: Request,
    reader: Callable[..., Any],
    *more: Any,
    most: int = LARGEST_REQUEST,
    left: Callable[[], None] = lambda: None,
) -> Any:
    """What `reader` makes of the JSON of a request. It has a thread for it, so that others are answered meanwhile."""
    body = await read(request, most)
    with watched(request, left):
        return await run_in_threadpool(lambda: reader(parse(body), *more))


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

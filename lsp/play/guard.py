"""Who may ask, and for how much. The server is for pages and programs of this machine.

A page of another site can send requests here, and by a name that it rebinds to this machine (DNS rebinding) it could
even read the answers. The first says so in ``Origin``, the second in ``Host``: both are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse

from lsp.play.errors import TooLarge, problem_of

HERE = ("127.0.0.1", "localhost", "::1")
LARGEST_REQUEST, LARGEST_UPLOAD = 2**20, 2**26
"""Bytes of a question, and of traces that are to be saved or opened."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""On every answer: no other site may frame, embed or keep it."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def refusal(method: str, headers: Headers) -> str | None:
    """Why a request is refused, or None."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if name_of(host) not in HERE:
        return f"Invalid Host: expected localhost, got {host[:100]!r}"
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return f"Invalid Origin: expected http://{host}, got {origin[:100]!r}"
    if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return f"Invalid Content-Type: expected application/json, got {headers.get('content-type', '')[:100]!r}"
    return None


def name_of(host: str) -> str | None:
    """The name in a ``Host``, without its port; None for what is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises if it is no number
        return parts.hostname if parts.netloc == host and "@" not in host else None
    except ValueError:
        return None


class Guard:
    """Refuses requests of other origins and hosts, and gives every answer the headers that keep other sites out."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                new = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in new if pair[0] not in known)]
            await send(message)

        why = refusal(scope["method"], Headers(scope=scope))
        await (self.app if why is None else forbidden(scope["path"], why))(scope, receive, guarded)


def forbidden(path: str, why: str) -> App:
    """The answer to a request that is refused."""
    if is_openai(path):
        return JSONResponse(problem_of(ValueError(why)), 403)
    return PlainTextResponse(f"{why}\n", 403)


def is_openai(path: str) -> bool:
    """Whether OpenAI's clients ask there, who expect errors in their own form."""
    return path.startswith("/v1/")


async def read(request: Any, most: int = LARGEST_REQUEST) -> bytes:
    """The body of a request; refused as soon as it is known to be too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise TooLarge(f"Invalid request: expected at most {most} bytes, got more")
    return bytes(body)

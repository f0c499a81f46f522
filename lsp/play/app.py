"""The routes: the page, its runs and files, and the two questions of an OpenAI server."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from lsp.play import asks, completions, page, runs, saved
from lsp.play.errors import note, problem_of, sentence, status_of
from lsp.play.guard import LARGEST_UPLOAD, Guard, is_openai
from lsp.play.line import Place, Ticket
from lsp.play.playground import PROBLEMS, Playground
from lsp.play.streams import Events, asked
from lsp.tracing.html import as_json

Handler = Callable[[Request], Awaitable[Any]]


def create_app(playground: Playground) -> Guard:
    """The server as an ASGI app.

    Examples
    --------
    >>> import lsp
    >>> model = lsp.load("tiny")
    >>> app = create_app(Playground(model, lsp.load_tokenizer(model)))
    """
    routes = [
        Route("/", refusing(show)),
        Route("/api/problem", refusing(problem)),
        Route("/api/tokens", refusing(tokens), methods=["POST"]),
        Route("/api/runs", refusing(run), methods=["POST"]),
        Route("/api/save", refusing(save), methods=["POST"]),
        Route("/api/open", refusing(reopen), methods=["POST"]),
        Route("/v1/models", completions.models),
        Route("/v1/models/{name:path}", completions.model),
        Route("/v1/completions", completions.text, methods=["POST"]),
        Route("/v1/chat/completions", completions.chat, methods=["POST"]),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        playground.line.close()

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: unknown})
    app.state.playground = playground
    return Guard(app)


def refusing(handler: Handler) -> Handler:
    """A handler whose errors are one sentence, with the status that fits."""

    async def guarded(request: Request) -> Any:
        try:
            return await handler(request)
        except Exception as error:
            note(error)
            return JSONResponse({"error": sentence(error)}, status_of(error))

    return guarded


async def unknown(request: Request, error: Exception) -> Response:
    """The answer where there is no such path or method."""
    assert isinstance(error, HTTPException)
    path, allowed = request.url.path, (error.headers or {}).get("Allow")
    expected = f"method: expected {allowed}, got {request.method}" if allowed else f"path: got {path[:60]!r}"
    what = ValueError(f"Invalid {expected}")
    said = problem_of(what) if is_openai(path) else {"error": sentence(what)}
    return JSONResponse(said, error.status_code, error.headers)


async def show(request: Request) -> Response:
    """The page."""
    text = page.page(request.app.state.playground)
    return HTMLResponse(text, headers={"content-security-policy": page.policy()})


async def problem(request: Request) -> Response:
    """A held-out problem of a task."""
    task, index = request.query_params.get("task", ""), request.query_params.get("index", "0")
    if not index.isascii() or not index.isdigit() or len(index) > 6 or int(index) >= PROBLEMS:
        raise ValueError(f"Invalid index: expected from 0 to {PROBLEMS - 1}, got {index[:60]!r}")
    found = await run_in_threadpool(request.app.state.playground.problem, task, int(index))
    return JSONResponse({"prompt": found.prompt, "length": request.app.state.playground.length(found)})


async def tokens(request: Request) -> Response:
    """How many tokens a text has: as many masks does a hole need that takes its place."""
    return JSONResponse({"tokens": await asked(request, asks.tokens, request.app.state.playground)})


async def run(request: Request) -> Any:
    """Decodes; the answer is a stream of events."""
    playground = request.app.state.playground
    ask = await asked(request, asks.comparison, playground)
    ticket = playground.line.join(lambda: runs.run(playground, ask))
    return Events(told(ticket), ticket.leave)


async def told(ticket: Ticket) -> AsyncIterator[str]:
    """The events of a run as JSON."""
    try:
        while (event := await ticket.next()) is not None:
            yield as_json({"event": "place", "ahead": event.ahead} if isinstance(event, Place) else event)
        yield '{"event":"done"}'
    except Exception as error:
        note(error)
        yield as_json({"event": "error", "error": sentence(error)})


async def save(request: Request) -> Response:
    """A file of what the page holds."""
    gone = threading.Event()
    content, media = await asked(request, saved.save, gone, most=LARGEST_UPLOAD, left=gone.set)
    return Response(content, media_type=media, headers={"content-disposition": "attachment"})


async def reopen(request: Request) -> Response:
    """Traces from files."""
    text = await asked(request, lambda given: as_json(saved.opened(given)), most=LARGEST_UPLOAD)
    return Response(text, media_type="application/json")


__all__ = ["create_app"]

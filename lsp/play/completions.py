"""``/v1/completions``, ``/v1/chat/completions`` and ``/v1/models``, so that clients of OpenAI can try a model.

One prompt at a time stands in the same line as the runs of the page. `usage` says passes and positions too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse

from lsp.generation import Generation, Run
from lsp.play.errors import NoSuchModel, sentence, status_of
from lsp.play.fields import parse
from lsp.play.guard import read
from lsp.play.line import Place, Ticket
from lsp.play.playground import Playground
from lsp.play.questions import Completion, completion
from lsp.play.streams import Events, until_gone
from lsp.tracing.html import as_json


async def text(request: Request) -> Any:
    """Continues a text."""
    return await answer(request, is_chat=False)


async def chat(request: Request) -> Any:
    """Answers a chat."""
    return await answer(request, is_chat=True)


async def models(request: Request) -> JSONResponse:
    """The one model."""
    name = request.app.state.playground.name
    return JSONResponse({"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "lsp"}]})


async def answer(request: Request, *, is_chat: bool) -> Any:
    playground = request.app.state.playground
    try:
        ask = completion(parse(await read(request)), playground, is_chat)
        ticket = playground.line.join(lambda: generate(playground, ask))
        with leaving_with(request, ticket):
            if not ask.stream:
                return await collected(ask, ticket)
            await beginning(ticket)  # what is wrong with the request is known by then
        return Events(told(ask, ticket), ticket.leave)
    except Exception as error:
        return JSONResponse(problem_of(error), status_of(error))


@contextmanager
def leaving_with(request: Request, ticket: Ticket) -> Iterator[None]:
    """Inside, a client that goes away leaves the line, and so does an error."""
    watching = asyncio.ensure_future(until_gone(request.receive))
    watching.add_done_callback(lambda task: None if task.cancelled() else ticket.leave())
    try:
        yield
    except BaseException:
        ticket.leave()
        raise
    finally:
        watching.cancel()


async def beginning(ticket: Ticket) -> None:
    """Waits for the first event that is no place in the line."""
    while isinstance(await ticket.next(), Place):
        pass


async def collected(ask: Completion, ticket: Ticket) -> JSONResponse:
    """The whole answer at once."""
    while not isinstance(event := await ticket.next(), Answer):
        pass
    choice = ask.whole(event.out.text or "", event.reason)
    return JSONResponse(ask.envelope(choice, event.usage, chunk=False))


async def told(ask: Completion, ticket: Ticket) -> AsyncIterator[str]:
    """The events of a stream, as OpenAI writes them."""
    try:
        if ask.is_chat:
            opening = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            yield as_json(ask.envelope(opening, None, chunk=True))
        while (event := await ticket.next()) is not None:
            if isinstance(event, Answer):
                yield as_json(ask.envelope(ask.piece("", event.reason), None, chunk=True))
                if ask.with_usage:
                    yield as_json(ask.envelope(None, event.usage, chunk=True))
            elif event:
                yield as_json(ask.envelope(ask.piece(event), None, chunk=True))
        yield "[DONE]"
    except Exception as error:
        yield as_json(problem_of(error))


class Answer(NamedTuple):
    """The last event of a completion."""

    out: Generation
    prompt_tokens: int

    @property
    def reason(self) -> str:
        return "stop" if self.out.finished else "length"

    @property
    def usage(self) -> dict[str, int]:
        new = sum(number >= 0 for number in self.out.committed_in)
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": new}
        counts["total_tokens"] = self.prompt_tokens + new
        return {**counts, "passes": self.out.passes, "positions": self.out.positions}


def generate(playground: Playground, ask: Completion) -> Generator[Any, None, None]:
    """Pieces of text as soon as they are final, the first one empty, and in the end the `Answer`."""
    run = Run(playground.model, [ask.prompt], **playground.given, **ask.arguments)
    yield ""
    for _ in run:
        yield run.writers[0].piece()
    yield Answer(run.generations()[0], len(run.prompts[0]))


def problem_of(error: Exception) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    kind = "invalid_request_error" if isinstance(error, ValueError | TypeError) else "server_error"
    code = "model_not_found" if isinstance(error, NoSuchModel) else None
    return {"error": {"message": sentence(error), "type": kind, "param": None, "code": code}}

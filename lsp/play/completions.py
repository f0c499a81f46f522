"""``/v1/completions``, ``/v1/chat/completions`` and ``/v1/models``, so that clients of OpenAI can try a model.

One prompt at a time stands in the same line as the runs of the page. `usage` says passes and positions too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse

from lsp.generation import Generation, Run
from lsp.play.errors import NoSuchModel, note, problem_of, status_of
from lsp.play.line import Place, Ticket
from lsp.play.playground import Playground
from lsp.play.questions import Completion, check_room, completion
from lsp.play.streams import Events, asked, watched
from lsp.prompts import encode
from lsp.tracing.html import as_json


async def text(request: Request) -> Any:
    """Continues a text."""
    return await answer(request, is_chat=False)


async def chat(request: Request) -> Any:
    """Answers a chat."""
    return await answer(request, is_chat=True)


async def models(request: Request) -> JSONResponse:
    """The one model, in a list."""
    return JSONResponse({"object": "list", "data": [described(request)]})


async def model(request: Request) -> JSONResponse:
    """The one model, by its name."""
    given, name = request.path_params["name"], request.app.state.playground.name
    if given != name:
        return refused(NoSuchModel(f"Invalid model: expected {name!r}, got {given[:60]!r}"))
    return JSONResponse(described(request))


def described(request: Request) -> dict[str, Any]:
    return {"id": request.app.state.playground.name, "object": "model", "created": 0, "owned_by": "lsp"}


def refused(error: Exception) -> JSONResponse:
    """What went wrong, as OpenAI says it."""
    note(error)
    return JSONResponse(problem_of(error), status_of(error))


async def answer(request: Request, *, is_chat: bool) -> Any:
    playground = request.app.state.playground
    try:
        ask = await asked(request, completion, playground, is_chat)
        ticket = playground.line.join(lambda: generate(playground, ask))
        with leaving_with(request, ticket):
            if not ask.stream:
                return await collected(ask, ticket)
            await beginning(ticket)  # what is wrong with the request is known by then
        return Events(told(ask, ticket), ticket.leave)
    except Exception as error:
        return refused(error)


@contextmanager
def leaving_with(request: Request, ticket: Ticket) -> Iterator[None]:
    """Inside, a client that goes away leaves the line, and so does an error."""
    with watched(request, ticket.leave):
        try:
            yield
        except BaseException:
            ticket.leave()
            raise


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
        note(error)
        yield as_json(problem_of(error))


class Answer(NamedTuple):
    """The last event of a completion."""

    out: Generation
    prompt_tokens: int
    appended: int

    @property
    def reason(self) -> str:
        """Whether the answer ended by itself, as holes do with nothing behind them, or by its length."""
        return "stop" if self.out.finished or not self.appended else "length"

    @property
    def usage(self) -> dict[str, int]:
        new = sum(number >= 0 for number in self.out.committed_in)
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": new}
        counts["total_tokens"] = self.prompt_tokens + new
        return {**counts, "passes": self.out.passes, "positions": self.out.positions}


def generate(playground: Playground, ask: Completion) -> Generator[Any, None, None]:
    """Pieces of text as soon as they are final, the first one empty, and in the end the `Answer`."""
    config = playground.model.config
    ids = encode(ask.prompt, playground.tokenizer, config.mask_id)
    check_room(ask, ids, config.max_length)
    run = Run(playground.model, [ids], **playground.given, **ask.arguments)
    yield ""
    for _ in run:
        yield run.writers[0].piece()
    given = [token for token in ids if token != config.mask_id]
    yield Answer(run.generations()[0], len(given), run.max_new_tokens)

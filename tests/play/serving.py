"""The playground's server in this process: asked by httpx without a socket, or on a socket of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import pytest
import uvicorn

import lsp
from lsp.play import Playground, create_app
from lsp.play.line import Ticket
from lsp.play.server import address_of, bound
from lsp.tracing import html, storage
from lsp.tracing.compact import shorten

HOST = "http://127.0.0.1:7777"
PROMPT = "Use 3, 5 and 7 to make 15."


@cache
def model() -> tuple[Any, Any]:
    """The embedded model, loaded once."""
    loaded = lsp.load("tiny")
    return loaded, lsp.load_tokenizer(loaded)


@cache
def answer(prompt: str = f"{PROMPT}\n", **how: Any) -> lsp.Generation:
    """What `lsp.generate` gives."""
    loaded, tokenizer = model()
    (out,) = lsp.generate(loaded, prompt, tokenizer=tokenizer, **{"max_new_tokens": 96, **how})
    return out


def reason(out: lsp.Generation) -> str:
    """Why an answer ended, in OpenAI's words."""
    return "stop" if out.finished else "length"


def playground() -> Playground:
    return Playground(*model())


def asking(question: Callable[[httpx.AsyncClient], Any], over: Playground | None = None, **how: Any) -> Any:
    """What an asynchronous function of a client returns; the server is there for as long as that runs."""

    async def ask() -> Any:
        held = over or playground()
        try:
            transport = httpx.ASGITransport(app=create_app(held))
            async with httpx.AsyncClient(transport=transport, base_url=HOST, timeout=60, **how) as client:
                return await question(client)
        finally:
            held.line.close()

    return asyncio.run(ask())


def get(path: str, **how: Any) -> httpx.Response:
    out: httpx.Response = asking(lambda client: client.get(path, **how))
    return out


def post(path: str, question: Any, **how: Any) -> httpx.Response:
    how["headers"] = {"content-type": "application/json", **how.get("headers", {})}
    out: httpx.Response = asking(lambda client: client.post(path, content=json.dumps(question), **how))
    return out


def events(answer: httpx.Response) -> list[Any]:
    """The events of a stream; what is no JSON, as text."""
    texts = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    return [json.loads(text) if text.startswith("{") else text for text in texts]


def question(*schedulers: str, **more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "sides": [{"scheduler": name} for name in schedulers or ("lsp",)], **more}


def as_held(trace: lsp.Trace) -> dict[str, Any]:
    """A trace as the page holds it."""
    out: dict[str, Any] = json.loads(html.as_json({**storage.head_of(trace), "steps": shorten(trace.steps)}))
    return out


def until(true: Callable[[], Any], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.1) -> list[Any]:
    """Every event takes so long from now on that a run can be left before its end; returns the events as they come."""
    told: list[Any] = []
    tell = Ticket.tell

    def slowly(ticket: Ticket, event: Any) -> None:
        told.append(event)
        time.sleep(seconds)
        tell(ticket, event)

    monkeypatch.setattr(Ticket, "tell", slowly)
    return told


@contextmanager
def served(over: Playground | None = None) -> Iterator[tuple[str, Playground]]:
    """The server on a port of this machine: its address, and what it holds."""
    held, listening = over or playground(), bound(0)
    config = uvicorn.Config(create_app(held), log_level="warning", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listening.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield address_of(listening), held
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        held.line.close()

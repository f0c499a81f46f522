"""The command: it serves a model from a folder as well, and a browser may come before the server is ready."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import lsp
from lsp.cli.play import play
from lsp.play import Playground, server
from lsp.tracing import storage
from tests.lsp.checkpoints import FAMILIES
from tests.play.serving import PROMPT, asking, events, playground, until

TINY = Path(lsp.__file__).parent / "tiny" / "checkpoint"
VOCABULARY: dict[str, dict[str, Any]] = {  # of the tokenizer that is at hand
    "llada": {"vocab_size": 241, "embedding_size": 241, "mask_token_id": 0, "eos_token_id": 1},
    "dream": {"vocab_size": 241, "mask_token_id": 0, "eos_token_id": 1},
}


@pytest.mark.parametrize("family", VOCABULARY)
def test_a_model_from_a_folder_is_played(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FAMILIES[family](**VOCABULARY[family]).save(tmp_path / "mine")
    for file in TINY.glob("tokenizer*"):
        shutil.copy(file, folder)
    found: list[Playground] = []
    monkeypatch.setattr(server, "serve", lambda playground, listening, show: found.append(playground))
    monkeypatch.chdir(folder)
    play(model=".", port=0, browser=False)
    (held,) = found
    assert (held.name, held.tasks, held.chat) == ("mine", [], False)

    prompt, chat = f"{PROMPT}<mask:3>.", [{"role": "user", "content": PROMPT}]
    short = {"model": "mine", "max_tokens": 6}
    asked = {
        "/api/runs": {"prompt": prompt, "sides": [{"scheduler": "lsp"}, {"scheduler": "full"}], "max_new_tokens": 4},
        "/v1/completions": {**short, "prompt": PROMPT},
        "/v1/chat/completions": {**short, "messages": chat},
    }

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post(path, json=question) for path, question in asked.items()]

    run, text, answer = asking(ask, held)
    told = events(run)
    for side, name in enumerate(("lsp", "full")):
        (expected,) = lsp.trace(held.model, prompt, scheduler=name, tokenizer=held.tokenizer, max_new_tokens=4)
        mine = [event for event in told if event.get("side") == side]
        head = {key: value for key, value in mine[-1]["head"].items() if key != "given"}
        lines = [event["line"] for event in mine if event["event"] == "pass"]
        assert storage.from_lines({"format": storage.FORMAT, **head}, lines, "run") == expected
        assert mine[-1]["head"]["verdict"] is None
    texts = [text.json()["choices"][0]["text"], answer.json()["choices"][0]["message"]["content"]]
    for got, out, given in zip(texts, (text, answer), (PROMPT, [chat]), strict=True):
        (whole,) = lsp.generate(held.model, given, tokenizer=held.tokenizer, max_new_tokens=6)
        usage = out.json()["usage"]
        assert (got, usage["passes"], usage["positions"]) == (whole.text, whole.passes, whole.positions)


def test_a_browser_that_is_faster_than_the_server_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def open_(address: str) -> None:
        host, port = address.removeprefix("http://").split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        reached.append(address)

    monkeypatch.setattr(server.webbrowser, "open", open_)
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: until(lambda: reached))
    held = playground()
    with server.bound(0) as listening:
        server.serve(held, listening, show=True)
        assert reached == [server.address_of(listening)]
    held.line.close()


def test_a_browser_that_is_not_left_does_not_keep_the_server_from_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """As lynx and w3m do, which `webbrowser` takes where there is no window."""
    answers, left = threading.Event(), threading.Event()
    monkeypatch.setattr(server.webbrowser, "open", lambda address: left.wait(60))
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: answers.set())
    held = playground()
    with server.bound(0) as listening:
        server.serve(held, listening, show=True)
    assert answers.is_set()
    assert not left.is_set()
    left.set()
    held.line.close()


def test_no_other_machine_can_reach_it() -> None:
    with server.bound(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"

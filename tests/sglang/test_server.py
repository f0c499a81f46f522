"""SGLang's HTTP server, as users start it: a client that closes its connection leaves the others right."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.checkpoint import Plain
from tests.sglang.engines import BLOCK, FLOOR, settings
from tests.sglang.reference import decode

pytestmark = pytest.mark.sglang

PROMPTS = [[(41 * i + 13 * j) % 150000 for j in range(4 + 2 * i)] for i in range(8)]
NEW, LONG, START_SECONDS = 24, 400, 240


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a server that counts what it does."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = settings(folder, "LongestStablePrefix", stream=True) | {"port": port, "enable_metrics": True}
    words = [word for name, value in options.items() for word in flag(name, value)]
    with (folder / "log.txt").open("w+") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *words], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_for(server, port, folder / "log.txt")
            yield port
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def flag(name: str, value: Any) -> list[str]:
    """An option as the command line has it."""
    word = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [word] * value
    return [word, str(value)]


def wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            if asked(port, "GET", "/health").status == 200:
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-4000:]}")


def asked(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    return connection.getresponse()


def streamed(port: int, prompt: list[int], new: int) -> Iterator[list[int]]:
    """All tokens so far, as often as they come. Closing it closes the connection."""
    sampling = {"max_new_tokens": new, "ignore_eos": True}
    with asked(port, "POST", "/generate", {"input_ids": prompt, "sampling_params": sampling, "stream": True}) as answer:
        assert answer.status == 200
        for line in answer:
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])
                assert "error" not in piece, piece
                yield piece["output_ids"]


def aborted(port: int) -> int:
    text = asked(port, "GET", "/metrics").read().decode()
    return int(sum(float(count) for count in re.findall(r"^sglang:num_aborted_requests_total\S* (\S+)$", text, re.M)))


def test_a_client_that_closes_its_connection_leaves_the_others_right(port: int) -> None:
    def leaves() -> list[int]:
        pieces = streamed(port, PROMPTS[7], LONG)
        received = next(piece for piece in pieces if piece)
        pieces.close()
        return received

    model = Plain(BLOCK)
    expected = [decode(model, prompt, NEW, FLOOR, set()).tokens for prompt in PROMPTS]
    with ThreadPoolExecutor(8) as clients:
        stayed = [clients.submit(lambda p=prompt: list(streamed(port, p, NEW))[-1]) for prompt in PROMPTS[:7]]
        left = clients.submit(leaves).result()
        assert [client.result() for client in stayed] == expected[:7]
    assert 0 < len(left) < LONG
    assert left == expected[7][: len(left)]

    end = time.monotonic() + 60
    while not aborted(port) and time.monotonic() < end:
        time.sleep(0.2)
    assert aborted(port) == 1  # the engine does not go on for nobody
    with ThreadPoolExecutor(8) as clients:  # and its place is free again
        assert list(clients.map(lambda prompt: list(streamed(port, prompt, NEW))[-1], PROMPTS)) == expected

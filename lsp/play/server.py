"""Serves the playground on this machine alone, until it is interrupted."""

from __future__ import annotations

import contextlib
import socket
import threading
import webbrowser

import uvicorn

from lsp.play.app import create_app
from lsp.play.playground import Playground

ADDRESS = "127.0.0.1"


def bound(port: int) -> socket.socket:
    """A socket of this machine alone; 0 is any free port."""
    out = socket.socket()
    out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        out.bind((ADDRESS, port))
    except OSError as error:
        out.close()
        raise OSError(error.errno, error.strerror, f"{ADDRESS}:{port}") from None
    return out


def address_of(listening: socket.socket) -> str:
    return f"http://{ADDRESS}:{listening.getsockname()[1]}"


def serve(playground: Playground, listening: socket.socket, *, show: bool = False) -> None:
    """Answers until an interrupt. With `show` a browser opens the page."""
    config = uvicorn.Config(
        create_app(playground),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
        limit_concurrency=100,
        server_header=False,
        ws="none",
    )
    listening.listen()  # so that a browser that is faster than the server waits for it
    print(f"the playground of {playground.name} is at {address_of(listening)} until you press Ctrl+C", flush=True)
    if show:  # in a thread, as a browser of the terminal returns when it is left
        threading.Thread(target=webbrowser.open, args=[address_of(listening)], daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])

"""``lsp play``: a local page on which schedulers decode side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lsp.cli import options as o
from lsp.extras import needed_by

PORT = 7777


def play(
    model: o.Model = "tiny",
    dtype: o.Dtype = None,
    mask_id: o.MaskId = None,
    shifted: o.Shifted = None,
    device: o.Device = "cpu",
    chat: o.Chat = None,
    port: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=65535, help="Where the page is; 0 is any free port, e.g. --port 8080."),
    ] = PORT,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether to open the page in the browser of this machine.")
    ] = True,
) -> None:
    """Opens a page of this machine on which two schedulers decode a prompt beside each other, pass by pass.

    \b
      lsp play
      lsp play --model GSAI-ML/LLaDA-8B-Instruct --device cuda --dtype bfloat16 --chat

    The same address answers /v1/completions and /v1/chat/completions of OpenAI's clients. No other machine can reach
    it.
    """
    with needed_by("lsp play"):
        from lsp.play import Playground
        from lsp.play.server import bound, serve

    listening = bound(port)  # noticed before the model is loaded
    network, tokenizer = o.load_model(model, device=device, dtype=dtype, mask_id=mask_id, shifted=shifted)
    embedded = model == o.EMBEDDED
    name = model if embedded else Path(model).resolve().name
    playground = Playground(network, tokenizer, name, o.wants_chat(model, chat), embedded)
    playground.warm_up()
    serve(playground, listening, show=browser)

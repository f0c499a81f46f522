"""What several commands take: the types of their options, and what these options name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import lsp
from lsp import settings
from lsp.generate import tokenizer_of
from lsp.models import Transformer
from lsp.tiny.tasks import REGION

Model = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="A folder or a hub name of LLaDA or Dream, e.g. --model GSAI-ML/LLaDA-8B-Instruct; tiny is embedded.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of the weights, e.g. --dtype bfloat16.", show_default="that of the checkpoint"),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where the model runs, e.g. --device cuda:0.")]
Prompts = Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="One or several texts to continue.")]
Files = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="FILE", help="A file that holds one prompt; - is stdin. May be repeated."),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="How many masks follow the prompt, e.g. --max-new-tokens 256.",
        show_default=f"{REGION} for tiny, which was trained for that, else 128",
    ),
]
SchedulerName = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="NAME", help=f"What commits the tokens: {settings.names()}.", show_default="lsp"
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter of the scheduler or of its rule, e.g. --scheduler threshold --set p=0.95, or "
        "--set floor=4 --set islands=3. May be repeated; lsp info lists them all.",
    ),
]
BlockLength = Annotated[
    int | None,
    typer.Option(metavar="N", help="Commit block by block, e.g. --block-length 32.", show_default="no blocks"),
]
Lookahead = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="A pass ends so many positions after its block or first mask; none is at the end.",
        show_default="64 with islands, as the default has, else none",
    ),
]
Cache = Annotated[
    str,
    typer.Option(metavar="KIND", help="prefix, block (needs --block-length), or none: everything anew in every pass."),
]
RefreshEvery = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Compute everything anew every N passes, e.g. --refresh-every 8.", show_default="never"
    ),
]
RefreshScattered = Annotated[
    bool | None,
    typer.Option(
        "--refresh-scattered/--no-refresh-scattered",
        help="Compute everything anew after a pass that committed scattered tokens.",
        show_default="with islands, as the default has",
    ),
]
StopEarly = Annotated[
    bool, typer.Option("--stop-early/--no-stop-early", help="Whether a stop token drops what follows it.")
]
Temperature = Annotated[float, typer.Option(metavar="T", help="Of the sampling noise, e.g. --temperature 0.7.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the noise; prompt i has N + i.")]
Stops = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help='A text that ends the answer, e.g. --stop ";". May be repeated.'),
]
Delimiters = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND",
        help="Where a prefix may end, e.g. --delimiters code: text, code, cjk, all. May be repeated.",
        show_default="text",
    ),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Put the prompt through the chat template, as tiny and instructed models expect.")
]


def load_model(path: str, dtype: str | None, device: str) -> tuple[Transformer, Any]:
    """The model and the tokenizer that a command was asked for."""
    try:
        torch.device(device)
    except RuntimeError:
        raise ValueError(f"Invalid device: expected one such as cpu, cuda or cuda:1, got {device!r}") from None
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"Invalid device: expected cpu, as torch finds no GPU here, got {device!r}")
    model = lsp.load(path, dtype=dtype, device=device)
    if (tokenizer := tokenizer_of(model)) is None:
        raise ValueError(f"Invalid model: expected a tokenizer in {model.source}, got none")
    return model, tokenizer


def read_prompts(prompts: Sequence[str] | None, files: Sequence[str] | None) -> list[str]:
    """The prompts that were given as arguments and as files, in this order."""
    texts = [*(prompts or ()), *map(read_text, files or ())]
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"Invalid prompt: expected text in UTF-8, got {text!r}") from None
    return texts


def read_text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"Invalid {file}: expected text in UTF-8, got {error}") from None


def region(model: str, max_new_tokens: int | None) -> int:
    """How many masks follow a prompt."""
    return max_new_tokens if max_new_tokens is not None else REGION if model == "tiny" else 128


def as_number(name: str, text: str) -> int | None:
    """An integer, or None for ``none``."""
    try:
        return None if text.lower() == "none" else int(text)
    except ValueError:
        raise ValueError(f"Invalid {name}: expected an integer or none, got {text!r}") from None


def as_chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def decoding(
    *,
    model: str,
    max_new_tokens: int | None,
    stop: list[str] | None,
    delimiters: list[str] | None,
    seed: int,
    **loop: Any,
) -> dict[str, Any]:
    """The keywords of `lsp.generate`; what is wrong with the loop's options is said before a model is loaded."""
    loop = {name: value for name, value in loop.items() if value is not None}
    if "lookahead" in loop:
        loop["lookahead"] = as_number("--lookahead", loop["lookahead"])
    lsp.Options(**loop)
    kinds = delimiters[0] if delimiters and len(delimiters) == 1 else delimiters or "text"
    return {
        "max_new_tokens": region(model, max_new_tokens),
        "stop": stop or (),
        "delimiters": kinds,
        "seed": seed,
        **loop,
    }


@contextmanager
def saying_what_was_committed(tokenizer: Any) -> Iterator[None]:
    """A failure in the middle says how far it came."""
    try:
        yield
    except lsp.DecodingError as error:
        runs = [canvas.run.tolist() for canvas in error.progress.canvases]
        texts = [repr(tokenizer.decode(run, skip_special_tokens=True)) for run in runs]
        raise lsp.DecodingError(f"{error}; before it: {', '.join(texts)}", error.progress) from error

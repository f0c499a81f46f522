"""What several commands take: the types of their options, and what these options name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

import lsp
from lsp.cli import settings
from lsp.decoding import Scheduler
from lsp.models import Transformer
from lsp.models.loading import as_device
from lsp.prompts import MARKER, tokenizer_of
from lsp.ranks import is_first
from lsp.tiny.tasks import REGION

EMBEDDED = "tiny"
Model = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="A folder or a hub name of LLaDA, Dream, …, e.g. --model GSAI-ML/LLaDA-8B-Instruct; tiny is embedded.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Dtype of the weights, e.g. --dtype bfloat16.", show_default="that of the checkpoint"
    ),
]
MaskId = Annotated[
    int | None,
    typer.Option(
        metavar="ID", help="The mask, for a checkpoint that does not say it.", show_default="that of the checkpoint"
    ),
]
Shifted = Annotated[
    bool | None,
    typer.Option(
        "--shifted/--not-shifted",
        help="Whether a token is predicted at the position before it, for a checkpoint that does not say it.",
        show_default="what the checkpoint says",
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where the model runs, e.g. --device cuda:0.")]
Prompts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROMPT", help="One or several texts to continue; in them <mask:N> is filled with N tokens."
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="FILE", help="A file that holds one prompt; - is stdin. May be repeated."),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="How many masks follow the prompt, e.g. --max-new-tokens 256.",
        show_default=f"{REGION} for tiny, which was trained for that, more if its task needs it; else 128; none if "
        "a prompt has <mask:N>",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Decode at most N prompts at a time; the next one takes the place of a finished one, e.g. --batch-size 8.",
        show_default="all at once",
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
        "--set floor=4 --set islands=6. May be repeated; lsp info lists them all.",
    ),
]
BlockLength = Annotated[
    int | None,
    typer.Option(metavar="N", help="Commit block by block, e.g. --block-length 32.", show_default="no blocks"),
]
Blocks = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="fixed, delimiter (a block ends at a confident delimiter), sliding (with the first mask), or growing "
        "(as well, and it always has as many masks).",
        show_default="what the scheduler brings along: fixed but for adablock and sliding",
    ),
]
DelimiterConfidence = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="The confidence at which a delimiter ends a block, for --blocks delimiter.",
        show_default="0.3",
    ),
]
Lookahead = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="End a pass N positions after its block or first mask, e.g. --lookahead 64; none: no limit.",
        show_default="what the scheduler brings along: 64 for lsp, else none",
    ),
]
Recompute = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Keep the last N tokens before the first mask out of the cache: every pass computes them anew.",
        show_default="what the scheduler brings along: 24 for sliding, else 0",
    ),
]
Cache = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="prefix, block or dual (both need --block-length), or none, which computes everything in every pass.",
        show_default="prefix",
    ),
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
        show_default="what the scheduler brings along: on for lsp",
    ),
]
StopEarly = Annotated[
    bool | None,
    typer.Option(
        "--stop-early/--no-stop-early", help="Whether a stop token drops what follows it.", show_default="stop-early"
    ),
]
Graph = Annotated[
    bool | None,
    typer.Option("--graph/--no-graph", help="Capture passes in CUDA graphs and replay them.", show_default="no-graph"),
]
Temperature = Annotated[float, typer.Option(metavar="T", help="Scale of the sampling noise, e.g. --temperature 0.7.")]
TopP = Annotated[
    float | None,
    typer.Option(
        metavar="P", help="Sample from the fewest tokens that reach P, e.g. --top-p 0.95.", show_default="all tokens"
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(metavar="K", help="Sample from the K most likely tokens, e.g. --top-k 50.", show_default="all tokens"),
]
CfgScale = Annotated[
    float,
    typer.Option(
        metavar="S", help="Scale of classifier-free guidance away from a prompt of masks, e.g. --cfg-scale 1."
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the sampling noise; prompt i has N + i.")]
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
    bool | None,
    typer.Option(
        "--chat/--no-chat",
        help="Put the prompt through the chat template, as tiny and instructed models expect.",
        show_default="chat for tiny, no-chat for others",
    ),
]


def check_device(device: str) -> None:
    """Refuses a device that is not here, before anything is loaded."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(as_device(device).type, True):
        raise ValueError(f"Invalid device: expected cpu, as torch finds no GPU here, got {device!r}")


def load_model(path: str, *, device: str, **how: Any) -> tuple[Transformer, Any]:
    """The model and the tokenizer that a command was asked for; `how` is for `lsp.load`."""
    check_device(device)
    model = lsp.load(path, device=device, **how)
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
    if file == "-" and not is_first():
        return ""  # the processes of torchrun share one stdin: the first reads it and tells the others
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"Invalid {file}: expected text in UTF-8, got {error}") from None


def region(model: str, max_new_tokens: int | None, needed: int | None = None) -> int:
    """How many masks follow a prompt: as asked; none if the task needs none; else as usual."""
    if max_new_tokens is not None or needed == 0:
        return max_new_tokens or 0
    return max(REGION if model == EMBEDDED else 128, needed or 0)


def wants_chat(model: str, chat: bool | None) -> bool:
    """Whether prompts go through the chat template: as asked, and for the embedded model by default."""
    return model == EMBEDDED if chat is None else chat


def as_number(name: str, text: str) -> int | None:
    """An integer, or None for ``none``."""
    try:
        return None if text.lower() == "none" else int(text)
    except ValueError:
        raise ValueError(f"Invalid {name}: expected an integer or none, got {text!r}") from None


def decoding(
    model: Model = "tiny",
    dtype: Dtype = None,
    mask_id: MaskId = None,
    shifted: Shifted = None,
    device: Device = "cpu",
    max_new_tokens: MaxNewTokens = None,
    scheduler: SchedulerName = None,
    settings_: Settings = None,
    block_length: BlockLength = None,
    blocks: Blocks = None,
    delimiter_confidence: DelimiterConfidence = None,
    lookahead: Lookahead = None,
    cache: Cache = None,
    recompute: Recompute = None,
    refresh_every: RefreshEvery = None,
    refresh_scattered: RefreshScattered = None,
    stop_early: StopEarly = None,
    temperature: Temperature = 0.0,
    top_p: TopP = None,
    top_k: TopK = None,
    cfg_scale: CfgScale = 0.0,
    graph: Graph = None,
    seed: Seed = 0,
    stop: Stops = None,
    delimiters: Delimiters = None,
    chat: Chat = None,
) -> Decoding:
    """The options that all commands which decode share. They are checked before a model is loaded."""
    loop: dict[str, Any] = {
        "block_length": block_length,
        "blocks": blocks,
        "delimiter_confidence": delimiter_confidence,
        "lookahead": lookahead,
        "cache": cache,
        "recompute": recompute,
        "refresh_every": refresh_every,
        "refresh_scattered": refresh_scattered,
        "stop_early": stop_early,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "cfg_scale": cfg_scale,
        "graph": graph,
    }
    loop = {name: value for name, value in loop.items() if value is not None}
    if lookahead is not None:
        loop["lookahead"] = as_number("--lookahead", lookahead)
    chosen = settings.scheduler(scheduler, settings_ or ())
    chosen.options.replaced_by(loop)
    kinds = delimiters[0] if delimiters and len(delimiters) == 1 else delimiters or "text"
    arguments = {
        "max_new_tokens": region(model, max_new_tokens),
        "stop": stop or (),
        "delimiters": kinds,
        "seed": seed,
        **loop,
    }
    asked = Asked(settings_ or [], max_new_tokens, loop)
    how_to_load = {"dtype": dtype, "mask_id": mask_id, "shifted": shifted}
    return Decoding(model, how_to_load, device, scheduler or "lsp", chosen, wants_chat(model, chat), arguments, asked)


class Asked(NamedTuple):
    """Options as they were given, for a command that hands them on: no defaults, settings as text."""

    settings: list[str]
    max_new_tokens: int | None
    loop: dict[str, Any]


class Decoding(NamedTuple):
    """How a command decodes: what to load, with which scheduler, and the other arguments of `lsp.generate`."""

    model: str
    load: dict[str, Any]  # arguments of lsp.load
    device: str
    name: str
    scheduler: Scheduler
    chat: bool
    arguments: dict[str, Any]
    asked: Asked

    def length(self, texts: Sequence[str]) -> int | None:
        """How many masks follow the prompts: by default none if they have their own, which `lsp.generate` sees to."""
        chosen = self.asked.max_new_tokens is not None or not any(MARKER.search(text) for text in texts)
        return self.arguments["max_new_tokens"] if chosen else None

    def inputs(self, texts: Sequence[str]) -> list[Any]:
        """The prompts, as chats if they go through the chat template."""
        return [[{"role": "user", "content": text}] for text in texts] if self.chat else list(texts)


def decodes(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `decoding` besides its own; it gets them as one argument, ``how``."""
    shared, own = signature(decoding, eval_str=True), signature(command, eval_str=True)
    mine = [parameter for name, parameter in own.parameters.items() if name != "how"]

    @wraps(command)
    def run(**given: Any) -> None:
        how = decoding(**{name: given.pop(name) for name in shared.parameters})
        command(how=how, **given)

    run.__signature__ = own.replace(parameters=[*mine, *shared.parameters.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in run.__signature__.parameters.values()}  # type: ignore[attr-defined]
    return run


@contextmanager
def saying_what_was_committed(tokenizer: Any) -> Iterator[None]:
    """Adds to an error in the middle of decoding what was committed before it."""
    try:
        yield
    except lsp.DecodingError as error:
        runs = [canvas.run.tolist() for canvas in error.progress.canvases]
        texts = [repr(tokenizer.decode(run, skip_special_tokens=True)) for run in runs]
        raise lsp.DecodingError(f"{error}; before it: {', '.join(texts)}", error.progress) from error

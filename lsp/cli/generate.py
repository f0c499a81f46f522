"""``lsp generate``: prompts in, text out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import lsp
from lsp.cli import options as o
from lsp.generation import Generation, Run
from lsp.models.parallel import ParallelTransformer
from lsp.ranks import in_torchrun, is_first, leave
from lsp.tracing import terminal
from lsp.tracing.printable import printable

EMPTY = {
    True: "The answer is empty. The embedded model knows a few tasks and no more: stories of a few additions and such, "
    "4x4 Sudokus, Countdown with three numbers, small functions and programs; lsp demo shows examples.",
    False: "The answer is empty: the model ended it at once. Instructed models expect --chat.",
}
"""What to say of an answer without text, by whether the embedded model gave it."""


@o.decodes
def generate(
    how: o.Decoding,
    prompts: o.Prompts = None,
    file: o.Files = None,
    batch_size: o.BatchSize = None,
    n: Annotated[
        int, typer.Option("--n", metavar="N", min=1, help="Samples of each prompt, with a temperature, e.g. --n 4.")
    ] = 1,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text of one prompt as it is committed.")] = False,
    by_pass: Annotated[
        bool, typer.Option("--by-pass", help="Mark and colour every token by the pass that committed it.")
    ] = False,
    steps: Annotated[bool, typer.Option("--steps", hidden=True, help="The old name of --by-pass.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per prompt and nothing else, e.g. to pipe it into jq.")
    ] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="With --json: the log-probability of every token when it was committed.")
    ] = False,
) -> None:
    """Continues prompts and prints the text; below it, on stderr, what it cost.

    \b
      lsp generate "Use 3, 5 and 7 to make 15."
      echo "Use 3, 5 and 7 to make 15." | lsp generate --file - --stream
      lsp generate --by-pass --scheduler threshold --set p=0.95 "Use 3, 5 and 7 to make 15."
      torchrun --nproc-per-node 2 -m lsp generate --model GSAI-ML/LLaDA-8B-Instruct --device cuda --chat "Hello"

    Processes of torchrun hold the model together, each its share (tensor parallel); the first one prints.
    """
    texts = o.read_prompts(prompts, file)
    if not texts:
        raise ValueError("Invalid prompt: expected a PROMPT or --file FILE, got neither")
    if steps:
        print("lsp: --steps is now called --by-pass", file=sys.stderr)
    by_pass = by_pass or steps
    if stream + by_pass + as_json > 1:
        raise ValueError("Invalid output: expected at most one of --stream, --by-pass and --json, got several")
    if logprobs and not as_json:
        raise ValueError("Invalid output: expected --json with --logprobs, got --logprobs alone")
    if stream and len(texts) * n > 1:
        raise ValueError(f"Invalid prompt: expected a single one with --stream, got {len(texts) * n}")
    network, tokenizer = o.load_model(how.model, device=how.device, tensor_parallel=in_torchrun(), **how.load)
    if isinstance(network, ParallelTransformer):
        texts = network.ranks.share(texts)
    inputs = how.inputs(texts)
    arguments = {"tokenizer": tokenizer, "scheduler": how.scheduler, "batch_size": batch_size, **how.arguments}
    arguments |= {"n": n, "logprobs": logprobs, "max_new_tokens": how.length(texts)}
    with o.saying_what_was_committed(tokenizer):
        if stream and is_first():
            answers = show_stream(Run(network, inputs, **arguments))
        else:
            progress = not as_json and sys.stderr.isatty() and is_first()
            answers = lsp.generate(network, inputs, progress=progress, **arguments)
    leave()
    if not is_first():
        return
    for i, answer in enumerate(answers):
        if as_json:
            print(to_json(answer))
            continue
        if by_pass:
            pieces = terminal.pieces_of(answer, tokenizer)
            Console().print(terminal.answer(pieces, answer.committed_in), soft_wrap=True)
        elif not stream:
            print(printable(answer.text or ""))
        sys.stdout.flush()
        show_cost(answer, len(answers))
        if not (answer.text or "").strip():
            print(EMPTY[how.model == o.EMBEDDED], file=sys.stderr)
        if i + 1 < len(answers):
            print()


def show_stream(run: Run) -> list[Generation]:
    """Prints the text of a run as it is committed."""
    for _ in run:
        print(printable(run.writers[0].piece()), end="", flush=True)
    print()
    return run.generations()


def to_json(answer: Generation) -> str:
    return json.dumps(
        {
            "text": answer.text,
            "tokens": answer.tokens,
            "committed_in": answer.committed_in,
            "steps": answer.committed_in,  # its old name, for one release
            "logprobs": None if answer.logprobs is None else answer.logprobs.tolist(),
            "fills": [fill.text for fill in answer.fills],
            "finished": answer.finished,
            "passes": answer.passes,
            "positions": answer.positions,
            "tokens_per_pass": answer.tokens_per_pass,
            "seconds": answer.seconds,
            "scheduler": repr(answer.scheduler),
            "options": asdict(answer.options),
        }
    )


def show_cost(answer: Generation, prompts: int) -> None:
    seconds = f"{sum(answer.seconds.values()):.2f} s" + (f" for all {prompts} prompts" if prompts > 1 else "")
    counts = (
        f"{terminal.passes(answer.passes)}, {answer.positions} positions, {answer.tokens_per_pass:.1f} tokens per pass"
    )
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"{counts}, {seconds}", "dim"))

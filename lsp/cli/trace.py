"""``lsp trace``: every step of decoding, as a page, as JSON lines, or as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import lsp
from lsp.cli import options as o
from lsp.cli import settings
from lsp.files import check_writable, write_whole
from lsp.tiny.tasks import MOST, TASKS, Problem, region, verdict
from lsp.tiny.tasks import generate as problems
from lsp.tracing.html import write as write_page

FORMATS = (".html", ".jsonl", ".svg", ".gif")
PASS = 4
"""Which pass a picture shows if nothing is said."""


@o.decodes
def trace(
    how: o.Decoding,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Where to write: a page .html, JSON lines .jsonl, a picture .svg or .gif."),
    ],
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The text to continue.", show_default="see --task")
    ] = None,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="A file that holds the prompt; - is stdin.")] = None,
    task: Annotated[
        str, typer.Option(metavar="NAME", help=f"Without a prompt, a held-out problem of {', '.join(TASKS)}.")
    ] = "arithmetic",
    index: Annotated[
        int, typer.Option(metavar="I", help=f"Which of the task's problems, from 0 to {MOST - 1}, e.g. --index 3.")
    ] = 0,
    against: Annotated[
        str, typer.Option(metavar="NAME", help="A scheduler to show beside it, e.g. --against full, or none.")
    ] = "full",
    at: Annotated[
        int | None,
        typer.Option(
            "--pass", metavar="N", min=1, help="Which pass a picture .svg shows, e.g. --pass 7; by default 4."
        ),
    ] = None,
    saved: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="Make the page from saved .jsonl traces. May be repeated."),
    ] = None,
) -> None:
    """Writes down what every pass saw and committed, of a scheduler and of a rival on the same prompt.

    \b
      lsp trace out.html
      lsp trace out.html --task sudoku --index 2 --against full
      lsp trace out.html "Use 3, 5 and 7 to make 15."
      lsp trace a.jsonl                    also writes a.full.jsonl
      lsp trace out.html --from a.jsonl --from a.full.jsonl
      lsp trace slide.svg --pass 3         one pass as a picture; slide.gif moves
    """
    if out.suffix not in FORMATS:
        raise ValueError(f"Invalid OUT: expected a name that ends in {', '.join(FORMATS)}, got {out}")
    if saved:
        if prompt is not None or file is not None or out.suffix == ".jsonl":
            raise ValueError("Invalid --from: expected a page or a picture to write and no prompt, got something else")
        check_writable(out)
        return write(out, [lsp.Trace.load(path) for path in saved], at)
    rivals = {how.name: how.scheduler}
    if against not in ("none", *rivals):
        rivals[against] = settings.scheduler(against)
    paths = [out, *(out.with_suffix(f".{name}.jsonl") for name in list(rivals)[1:] if out.suffix == ".jsonl")]
    for path in paths:
        check_writable(path)
    text, problem = the_prompt(prompt, file, task, index)
    network, tokenizer = o.load_model(how.model, device=how.device, **how.load)
    arguments = {"tokenizer": tokenizer, **how.arguments, "max_new_tokens": how.length([text])}
    if problem is not None:
        arguments["max_new_tokens"] = o.region(how.model, how.asked.max_new_tokens, region(task))
    with o.saying_what_was_committed(tokenizer):
        traces = [lsp.trace(network, how.inputs([text]), scheduler=one, **arguments)[0] for one in rivals.values()]
    traces = [replace(one, verdict=verdict(problem, one.text)) for one in traces]
    for path, part in zip(paths, [[one] for one in traces] if out.suffix == ".jsonl" else [traces], strict=True):
        write(path, part, at)


def the_prompt(prompt: str | None, file: str | None, task: str, index: int) -> tuple[str, Problem | None]:
    """What was given, or a held-out problem."""
    given = o.read_prompts(None if prompt is None else [prompt], None if file is None else [file])
    if len(given) > 1:
        raise ValueError("Invalid prompt: expected a PROMPT or --file FILE, got both")
    if given:
        return given[0], None
    if task not in TASKS:
        raise ValueError(f"Invalid task: expected one of {', '.join(TASKS)}, got {task!r}")
    if not 0 <= index < MOST:
        raise ValueError(f"Invalid index: expected at least 0 and at most {MOST - 1}, got {index}")
    *_, problem = problems(task, index + 1)
    return problem.prompt, problem


def write(path: Path, traces: Sequence[lsp.Trace], at: int | None) -> None:
    """Writes traces in the format that the name asks for; a picture shows pass `at`, or moves."""
    most = max(len(trace.steps) for trace in traces)
    if path.suffix == ".svg" and at is not None and at > most:
        raise ValueError(f"Invalid --pass: expected at most {most}, got {at}")
    if path.suffix == ".html":
        write_page(path, traces)
    elif path.suffix == ".jsonl":
        traces[0].save(path)
    else:
        from lsp.tracing import pictures

        write_whole(path, pictures.still(traces, at or PASS) if path.suffix == ".svg" else pictures.animated(traces))
    print(f"wrote {path}")

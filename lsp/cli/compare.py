"""``lsp compare``: the paper's tables on any model and task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from lsp.cli import options as o
from lsp.evaluation import comparison, tables
from lsp.evaluation.plot import FORMATS as PICTURES
from lsp.evaluation.plot import plot as draw
from lsp.evaluation.problems import Problems, load_problems
from lsp.evaluation.workers import PATIENCE, Workers
from lsp.extras import needed_by
from lsp.files import check_writable, write_whole
from lsp.models.checkpoint import fingerprint
from lsp.ranks import in_torchrun, leave, own_device, ranks_of
from lsp.tiny import known_tasks
from lsp.tiny.tasks import SPLITS, TASKS
from lsp.tracing.printable import printable

WIDE = 140  # columns of a table that goes to a file
SECONDS_BETWEEN_LINES = 10.0  # of progress that goes to a file
TAILS = {"dropped": (True,), "decoded": (False,), "both": (True, False)}

Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help=f"{', '.join(TASKS)}, one of these after infill- (lines of each answer are missing), "
        "infill (all of those in turn), or a file of JSON lines with prompt (or question) and answer. May be repeated.",
        show_default="all that tiny was trained for",
    ),
]
Count = Annotated[int, typer.Option("--problems", metavar="N", min=1, help="Problems per task.")]
Split = Annotated[str, typer.Option(metavar="NAME", help=f"Split of the embedded tasks: {', '.join(SPLITS)}.")]
ProblemSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Which problems of the split.")]
Template = Annotated[
    int, typer.Option(metavar="N", help="Wording of the embedded tasks' prompts: 0, or 1, which was trained less.")
]
Batch = Annotated[int, typer.Option(metavar="N", min=1, help="How many problems are decoded, and timed, in one call.")]
Judge = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="For a file: number (the last one), exact, or contains.",
        show_default="number where the answer has ####, else exact",
    ),
]
Plot = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Also draw accuracy against passes and positions: .png, .svg, .pdf.")
]


def compare(
    task: Tasks = None,
    problems: Count = 100,
    split: Split = "test",
    seed: ProblemSeed = 1,
    template: Template = 0,
    model: o.Model = "tiny",
    dtype: o.Dtype = None,
    mask_id: o.MaskId = None,
    shifted: o.Shifted = None,
    device: o.Device = "cpu",
    max_new_tokens: o.MaxNewTokens = None,
    block_length: Annotated[
        int, typer.Option(metavar="N", min=1, help="Block length of the rows that say blocks.")
    ] = 16,
    tail: Annotated[
        str, typer.Option(metavar="KIND", help="The tail after a stop: dropped, decoded (as published), or both.")
    ] = "both",
    flips: Annotated[
        int, typer.Option(metavar="N", min=0, help="Measure the flip rate on N problems; 0 leaves it out.")
    ] = 25,
    batch: Batch = 25,
    batch_size: o.BatchSize = None,
    chat: o.Chat = None,
    judge: Judge = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Also write the tables: .md, .csv or .json. May be repeated."),
    ] = None,
    plot: Plot = None,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep what is done here: a run that was stopped goes on where it was."),
    ] = None,
) -> None:
    """Runs Full, fixed prefixes, LSP, and its rivals on the same problems and shows what each solves and costs.

    KLASS is left out where the vocabulary is too large for it, AdaBlock where no token ends a line.

    The speed-up is against Full over the whole answer, measured in this very run. The flip rate is the share of open
    masks that change their best token between two passes, between 25 % and 75 % of completion.

    \b
      lsp compare --task arithmetic --problems 50
      lsp compare --out tables.md --out tables.json --plot frontier.svg
      lsp compare --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k.jsonl --chat --block-length 32 --max-new-tokens 256
      torchrun --nproc-per-node 8 -m lsp compare --device cuda --journal done --model GSAI-ML/LLaDA-8B-Instruct …

    Processes of torchrun share the problems, each with the whole model; the first one shows the results.
    """
    if tail not in TAILS:
        raise ValueError(f"Invalid tail: expected {', '.join(TAILS)}, got {tail!r}")
    for path in out or ():
        check_output(path, tables.FORMATS)
    check_plot(plot)
    drawn = {"n": problems, "split": split, "seed": seed, "template": template}
    sets = problem_sets(task, chat=o.wants_chat(model, chat), judge=judge, **drawn)
    device = str(own_device(device)) if in_torchrun() else device
    network, tokenizer = o.load_model(model, device=device, dtype=dtype, mask_id=mask_id, shifted=shifted)
    rows_of_paper = comparison.paper_settings(block_length)
    all_settings = [
        setting if stop else comparison.with_tail(setting) for stop in TAILS[tail] for setting in rows_of_paper
    ]
    lengths = {each.name: o.region(model, max_new_tokens, each.region) for each in sets}
    about: dict[str, Any] = {"model": model, "problems": max(map(len, sets)), "split": split, "seed": seed}
    about |= {"template": template} if template else {}
    same = len(set(lengths.values())) == 1
    about |= {
        "max_new_tokens": next(iter(lengths.values())) if same else lengths,
        "block_length": block_length,
        "device": device,
    }
    about |= {"batch": batch, "dtype": str(network.dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    about |= {} if batch_size is None else {"batch_size": batch_size}
    arguments = {"batch": batch, "flips": flips, "tokenizer": tokenizer}
    arguments |= {"batch_size": batch_size}
    assert network.source is not None
    weights = None if journal is None else fingerprint(network.source)
    ranks = ranks_of(in_torchrun(), torch.device("cpu"), PATIENCE)  # they exchange results alone
    workers = Workers(
        ranks,
        journal,
        (weights, str(network.dtype), batch_size, network.config.mask_id, network.config.shifted, device),
    )
    rows: list[dict[str, Any]] = []
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    for each in sets:
        settings = comparison.possible(all_settings, network.config.vocab_size, tokenizer)
        total = -(-comparison.total_of(each, settings, batch, flips) // workers.size)
        failure: comparison.NotJudgedError | None = None
        arguments |= {"max_new_tokens": lengths[each.name]}
        with bar(each.name, total) as advance:
            try:
                results = comparison.compare(network, each, settings, advance=advance, workers=workers, **arguments)
            except comparison.NotJudgedError as error:
                results, failure = error.results, error
        if workers.rank > 0:
            continue
        rows += tables.rows(each.name, results)
        for stop in TAILS[tail]:
            console.print(show(each.name, [row for row in rows if row["task"] == each.name and row["tail"] != stop]))
        for path in out or ():  # after every task, so that nothing is lost if a later one fails
            write_whole(path, tables.FORMATS[path.suffix](rows, about))
        if failure is not None:
            raise failure
    leave()
    if workers.rank > 0:
        return
    for path in out or ():
        print(f"wrote {path}")
    if plot is not None:
        draw([row for row in rows if not row["tail"]] or rows, plot)
        print(f"wrote {plot}")


def problem_sets(tasks: Sequence[str] | None, **options: Any) -> list[Problems]:
    """The problems of every task; two of the same name could not be told apart in the results."""
    sets = [load_problems(name, **options) for name in tasks or known_tasks()]
    if len({each.name for each in sets}) < len(sets):
        raise ValueError(f"Invalid task: expected different names, got {', '.join(each.name for each in sets)}")
    return sets


def check_output(path: Path, endings: Any) -> None:
    """Refuses an output that cannot be written, before hours of work are spent on it."""
    if path.suffix not in endings:
        raise ValueError(f"Invalid {path}: expected a name that ends in {', '.join(endings)}")
    check_writable(path)


def check_plot(path: Path | None) -> None:
    if path is not None:
        check_output(path, PICTURES)
        with needed_by("a plot"):
            import matplotlib  # noqa: F401, or it would be missed only after the work


def show(task: str, rows: list[dict[str, Any]]) -> Table:
    """The table of a task for a terminal of 80 columns."""
    title = Text(f"\n{printable(task)}, the tail after the stop {'decoded' if rows[0]['tail'] else 'dropped'}", "bold")
    table = Table(
        title=title, box=None, pad_edge=False, title_justify="left", header_style="bold", padding=(0, 1, 0, 0)
    )
    table.add_column("scheduler", min_width=20)
    for heading in ("solved, %", "passes", "tok/pass", "positions", "speed", "flips, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        name, _, solved, interval, *others = tables.cells(row)
        table.add_row(name, f"{solved} ({interval})", *others)
    return table


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Progress on stderr, as a bar in a terminal, else as a line now and then; gives the function that moves it on."""
    what = printable(what)
    if not sys.stderr.isatty():
        yield lines(what, total)
        return
    description = TextColumn("{task.description}", markup=False)
    columns = (description, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def lines(what: str, total: int) -> Callable[[], None]:
    """A function that counts its calls and writes the count to stderr, not more often than every few seconds."""
    done, written = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, written
        done += 1
        if time.monotonic() - written >= SECONDS_BETWEEN_LINES:
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)
            written = time.monotonic()

    return advance

"""``lsp growth``: how the cost of an answer grows with its length."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from lsp.cli import compare as c
from lsp.cli import options as o
from lsp.evaluation import grid, growth, results, verdict
from lsp.evaluation.comparison import Setting
from lsp.evaluation.plot import plot_growth
from lsp.evaluation.problems import load_problems
from lsp.files import write_whole
from lsp.schedulers import Full, LongestStablePrefix, Threshold
from lsp.tiny.tasks import LEVELS


def grow(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="What was measured, as JSON.")],
    task: Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(LEVELS)}.")] = "traces",
    problems: Annotated[int, typer.Option("--problems", metavar="N", min=1, help="Problems per level.")] = 20,
    split: c.Split = "test",
    seed: c.ProblemSeed = 1,
    template: c.Template = 0,
    start: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="Results of lsp tune: the best setting of every rival is run too."),
    ] = None,
    plot: c.Plot = None,
) -> None:
    """Measures passes, positions and seconds of short and long answers of the embedded model, one prompt at a time.

    Runs Full, Threshold as Fast-dLLM runs it with both caches, the same in our loop, and the default.

    \b
      lsp growth growth.json --from test.jsonl --plot growth.svg
    """
    if task not in LEVELS:
        raise ValueError(f"Invalid task: expected one of {', '.join(LEVELS)}, got {task!r}")
    c.check_output(out, (".json",))
    c.check_plot(plot)
    rows = [row for path in start or () for row in results.read(path)]
    wanted = settings(verdict.best_of_families(rows, task))
    drawn: dict[str, Any] = {"split": split, "seed": seed, "template": template}
    levels = [load_problems(task, problems, level=level, **drawn) for level in LEVELS[task]]
    model, tokenizer = o.load_model("tiny", device="cpu")
    with c.bar(task, len(levels) * problems * len(wanted)) as advance:
        found = growth.measure(model, levels, wanted, advance, tokenizer=tokenizer)
    about = {"task": task, **drawn, "threads": torch.get_num_threads()}
    write_whole(out, json.dumps(about | {"rows": found}, indent=1) + "\n")
    print(growth.markdown(found), end="")
    print(f"wrote {out}")
    if plot is not None:
        plot_growth(found, plot)
        print(f"wrote {plot}")


def settings(best: dict[str, str]) -> list[Setting]:
    """Full, Fast-dLLM's, the best of each family that has a best one, and the default."""
    known = {candidate.name: candidate.setting for candidate in grid.grid()}
    out = [Setting.of("Full, blocks of 16", Full(), block_length=16)]
    for stops, words in ((False, "Fast-dLLM's loop"), (True, "Threshold 0.9 in our loop")):
        for cache, title in (("block", "prefix cache"), ("dual", "dual cache")):
            options: dict[str, Any] = {"block_length": 32, "cache": cache, "stop_early": stops}
            out.append(Setting.of(f"{words}, {title}", Threshold(), **options))
    rivals = {family: name for family, name in best.items() if family != "LSP" and name in known}
    out += [replace(known[name], name=f"best {family}: {name}") for family, name in rivals.items()]
    return [*out, Setting.of(growth.DEFAULT, LongestStablePrefix())]

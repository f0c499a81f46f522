"""``lsp tune``: every scheduler on the same grid of options."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from lsp.cli import compare as c
from lsp.cli import options as o
from lsp.evaluation import comparison, grid, infilling, results, verdict
from lsp.evaluation.plot import plot as draw
from lsp.evaluation.workers import PATIENCE, Workers
from lsp.models.checkpoint import fingerprint
from lsp.ranks import in_torchrun, leave, own_device, ranks_of
from lsp.schedulers import LongestStablePrefix
from lsp.tiny import known_tasks
from lsp.tracing.printable import printable


def tune(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="JSON lines; what it holds already is not run again.")],
    task: c.Tasks = None,
    problems: c.Count = 50,
    split: c.Split = "dev",
    seed: c.ProblemSeed = 2,
    template: c.Template = 0,
    model: o.Model = "tiny",
    dtype: o.Dtype = None,
    mask_id: o.MaskId = None,
    shifted: o.Shifted = None,
    device: o.Device = "cpu",
    max_new_tokens: o.MaxNewTokens = None,
    batch: c.Batch = 50,
    batch_size: o.BatchSize = None,
    chat: o.Chat = None,
    judge: c.Judge = None,
    start: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Run on each task only what is on a frontier in these results. May be repeated.",
        ),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this family of the grid, and the default. May be repeated."),
    ] = None,
    plot: c.Plot = None,
) -> None:
    """Runs a grid of schedulers and loop options, and says which of them beat the default of lsp generate.

    By default on all tasks of the embedded model and on in-filling. Stop it at any time: the same command goes on where
    it was.

    \b
      lsp tune dev.jsonl --task code --task countdown
      lsp tune test.jsonl --from dev.jsonl --split test --seed 11 --problems 500 --plot frontier.svg
      torchrun --nproc-per-node 2 -m lsp tune dev.jsonl --task code --task infill --problems 100

    Processes of torchrun share the problems, each with the whole model; the first one writes.
    """
    c.check_output(out, (".jsonl",))
    results.check_ours(out)
    c.check_plot(plot)
    preset = grid.describe(LongestStablePrefix(), LongestStablePrefix().options)
    candidates = of_families(grid.grid(), family, preset)
    seen = [row for path in start or () for row in results.read(path)]
    drawn = {"n": problems, "split": split, "seed": seed, "template": template}
    sets = c.problem_sets(task or (*known_tasks(), infilling.ALL), chat=o.wants_chat(model, chat), judge=judge, **drawn)
    device = str(own_device(device)) if in_torchrun() else device
    network, tokenizer = o.load_model(model, device=device, dtype=dtype, mask_id=mask_id, shifted=shifted)
    lengths = {each.name: o.region(model, max_new_tokens, each.region) for each in sets}
    about: dict[str, Any] = {"model": model, "split": split, "seed": seed, "template": template}
    about["dtype"] = str(network.dtype).removeprefix("torch.")
    assert network.source is not None
    about["weights"] = fingerprint(network.source)
    workers = Workers(ranks_of(in_torchrun(), torch.device("cpu"), PATIENCE))  # they exchange results alone
    arguments = {"batch": batch, "batch_size": batch_size, "tokenizer": tokenizer, "workers": workers}
    can_run = comparison.possible([each.setting for each in candidates], network.config.vocab_size, tokenizer)
    candidates = [each for each in candidates if each.setting in can_run]
    with results.writing(out) if workers.rank == 0 else nullcontext():
        for each in sets:  # what does not belong together is noticed before the work
            if workers.rank == 0:
                grid.results(out, about, each, lengths[each.name])
        for each in sets:
            given = {"max_new_tokens": lengths[each.name], **arguments}
            here = verdict.worth_another_look(candidates, seen, each.name, preset) if start else candidates
            with c.bar(each.name, len(here)) as advance:
                grid.run(network, each, here, out, about=about, advance=advance, **given)
    leave()
    if workers.rank > 0:
        return
    asked = {(each.name, len(each)) for each in sets}
    rows = [row for row in grid.results(out, about) if (row["task"], row["n"]) in asked]
    print(printable(verdict.verdict(rows, preset) + verdict.over_all_tasks(rows, preset)), end="")
    if plot is not None:
        draw(rows, plot, group="family")
        print(f"wrote {plot}")


def of_families(candidates: list[grid.Candidate], wanted: list[str] | None, preset: str) -> list[grid.Candidate]:
    """The candidates of these families and the preset, with which they are compared; or all of them."""
    known = list(dict.fromkeys(each.family for each in candidates))
    if unknown := [name for name in wanted or () if name not in known]:
        raise ValueError(f"Invalid family: expected {', '.join(known)}, got {unknown[0]!r}")
    return [each for each in candidates if wanted is None or each.family in wanted or each.name == preset]

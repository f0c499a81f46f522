"""``make bench-gpu``: every kernel and whole passes on this machine's GPU, checked and then timed, into two files.

``bench-gpu.json`` is for sending in, ``bench-gpu.md`` for reading; both are written anew after every case. The
exit status is 1 if a result of ours was wrong or the device was lost.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.gpu import attention, block, commit, decode, head, model
from bench.gpu.case import OURS, Plan
from bench.gpu.clock import Clock
from bench.gpu.machine import is_served, machine
from bench.gpu.report import WHOLE, as_json, as_markdown
from bench.gpu.run import DeviceLost, Outcome, run
from bench.gpu.shapes import REAL, Shapes
from lsp.files import check_writable, write_whole

KINDS = ("commit", "head", "attention", "block", "model", "decode")


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("make bench-gpu", description=__doc__)
    parser.add_argument("--layers", type=int, default=4, help="layers of the models; LLaDA-8B has 32, Dream-7B 28")
    parser.add_argument("--only", choices=KINDS, action="append", help="measure this kind; may be given several times")
    parser.add_argument("--rounds", type=int, default=50, help="how often everything is run")
    parser.add_argument("--out", type=Path, default=Path("bench-gpu"), help="the files without their endings")
    return parser


def plans(kinds: Sequence[str], shapes: Shapes, layers: int) -> Iterator[Plan]:
    kernels = {"commit": commit.plans, "head": head.plans, "attention": attention.plans, "block": block.plans}
    models = {"model": model.plans, "decode": decode.plans}
    for kind in kinds:
        yield from kernels[kind](shapes) if kind in kernels else models[kind](shapes, layers)


def main(arguments: Sequence[str] | None = None, shapes: Shapes = REAL, clock: Clock | None = None) -> int:
    """Shapes and clock are others in the tests."""
    given = options().parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench-gpu: there is no GPU that torch can use here (make bench measures the CPU)", file=sys.stderr)
        return 2
    if not is_served():
        print(f"bench-gpu: the Triton kernels do not serve this GPU: {machine()['served']}", file=sys.stderr)
        return 2
    files = {ending: given.out.with_name(f"{given.out.name}.{ending}") for ending in ("json", "md")}
    for file in files.values():
        check_writable(file)  # known before the minutes that everything takes
    chosen = plans(given.only or KINDS, shapes, given.layers)
    report = measured(run(chosen, clock or Clock(given.rounds)), files)
    print(f"wrote {files['json']}, which is for sending in, and {files['md']}")
    return 0 if report["right"] and report["ended"] == WHOLE else 1


def measured(found: Iterator[Outcome], files: Mapping[str, Path]) -> dict[str, Any]:
    """The report, whose files are written anew after every outcome: whatever happens then, they have what was found."""
    here, outcomes = machine(), []

    def written(ended: str) -> dict[str, Any]:
        report = as_json(here, outcomes, ended)
        write_whole(files["json"], json.dumps(report, indent=1) + "\n")
        write_whole(files["md"], as_markdown(report))
        return report

    try:
        for outcome in found:
            print(in_a_line(outcome), flush=True)
            outcomes.append(outcome)
            written("interrupted")
    except DeviceLost as lost:
        why = f"the device was lost in the last one ({lost}); nothing after it was measured"
        print(f"bench-gpu: {why}", file=sys.stderr)
        return written(why)
    return written(WHOLE)


def in_a_line(outcome: Outcome) -> str:
    """What is printed while it runs."""
    case = f"{outcome.plan.group}: {outcome.plan.name}"
    if outcome.wrong:
        return f"WRONG    {case}: {outcome.wrong}"
    if not outcome.is_timed:
        return f"skipped  {case}: {outcome.skipped[OURS]}"
    return f"{outcome.times[OURS].median:7.0f}  {case}"


if __name__ == "__main__":
    sys.exit(main())

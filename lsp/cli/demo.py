"""``lsp demo``: held-out problems of the embedded model, decoded under several schedulers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

import lsp
from lsp.cli.compare import check_output
from lsp.tiny import known_tasks
from lsp.tiny.tasks import CouldNotJudge, Problem, check_judge, generate, region, verdict, verify
from lsp.tracing import terminal
from lsp.tracing.html import write
from lsp.tracing.printable import printable

LSP, PAPER, FULL, THRESHOLD = "LSP", "LSP, paper's rule", "Full, blocks of 16", "Threshold 0.9"
SCHEDULERS: dict[str, dict[str, Any]] = {
    LSP: {},
    PAPER: {"scheduler": "paper"},
    FULL: {"scheduler": lsp.Full(), "block_length": 16},
    THRESHOLD: {"scheduler": lsp.Threshold(0.9)},
}
SEED = 0
NOTE = (
    "In brackets: how many times less than Full. LSP is the default: a floor under margins that fade with the "
    "distance, and islands when the prefix is stuck. So few problems show how, not how well: docs/results.md has "
    "hundreds."
)


def demo(
    page: Annotated[Path, typer.Option(metavar="PATH", help="Where to write the trace of one problem.")] = Path(
        "lsp-trace.html"
    ),
    problems: Annotated[int, typer.Option(metavar="N", min=1, help="Problems of each task, e.g. --problems 10.")] = 4,
) -> None:
    """Solves held-out problems of the embedded model's tasks under several schedulers, and compares them.

    \b
      lsp demo
      lsp demo --problems 20 --page trace.html
    """
    check_output(page, (".html",))
    run(Console(highlight=False), problems, page)


class Solved(NamedTuple):
    """One problem by one scheduler."""

    problem: Problem
    scheduler: str
    answer: lsp.Generation
    right: bool


class Solver:
    """The embedded model, loaded and warmed up."""

    def __init__(self) -> None:
        self.model = lsp.load("tiny")
        self.tokenizer = lsp.load_tokenizer(self.model)
        vocabulary = lsp.tokens.vocabulary(self.tokenizer, self.model.config)
        self.given = {"tokenizer": self.tokenizer, "vocabulary": vocabulary}
        for arguments in SCHEDULERS.values():  # so that the first call of each is not timed
            lsp.generate(self.model, "Use 3, 5 and 7 to make 15.\n", max_new_tokens=32, **self.given, **arguments)

    def solve(self, problem: Problem) -> list[Solved]:
        """The problem decoded by every scheduler, one after the other."""
        given = {**self.given, "max_new_tokens": region(problem.task)}
        answers = [lsp.generate(self.model, problem.prompt, **given, **how)[0] for how in SCHEDULERS.values()]
        verdicts = verify([problem] * len(answers), [answer.text or "" for answer in answers])
        each = zip(SCHEDULERS, answers, verdicts, strict=True)
        return [Solved(problem, name, answer, right) for name, answer, right in each]

    def traces(self, problem: Problem) -> list[lsp.Trace]:
        """The traces of LSP and of Full, which differ visibly on every problem."""
        given = {**self.given, "max_new_tokens": region(problem.task)}
        each = [SCHEDULERS[LSP], SCHEDULERS[FULL]]
        traces = [lsp.trace(self.model, problem.prompt, **given, **how)[0] for how in each]
        return [replace(one, verdict=verdict(problem, one.text)) for one in traces]


def run(console: Console, problems: int, page: Path) -> None:
    """Solves this many problems of each task, shows the first of each in detail, and writes the trace of one."""
    solver = Solver()
    all_solved: list[Solved] = []
    tasks = judged(console)
    for task in tasks:
        for i, problem in enumerate(generate(task, problems, split="test", seed=SEED)):
            solved = solver.solve(problem)
            all_solved += solved
            if i == 0:
                show(console, task, solved, solver.tokenizer)
    console.rule(f"all problems, {problems} of each task")
    groups = {task: total(one for one in all_solved if one.problem.task == task) for task in tasks}
    console.print(terminal.table(groups | {"all": total(all_solved)}, base=FULL))
    console.print(f"\n{NOTE}\n")
    first = all_solved[0].problem
    write(page, solver.traces(first), title=f"LSP and Full: {first.task}")
    where = Text(f"Every pass over the {first.task} problem, to step through in a browser: {page.absolute()}")
    console.print(where, soft_wrap=True)


def judged(console: Console) -> list[str]:
    """The tasks whose answers can be judged on this system; says why others are left out."""
    out = []
    for task in known_tasks():
        try:
            check_judge(task)
            out.append(task)
        except CouldNotJudge as error:
            console.print(Text(f"{task} is left out. {error}."))
    return out


def show(console: Console, task: str, solved: list[Solved], tokenizer: Any) -> None:
    """One problem in detail: the prompt, two answers by pass, and what each scheduler needed."""
    console.rule(task)
    console.print(Text(printable(solved[0].problem.prompt.strip())))
    for name, one in zip(SCHEDULERS, solved, strict=True):
        if name in (LSP, THRESHOLD):  # a pass for every token says nothing by colours
            verdict = "right" if one.right else "wrong"
            console.print(Text(f"\n{name}, {terminal.passes(one.answer.passes)}, {verdict}:", "bold"))
            console.print(terminal.answer(terminal.pieces_of(one.answer, tokenizer), one.answer.committed_in))
    console.print()
    console.print(terminal.table({task: total(solved)}, base=FULL))


def total(solved: Iterable[Solved]) -> list[terminal.Row]:
    """What each scheduler needed for all of these."""
    rows = []
    solved = list(solved)
    for name in SCHEDULERS:
        mine = [one for one in solved if one.scheduler == name]
        right = sum(one.right for one in mine)
        rows.append(
            terminal.Row(
                name,
                f"{right}/{len(mine)}" if len(mine) > 1 else "yes" if right else "no",
                sum(one.answer.passes for one in mine),
                sum(one.answer.positions for one in mine),
                sum(len(one.answer.tokens) for one in mine),
                sum(sum(one.answer.seconds.values()) for one in mine),
            )
        )
    return rows

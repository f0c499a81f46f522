"""Five seeded tasks with programs for verifiers.

`generate` draws problems of one split; the splits are disjoint by construction, because the split
is a hash of what makes a problem: the numeric skeleton of a story, the solved grid, the Countdown
instance, the sequence of operations of a function, a program without its start. `verify` judges
answers by what they say, not by how they are worded. Each task words its prompts in two ways
(`template`), which changes nothing else.
"""

import random
from collections.abc import Iterator, Sequence

from lsp.tiny.tasks import arithmetic, code, countdown, sudoku, traces
from lsp.tiny.tasks.problem import MAX_NUMBER, REGION, SPLITS, TEMPLATES, Problem, region, split_of
from lsp.tiny.tasks.sandbox import CouldNotJudge, check_limits

TASKS = ("arithmetic", "sudoku", "countdown", "code", "traces")

_MODULES = {"arithmetic": arithmetic, "sudoku": sudoku, "countdown": countdown, "code": code, "traces": traces}

LEVELS: dict[str, tuple[int, ...]] = {task: _MODULES[task].LEVELS for task in TASKS}
"""The difficulties of each task, each drawn equally often."""

MOST = 5000
"""How many problems of a task can be drawn: a split of Countdown has not many more."""

__all__ = [
    "LEVELS",
    "MAX_NUMBER",
    "MOST",
    "REGION",
    "SPLITS",
    "TASKS",
    "TEMPLATES",
    "CouldNotJudge",
    "Problem",
    "check_judge",
    "draw",
    "generate",
    "region",
    "split_of",
    "verdict",
    "verify",
]


def draw(task: str, rng: random.Random, split: str, level: int | None = None, template: int = 0) -> Problem:
    """One problem of `split`, of a random level unless one is given."""
    if split not in SPLITS:
        raise ValueError(f"Invalid split: expected one of {SPLITS}, got {split!r}")
    if template not in TEMPLATES:
        raise ValueError(f"Invalid template: expected one of {TEMPLATES}, got {template!r}")
    module = _MODULES[task]

    def wanted(key: str) -> bool:
        return split_of(f"{task} {key}") == split

    while True:
        chosen = rng.choice(module.LEVELS) if level is None else level
        if task == "traces":
            return traces.propose(rng, chosen, template, wanted)
        problem: Problem = module.propose(rng, chosen, template)
        if wanted(problem.key):
            return problem


def generate(
    task: str, n: int, *, split: str = "test", seed: int = 0, level: int | None = None, template: int = 0
) -> Iterator[Problem]:
    """`n` different problems, always the same for the same arguments, worded by the template."""
    if n > MOST:
        raise ValueError(f"Invalid n: expected at most {MOST} problems of a task, got {n}")
    rng = random.Random(f"{task} {split} {seed} {level}")
    seen: set[str] = set()
    known = 0  # draws in a row that gave nothing new
    while len(seen) < n:
        problem = draw(task, rng, split, level, template)
        known = known + 1 if problem.prompt in seen else 0
        if known > 10 * MOST:
            raise ValueError(f"Invalid n: expected at most {len(seen)} problems of {task} at level {level}, got {n}")
        if known == 0:
            seen.add(problem.prompt)
            yield problem


def check_judge(task: str) -> None:
    """Refuses a task whose answers cannot be judged on this system, before there are any."""
    if task == "code":
        check_limits()


def verdict(problem: Problem | None, text: str | None) -> str | None:
    """``"right"`` or ``"wrong"``, or None if nobody can tell."""
    if problem is None:
        return None
    try:
        return "right" if verify([problem], [text or ""])[0] else "wrong"
    except CouldNotJudge:
        return None


def verify(problems: Sequence[Problem], answers: Sequence[str]) -> list[bool]:
    """Whether each answer solves its problem; raises CouldNotJudge where that cannot be known."""
    verdicts = [
        p.task != "code" and _MODULES[p.task].verify(p, text) for p, text in zip(problems, answers, strict=True)
    ]
    programs = [i for i, p in enumerate(problems) if p.task == "code"]
    judged = code.verify_many([problems[i] for i in programs], [answers[i] for i in programs])
    for i, verdict in zip(programs, judged, strict=True):
        verdicts[i] = verdict
    return verdicts

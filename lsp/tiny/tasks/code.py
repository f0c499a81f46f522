"""A small Python function of 4 to 8 statements, written from a description and traced by hand.

    Write f(x), traced for x = 5: add 3 to x; if x is more than 6: double x, if x is even:
    subtract 4 from x; halve x.

    def f(x):  # 5
        x = x + 3  # 8
        if x > 6:  # yes
            x = x * 2  # 16
            ...
        return x  # 6

Every line ends with what it does for the given input: the new value, yes or no, or skip. In the
description an `if` reaches to the next semicolon, so conditions nest without brackets. The
verifier runs the function in a sandbox: it must agree with the description on many inputs, and
its comments with its own execution.
"""

import itertools
import random
from collections.abc import Sequence

from lsp.tiny.tasks.problem import MAX_NUMBER, Problem
from lsp.tiny.tasks.sandbox import CouldNotJudge, Run, run_programs

LEVELS = (4, 5, 6, 7, 8)
INPUTS = (-7, -4, -1, *range(0, 31), 33, 40, 47, 56)

NAMES = ("f", "g", "h")
VARIABLES = ("a", "k", "n", "x")

ACTIONS = {
    "add": ("add {c} to {v}", "{v} + {c}"),
    "increase": ("increase {v} by {c}", "{v} + {c}"),
    "subtract": ("subtract {c} from {v}", "{v} - {c}"),
    "decrease": ("decrease {v} by {c}", "{v} - {c}"),
    "double": ("double {v}", "{v} * 2"),
    "triple": ("triple {v}", "{v} * 3"),
    "halve": ("halve {v}", "{v} // 2"),
    "modulo": ("take {v} modulo {c}", "{v} % {c}"),
}
CONDITIONS = {
    "odd": ("if {v} is odd", "{v} % 2 == 1"),
    "even": ("if {v} is even", "{v} % 2 == 0"),
    "more": ("if {v} is more than {c}", "{v} > {c}"),
    "less": ("if {v} is less than {c}", "{v} < {c}"),
}


class _Writer:
    """Writes description and program together while it follows the traced value."""

    def __init__(self, rng: random.Random, variable: str, value: int):
        self.rng, self.variable, self.value = rng, variable, value
        self.taken = True  # whether the traced run reaches the next statement
        self.depth = 1
        self.said: list[str] = []
        self.lines: list[str] = []
        self.kinds: list[str] = []

    def act(self) -> None:
        """An assignment that keeps the traced value between 0 and MAX_NUMBER."""
        while True:
            kind, constant = self.rng.choice(sorted(ACTIONS)), self.rng.randint(2, 9)
            said, expression = self._fill(ACTIONS[kind], constant)
            result = eval(expression, {self.variable: self.value})
            if 0 <= result <= MAX_NUMBER:
                break
        if self.taken:
            self.value = result
        self._write(kind, said, f"{self.variable} = {expression}", str(result))

    def branch(self) -> None:
        """An `if`; four times in five one that the traced run enters."""
        wanted = self.rng.random() < 0.8
        while True:
            kind, constant = self.rng.choice(sorted(CONDITIONS)), self.rng.randint(2, 30)
            said, expression = self._fill(CONDITIONS[kind], constant)
            if bool(eval(expression, {self.variable: self.value})) == wanted:
                break
        self._write(kind, said, f"if {expression}:", "yes" if wanted else "no")
        self.depth += 1
        self.taken = self.taken and wanted

    def end(self) -> None:
        """The end of a group: back to the outermost level."""
        self.depth, self.taken = 1, True
        self.kinds.append(";")

    def _fill(self, templates: tuple[str, str], constant: int) -> tuple[str, str]:
        said, expression = (t.format(v=self.variable, c=constant) for t in templates)
        return said, expression

    def _write(self, kind: str, said: str, line: str, note: str) -> None:
        note = note if self.taken else "skip"
        self.kinds.append(kind)
        self.said.append(said)
        self.lines.append("    " * self.depth + f"{line}  # {note}")


def _groups(rng: random.Random, level: int) -> list[tuple[int, int]]:
    """Groups of statements that hold `level` in all, as (ifs, assignments)."""
    shapes = [(0, 1), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    while True:
        groups = list[tuple[int, int]]()
        while (left := level - sum(map(sum, groups))) > 0:
            groups.append(rng.choice([shape for shape in shapes if sum(shape) <= left]))
        if any(ifs for ifs, _ in groups):
            return groups


def propose(rng: random.Random, level: int, template: int = 0) -> Problem:
    name, variable, start = rng.choice(NAMES), rng.choice(VARIABLES), rng.randint(1, 20)
    writer = _Writer(rng, variable, start)
    sentences = []
    for ifs, actions in _groups(rng, level):
        first = len(writer.said)
        inner = min(actions, rng.randint(1, 2)) if ifs == 2 else actions
        if ifs:
            writer.branch()
        if ifs == 2:
            for _ in range(actions - inner):
                writer.act()
            writer.branch()
        for _ in range(inner):
            writer.act()
        sentences.append(_sentence(writer.said[first:]))
        writer.end()
    function, given = f"{name}({variable})", f"{variable} = {start}"
    asked = f"Given {given}, write and trace {function}" if template else f"Write {function}, traced for {given}"
    prompt = f"{asked}: {'; '.join(sentences)}.\n"
    last = f"    return {variable}  # {writer.value}"
    answer = "\n".join([f"def {name}({variable}):  # {start}", *writer.lines, last])
    facts = {"name": name, "start": start, "reference": answer}
    return Problem("code", level, prompt, answer, " ".join(writer.kinds), facts)


def _sentence(parts: list[str]) -> str:
    """Join the statements of a group: a colon after a condition, a comma after an action."""
    text = parts[0]
    for before, part in itertools.pairwise(parts):
        text += (": " if before.startswith("if") else ", ") + part
    return text


def verify_many(problems: Sequence[Problem], texts: Sequence[str]) -> list[bool]:
    """Whether each text is a right program with a true trace, all run in one sandbox."""
    pairs = list(zip(problems, texts, strict=True))
    jobs = [(text, p.facts["name"], (p.facts["start"], *INPUTS)) for p, text in pairs]
    jobs += [(p.facts["reference"], p.facts["name"], (p.facts["start"], *INPUTS)) for p in problems]
    runs = run_programs(jobs)
    found, wanted = runs[: len(problems)], runs[len(problems) :]
    return [_agree(run, truth, text) for run, truth, text in zip(found, wanted, texts, strict=True)]


def _agree(run: Run | None, truth: Run | None, text: str) -> bool:
    if truth is None:
        raise CouldNotJudge("Could not judge programs: the right answer itself did not run; is the machine overloaded?")
    if run is None:
        return False
    comments = [line.partition("  # ")[2] for line in text.split("\n")]
    return run.outputs == truth.outputs and run.notes == comments


def verify(problem: Problem, text: str) -> bool:
    """`verify_many` for one; use that for many, it starts one process for all."""
    return verify_many([problem], [text])[0]

"""Drills: unrelated equations, statements or names, a part of each hidden: the cheapest way to learn the facts."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from lsp.tiny.tasks import draw, traces

DRILL_LENGTH = 3
"""Unrelated results in a row of drills."""


def _arithmetic_drills(rng: random.Random, rows: int) -> list[str]:
    """Sentences of different stories."""
    sentences: list[str] = []
    while len(sentences) < rows * DRILL_LENGTH:
        *steps, _ = draw("arithmetic", rng, "train").answer.split(". ")
        sentences += [f"{sentence}." for sentence in steps]
    rng.shuffle(sentences)
    return [" ".join(sentences[i::rows][:DRILL_LENGTH]) for i in range(rows)]


def _countdown_drills(rng: random.Random, rows: int) -> list[str]:
    """Four equations of different solutions."""
    answers = [draw("countdown", rng, "train").answer.split(", ") for _ in range(2 * rows + 1)]
    pairs = [f"{first}, {then}" for (first, _), (_, then) in itertools.pairwise(answers)]
    return [one + other for one, other in zip(pairs[::2], pairs[1::2], strict=True)]


def _code_drills(rng: random.Random, rows: int) -> list[str]:
    """Statements of different programs, each after the value that it finds."""
    statements: list[str] = []
    while len(statements) < rows * DRILL_LENGTH:
        value = ""
        for line in draw("code", rng, "train").answer.split("\n"):
            note = line.partition("  # ")[2]
            if value and note != "skip" and "return" not in line:
                statements.append(f"  # {value}\n{line}")
            value = note if note.isdigit() else value
    rng.shuffle(statements)
    return ["".join(statements[i::rows][:DRILL_LENGTH]) for i in range(rows)]


def _name_drills(rng: random.Random, rows: int) -> list[str]:
    """The first words of a description and of its function."""
    problems = [draw("code", rng, "train") for _ in range(rows)]
    return [f"{p.prompt.partition(',')[0]}\n{p.answer.partition(':')[0]}" for p in problems]


def _trace_drills(rng: random.Random, rows: int) -> list[str]:
    """Two lines of a trace, the second from values and a statement of its own."""
    return ["\n".join(traces.drill(rng)) for _ in range(rows)]


@dataclass(frozen=True)
class Drill:
    """Rows of text, and which tokens of a row are hidden."""

    texts: Callable[[random.Random, int], list[str]]
    signs: tuple[str, ...]
    hidden: Callable[[random.Random, list[int]], list[int]]
    """Positions to hide, given those of the signs."""


def _next(_: random.Random, signs: list[int]) -> list[int]:
    return [sign + 1 for sign in signs]


def _from_a_value(rng: random.Random, signs: list[int]) -> list[int]:
    """What is computed in the last line, from one of the values on or its verdict alone (without one: nothing)."""
    values = [signs[-1] + offset for offset in (2, 4, 6, 7)]
    return values[rng.randrange(4) :]


def _every_other_next(_: random.Random, signs: list[int]) -> list[int]:
    return [sign + 1 for sign in signs[1::2]]


def _one_before(rng: random.Random, signs: list[int]) -> list[int]:
    """An operand or the operator of every equation."""
    return [sign - rng.randint(1, 3) for sign in signs]


DRILLS = {
    "arithmetic": Drill(_arithmetic_drills, (" =",), _next),
    "countdown": Drill(_countdown_drills, (" =",), _next),
    "inverse": Drill(_countdown_drills, (" =",), _one_before),
    "code": Drill(_code_drills, ("  #",), _every_other_next),
    "names": Drill(_name_drills, ("def",), _next),
    "traces": Drill(_trace_drills, ("  #",), _from_a_value),
}

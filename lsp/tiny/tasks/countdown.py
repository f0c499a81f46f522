"""Countdown with three numbers: reach the target with each number used once.

    Use 3, 5 and 7 to make 26.
    First 7 * 3 = 21, then 21 + 5 = 26.

At level 0 sums and differences suffice, at level 1 every solution needs a product. Levels 2 and 3
are the same with a number above 20, for the training only. Most problems have several solutions,
and the verifier accepts any.
"""

import functools
import itertools
import random
import re

from lsp.tiny.tasks.problem import MAX_NUMBER, Problem, apply

LEVELS = (0, 1)
LARGEST = 20
LARGEST_IN_TRAINING = 30

Solution = tuple[int, str, int, int, int, str, int]


@functools.cache
def instances() -> dict[int, list[tuple[tuple[int, ...], int]]]:
    """Every solvable (numbers, target), by level."""
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {level: [] for level in range(4)}
    for numbers in itertools.combinations_with_replacement(range(1, LARGEST_IN_TRAINING + 1), 3):
        for target, solution in sorted(_easiest(numbers).items()):
            level = min(1, _products(solution)) + 2 * (max(numbers) > LARGEST)
            found[level].append((numbers, target))
    return found


def _products(solution: Solution) -> int:
    return (solution[1] == "*") + (solution[5] == "*")


def _easiest(numbers: tuple[int, ...]) -> dict[int, Solution]:
    """The easiest solution of every target that `numbers` can make."""
    best: dict[int, Solution] = {}
    for solution in sorted(_solutions(numbers), key=_effort):
        target = apply(solution[5], solution[4], solution[6])
        assert target is not None
        best.setdefault(target, solution)
    return best


def _solutions(numbers: tuple[int, ...]) -> list[Solution]:
    """(a, operator, b, middle, c, operator, d): a op b = middle, then c op d = target."""
    found: list[Solution] = []
    for i, third in enumerate(numbers):
        b, a = sorted(numbers[:i] + numbers[i + 1 :])
        for first in "+-*":
            middle = apply(first, a, b)
            if middle is None or not 1 <= middle <= MAX_NUMBER:
                continue
            for second, c, d in (
                ("+", middle, third),
                ("-", middle, third),
                ("-", third, middle),
                ("*", middle, third),
            ):
                target = apply(second, c, d)
                if target is not None and 1 <= target <= MAX_NUMBER:
                    found.append((a, first, b, middle, c, second, d))
    return found


def _effort(solution: Solution) -> tuple[int, ...]:
    """Fewest products first, then additions before subtractions, then larger numbers first."""
    a, first, b, middle, c, second, _ = solution
    ranks = {"+": 0, "-": 1, "*": 2}
    order = ranks[first] + ranks[second], ranks[first], -a, -b, int(c != middle)
    return _products(solution), *order


def propose(rng: random.Random, level: int, template: int = 0) -> Problem:
    numbers, target = rng.choice(instances()[level])
    a, first, b, middle, c, second, d = _easiest(numbers)[target]
    x, y, z = rng.sample(numbers, 3)
    given = f"{x}, {y} and {z}"
    prompt = f"Make {target} from {given}.\n" if template else f"Use {given} to make {target}.\n"
    answer = f"First {a} {first} {b} = {middle}, then {c} {second} {d} = {target}."
    facts = {"numbers": numbers, "target": target}
    return Problem("countdown", level, prompt, answer, f"{numbers} {target}", facts)


ANSWER = re.compile(r"First (\d+) ([-+*]) (\d+) = (\d+), then (\d+) ([-+*]) (\d+) = (\d+)\.")


def verify(problem: Problem, text: str) -> bool:
    """Whether both equations are true, use each number once and reach the target."""
    match = ANSWER.fullmatch(text)
    if not match:
        return False
    first, second = match[2], match[6]
    a, b, middle, c, d, target = (int(match[i]) for i in (1, 3, 4, 5, 7, 8))
    if apply(first, a, b) != middle or apply(second, c, d) != target:
        return False
    left = [d] * (c == middle) + [c] * (d == middle)
    numbers = sorted(problem.facts["numbers"])
    return target == problem.facts["target"] and any(sorted((a, b, n)) == numbers for n in left)

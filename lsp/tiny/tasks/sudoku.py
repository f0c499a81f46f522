"""4x4 Sudoku with exactly one solution; the level is the number of blanks.

The splits hold whole solved grids apart, so no test grid was ever seen with other blanks.
"""

import itertools
import random

from lsp.tiny.tasks.problem import Problem

LEVELS = (6, 7, 8, 9, 10)


def _solved_grids() -> list[str]:
    """All 288 solved grids, 16 cells each."""
    rows = ["".join(row) for row in itertools.permutations("1234")]
    halves = [(a, b) for a, b in itertools.product(rows, rows) if _boxes_are_right(a, b)]
    return [
        a + b + c + d
        for (a, b), (c, d) in itertools.product(halves, halves)
        if all(len(set(column)) == 4 for column in zip(a, b, c, d, strict=True))
    ]


def _boxes_are_right(upper: str, lower: str) -> bool:
    return len(set(upper[:2] + lower[:2])) == len(set(upper[2:] + lower[2:])) == 4


GRIDS = _solved_grids()
CODES = [int(grid, 16) for grid in GRIDS]  # a cell is four bits


def propose(rng: random.Random, level: int, template: int = 0) -> Problem:
    while True:
        cells = rng.choice(GRIDS)
        blanks = set(rng.sample(range(16), level))
        puzzle = "".join("_" if i in blanks else cell for i, cell in enumerate(cells))
        if _solutions(puzzle) == 1:
            break
    prompt = f"{'Fill this grid' if template else 'Solve the sudoku'}:\n{_rows(puzzle)}\n"
    return Problem("sudoku", level, prompt, _rows(cells), cells, {"puzzle": puzzle})


def _solutions(puzzle: str) -> int:
    """How many solved grids agree with the given cells."""
    given = int("".join("0" if cell == "_" else "f" for cell in puzzle), 16)
    wanted = int(puzzle.replace("_", "0"), 16)
    return sum(code & given == wanted for code in CODES)


def _rows(cells: str) -> str:
    return "\n".join(cells[i : i + 4] for i in range(0, 16, 4))


def verify(problem: Problem, text: str) -> bool:
    """Whether `text` is a solved grid that keeps the given cells."""
    cells = text.replace("\n", "")
    if text != _rows(cells) or cells not in GRIDS:
        return False
    return all(a in ("_", b) for a, b in zip(problem.facts["puzzle"], cells, strict=True))

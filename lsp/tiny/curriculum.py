"""What the training shows, and when: five stages, each a recipe per task and its drills.

First the format of the answers, then also their results, then the number facts in the words of
every task, with most examples for the task that needs the most search, and in the last two stages
the names of functions, single tokens that the others weigh too little. A stage begins at a multiple
of `data.POOL`, so that a resumed run cuts the same batches.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How the batches of one task are made; the kinds of masks are described in `data`."""

    batch: int  # examples per rank and step
    full_batch: int  # the same when the whole answer region is shown
    suffix: float  # share of suffix masks
    result_cut: float = 0.0  # share of these whose cut announces a result
    name_cut: float = 0.0  # share of these that cut before the second token, the function's name
    results: float = 0.0  # share of the examples that get result masks instead
    tail: int = 24  # longest random run of end-of-sequence after the answers


@dataclass(frozen=True)
class Stage:
    first_step: int
    recipes: dict[str, Recipe]
    drills: dict[str, int]  # rows of drills per rank and step, by the task they come from


ANNOUNCES = {"arithmetic": " =", "countdown": " =", "code": "  #", "names": "def"}
"""The token that announces a computed result."""

FULL_SHARE = 0.22
"""Share of the batches that show the whole answer region."""

STAGES = (
    Stage(
        0,
        {
            "arithmetic": Recipe(9, 6, suffix=0.5, result_cut=0.6),
            "sudoku": Recipe(8, 3, suffix=0.15),
            "countdown": Recipe(26, 5, suffix=0.3, result_cut=0.4),
            "code": Recipe(8, 5, suffix=0.5, result_cut=0.6),
        },
        {},
    ),
    Stage(
        1000,
        {
            "arithmetic": Recipe(9, 6, suffix=0.5, result_cut=0.6, results=0.3),
            "sudoku": Recipe(8, 3, suffix=0.15),
            "countdown": Recipe(26, 5, suffix=0.3, result_cut=0.4, results=0.2),
            "code": Recipe(8, 5, suffix=0.5, result_cut=0.6, results=0.4),
        },
        {"arithmetic": 24},
    ),
    Stage(
        1600,
        {
            "arithmetic": Recipe(8, 5, suffix=0.5, result_cut=0.6, results=0.3),
            "sudoku": Recipe(4, 2, suffix=0.15, tail=8),
            "countdown": Recipe(44, 8, suffix=0.3, result_cut=0.2, results=0.1, tail=4),
            "code": Recipe(9, 6, suffix=0.5, result_cut=0.6, results=0.3),
        },
        {"arithmetic": 6, "code": 12, "countdown": 6},
    ),
    Stage(
        2000,
        {
            "arithmetic": Recipe(9, 5, suffix=0.5, result_cut=0.6, results=0.3),
            "sudoku": Recipe(4, 2, suffix=0.15, tail=8),
            "countdown": Recipe(40, 8, suffix=0.3, result_cut=0.2, results=0.1, tail=4),
            "code": Recipe(10, 6, suffix=0.5, result_cut=0.6, name_cut=0.25, results=0.3),
        },
        {"arithmetic": 6, "code": 8, "countdown": 6},
    ),
    Stage(
        2704,
        {
            "arithmetic": Recipe(9, 5, suffix=0.5, result_cut=0.6, results=0.2),
            "sudoku": Recipe(4, 2, suffix=0.15, tail=8),
            "countdown": Recipe(36, 8, suffix=0.3, result_cut=0.2, results=0.1, tail=4),
            "code": Recipe(11, 6, suffix=0.5, result_cut=0.5, name_cut=0.4, results=0.2),
        },
        {"arithmetic": 4, "code": 6, "countdown": 4, "names": 12},
    ),
)


def stage_at(step: int) -> Stage:
    return [stage for stage in STAGES if stage.first_step <= step][-1]

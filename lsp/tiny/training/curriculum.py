"""What the training shows, and when: stages, each a recipe per task and its drills.

The first run has five stages and knows no traces. Its first stage teaches the format of the answers
and, from the first step on, the number facts behind them, in small batches: so early the number of
steps counts. The second gives most rows and most weight to the search of Countdown and to programs.
Then, with the facts known, the drills give way to arithmetic stories, first whole ones, then cut
before a sentence, so that the model learns which step comes next. The last stage leaves out the
larger numbers of Countdown.

The second run starts from what the first has made and gives most of its time to traces, first short
ones, then all, then mostly long ones; the other tasks stay in every step, so that they are kept. From the
first step on there are drills of single statements: verdicts are the last thing about traces that it learns. Late
stages show more canvases that are masked to their end, because what follows a cut should not depend on how many masks
do, and *islands* behind the cuts: tokens that a decoder has committed before those in front of them.

The third run shows what decoding meets: blocks of which the model itself has chosen what is shown (`surest`), and a
prefix that was computed block by block, while all behind a block was masked.
A stage begins at a multiple of `data.POOL`, so that a resumed run cuts the same batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Recipe:
    """How the batches of one task are made; the kinds of masks are described in `data`."""

    batch: int  # examples per rank and step
    full_batch: int  # the same when the whole answer region is shown
    full: float = 0.22  # share of the batches that show the whole answer region
    suffix: float = 0.5  # share of suffix masks
    result_cut: float = 0.0  # share of these whose cut announces a result
    name_cut: float = 0.0  # share of these that cut before the second token, the function's name
    step_cut: float = 0.0  # share of these that cut before a sentence
    results: float = 0.0  # share of the examples that get result masks instead
    choices: float = 0.0  # share of the examples that get choice masks instead
    tail: int = 24  # longest random run of end-of-sequence after the answers
    infill: float = 0.0  # share of the examples of which one line or sentence is hidden instead
    islands: float = 0.0  # share of cuts behind which some tokens are shown
    blocks: float = 0.0  # share of suffixes or rows of which the model itself shows what it is surest of, by blocks
    stale: float = 0.0  # share of cuts before which each block is as a cache holds it
    horizon: int = 0  # tokens over which the weight of a suffix fades, if it does
    reworded: float = 0.0  # share of the prompts in the second template
    weight: float = 1.0  # of the loss
    levels: tuple[int, ...] = ()  # drawn equally often; the task's own if empty


@dataclass(frozen=True)
class Stage:
    first_step: int
    recipes: dict[str, Recipe]
    drills: dict[str, int]  # rows of drills per rank and step, by kind
    parallel: Mapping[str, Recipe] = field(default_factory=dict)  # the same tasks with parallel cuts


@dataclass(frozen=True)
class Curriculum:
    """The stages of a run, its length, and how large its learning rates are beside the usual ones."""

    stages: tuple[Stage, ...]
    steps: int
    rate: float = 1.0

    def at(self, step: int) -> Stage:
        return [stage for stage in self.stages if stage.first_step <= step][-1]


ANNOUNCES = {"arithmetic": " =", "countdown": " =", "code": "  #"}
"""The token that announces a computed result."""

SUDOKU = Recipe(3, 2, suffix=0.15, tail=8)
SEARCH = Recipe(
    40,
    7,
    full=0.12,
    suffix=0.25,
    result_cut=0.1,
    choices=0.4,
    tail=4,
    weight=2.0,
    levels=(0, 0, 0, 1, 1, 1, 1, 2, 3),  # some with larger numbers, against memorising
)

FIRST = (
    Stage(
        0,
        {
            "arithmetic": Recipe(5, 3, result_cut=0.6, results=0.3),
            "sudoku": replace(SUDOKU, batch=5),
            "countdown": Recipe(
                26, 5, full=0.15, suffix=0.3, result_cut=0.2, results=0.1, choices=0.3, tail=6, levels=SEARCH.levels
            ),
            "code": Recipe(5, 3, result_cut=0.6, name_cut=0.1, results=0.3),
        },
        {"arithmetic": 6, "code": 7, "countdown": 3, "inverse": 6, "names": 2},
    ),
    Stage(
        704,
        {
            "arithmetic": Recipe(4, 3, result_cut=0.6, results=0.2),
            "sudoku": SUDOKU,
            "countdown": replace(SEARCH, batch=44),
            "code": Recipe(7, 5, result_cut=0.6, name_cut=0.1, results=0.25, weight=1.5),
        },
        {"arithmetic": 3, "code": 6, "countdown": 2, "inverse": 4, "names": 3},
    ),
    Stage(
        1600,
        {
            "arithmetic": Recipe(8, 5, result_cut=0.6, results=0.2),
            "sudoku": SUDOKU,
            "countdown": SEARCH,
            "code": Recipe(8, 5, result_cut=0.6, name_cut=0.1, results=0.2, weight=1.5),
        },
        {"arithmetic": 2, "code": 4, "countdown": 1, "inverse": 2, "names": 2},
    ),
    Stage(
        1800,
        {
            "arithmetic": Recipe(10, 6, suffix=0.6, result_cut=0.2, step_cut=0.4, results=0.1),
            "sudoku": SUDOKU,
            "countdown": SEARCH,
            "code": Recipe(8, 5, result_cut=0.5, name_cut=0.1, results=0.2, weight=1.5),
        },
        {"code": 3, "countdown": 1, "inverse": 2, "names": 2},
    ),
    Stage(
        2400,
        {
            "arithmetic": Recipe(8, 5, suffix=0.6, result_cut=0.2, step_cut=0.4, results=0.1),
            "sudoku": replace(SUDOKU, batch=4),
            "countdown": replace(SEARCH, batch=48, full_batch=8, levels=(0, 0, 1, 1, 1)),
            "code": Recipe(9, 6, result_cut=0.5, name_cut=0.1, results=0.2, weight=1.5),
        },
        {"code": 3, "countdown": 1, "inverse": 2, "names": 2},
    ),
)


OLD = {
    "arithmetic": Recipe(2, 1, suffix=0.6, result_cut=0.2, step_cut=0.4, results=0.1, infill=0.1, reworded=0.3),
    "sudoku": replace(SUDOKU, batch=2, full_batch=1, infill=0.1, reworded=0.3),
    "countdown": replace(SEARCH, batch=9, full_batch=3, infill=0.08, reworded=0.3, levels=(0, 0, 1, 1, 1)),
    "code": Recipe(2, 1, result_cut=0.4, name_cut=0.1, step_cut=0.1, results=0.1, infill=0.1, reworded=0.3, weight=1.5),
}
TRACES = Recipe(
    1,
    1,
    full=0.1,
    suffix=0.6,
    result_cut=0.35,
    step_cut=0.35,
    infill=0.12,
    horizon=24,
    tail=48,
    reworded=0.3,
    weight=1.5,
    levels=(185, 185, 250),
)
PARALLEL = Recipe(5, 5, reworded=0.3, weight=2.0, levels=TRACES.levels)
PROGRAMS = Recipe(4, 4, reworded=0.3, weight=1.5, levels=(4, 5, 6, 6, 7, 7, 8, 8))
STATEMENTS = {"code": 2, "countdown": 1, "traces": 24}
LONG = (185, 250, 335, 335, 420, 420)
CANVAS = replace(
    TRACES, batch=5, full_batch=3, full=0.3, suffix=0.85, result_cut=0.3, step_cut=0.3, islands=0.5, levels=LONG
)

CONTINUED = (
    Stage(0, {**OLD, "traces": TRACES}, STATEMENTS, {"traces": PARALLEL, "code": PROGRAMS}),
    Stage(
        240,
        {**OLD, "traces": replace(TRACES, full=0.15)},
        STATEMENTS,
        {"traces": replace(PARALLEL, levels=()), "code": PROGRAMS},
    ),
    Stage(
        480,
        {**OLD, "traces": replace(TRACES, full=0.25, levels=LONG)},
        STATEMENTS,
        {"traces": replace(PARALLEL, levels=LONG), "code": PROGRAMS},
    ),
    Stage(
        3200,
        {task: replace(recipe, islands=0.3) for task, recipe in OLD.items()} | {"traces": CANVAS},
        {**STATEMENTS, "traces": 8},
        {"traces": replace(PARALLEL, batch=4, levels=LONG, islands=0.4), "code": replace(PROGRAMS, islands=0.4)},
    ),
)

DECODED = (
    Stage(
        0,
        {task: replace(recipe, islands=0.3, stale=0.4) for task, recipe in OLD.items()}
        | {"traces": replace(CANVAS, batch=4, full_batch=2, stale=0.7, blocks=0.7)},
        {**STATEMENTS, "traces": 8},
        {
            "traces": replace(PARALLEL, batch=7, levels=LONG, islands=0.4, blocks=0.75),
            "code": replace(PROGRAMS, batch=3, islands=0.4, blocks=0.4),
        },
    ),
)

CURRICULA = {
    "first": Curriculum(FIRST, steps=3400),
    "traces": Curriculum(CONTINUED, steps=10144, rate=0.6),
    "decoded": Curriculum(DECODED, steps=6000, rate=0.4),
}

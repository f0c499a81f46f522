"""In-filling: lines of a program or a trace, or sentences of a story, are missing in an answer that is given.

What follows the hole is given too, so a right filling must lead there.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from lsp.tiny.tasks.problem import PIECES, Problem

PREFIX, ALL = "infill-", "infill"

LINE_ENDS = {"arithmetic": r"\.", "sudoku": r"\n", "countdown": ",", "code": r"\n *", "traces": r"\n"}
"""What stands between two lines or sentences of an answer, by task."""


@dataclass(frozen=True)
class Hole:
    """A problem whose answer is given but for `missing`, which stands between `before` and `after`.

    Examples
    --------
    >>> Hole(Problem("arithmetic", 3, "Tom has 5 coins.", "", ""), "", "Buying 2 gives 7 coins", ".").prompt
    'Tom has 5 coins.<mask:5>.'
    """

    problem: Problem
    before: str
    missing: str
    after: str

    @property
    def prompt(self) -> str:
        """The problem and its answer, with as many masks as the missing tokens."""
        masks = len(re.findall(PIECES, self.missing))
        return f"{self.problem.prompt}{self.before}<mask:{masks}>{self.after}"

    def answer(self, text: str) -> str:
        """The whole answer, given what was generated: all from the first mask on."""
        return self.before + text


def with_hole(problem: Problem, seed: int) -> Hole:
    """Hides one line or sentence of the answer, or neighbours, up to half of them; the last end of a line is shown.

    Which ones depends on the problem and the seed.
    """
    ends = re.compile(LINE_ENDS[problem.task])
    borders = [0, *(place for match in ends.finditer(problem.answer) for place in match.span()), len(problem.answer)]
    lines = [(begin, end) for begin, end in zip(borders[::2], borders[1::2], strict=True) if begin < end]
    rng = random.Random(f"{seed} {problem.prompt}")
    count = rng.randint(1, max(1, len(lines) // 2))
    first = rng.randint(0, len(lines) - count)
    begin, end = lines[first][0], lines[first + count - 1][1]
    return Hole(problem, problem.answer[:begin], problem.answer[begin:end], problem.answer[end:])

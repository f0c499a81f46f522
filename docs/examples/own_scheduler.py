"""A scheduler of your own: a function that chooses, or a class that also describes itself."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import lsp


def outside_in(step):
    """The first and the last mask."""
    ends = [np.unique(canvas.masks[[0, -1]]) for canvas in step.canvases]
    return [(where, stats.tokens) for where, stats in zip(ends, step.stats(ends), strict=True)]


@dataclass(frozen=True)
class LeftmostSure(lsp.Scheduler):
    """The first k masks that reach a confidence, or the first mask if none does."""

    key: ClassVar[str] = "leftmost"
    p: float = 0.8
    k: int = 4

    def __call__(self, step):
        masks = [canvas.masks for canvas in step.canvases]
        out = []
        for where, stats in zip(masks, step.stats(masks), strict=True):
            sure = np.flatnonzero(stats.confidence >= self.p)[: self.k]
            chosen = sure if len(sure) else np.array([0])
            out.append((where[chosen], stats.tokens[chosen]))
        return out

    @property
    def options(self):
        return lsp.Options(lookahead=32)

    @property
    def notes(self):
        return [f"p = {self.p}", f"k = {self.k}"]

    def reason(self, seen):
        return f"{len(seen.chosen)} of the masks with a confidence of at least {self.p} are taken from the left."


model, prompt = lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n"
for scheduler in (outside_in, LeftmostSure(), "leftmost", lsp.LongestStablePrefix()):
    (trace,) = lsp.trace(model, prompt, max_new_tokens=32, scheduler=scheduler)
    print(
        f"{trace.name}: {trace.text!r} in {trace.passes} passes, {trace.positions} positions. {trace.steps[0].reason}"
    )

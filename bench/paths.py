"""Which positions a scheduler commits in which pass: recorded where a trained model decodes, replayed on another model.

A model with random weights is sure of nothing, so its schedulers would commit other numbers of tokens than they do in
practice. A replay runs the scheduler for its cost and then commits what was recorded: same passes, same lengths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bench.rival_loops import Choose
from lsp.decoding import Chosen, Step

Passes = list[tuple[np.ndarray, np.ndarray]]
"""Of one sequence, pass by pass: the positions, counted from the end of the prompt, and which tokens are stops."""

WORD, STOP = 2, 1
"""What a replay writes."""


class Recorded:
    """A scheduler whose choices are kept, by the number of the sequence."""

    def __init__(self, scheduler: Callable[[Step], list[Chosen]]) -> None:
        self.scheduler = scheduler
        self.paths: dict[int, Passes] = defaultdict(list)

    def __call__(self, step: Step) -> list[Chosen]:
        chosen = self.scheduler(step)
        for number, canvas, (where, what) in zip(step.numbers, step.canvases, chosen, strict=True):
            self.paths[number].append((where - canvas.prompt_length, np.isin(what, list(step.stops))))
        return chosen


class Replayed:
    """A scheduler that works as ever, but commits what was recorded."""

    def __init__(self, scheduler: Callable[[Step], list[Chosen]], paths: Mapping[int, Passes]) -> None:
        self.scheduler, self.left = scheduler, {number: iter(passes) for number, passes in paths.items()}

    def __call__(self, step: Step) -> list[Chosen]:
        self.scheduler(step)
        out = []
        for number, canvas in zip(step.numbers, step.canvases, strict=True):
            where, stops = next(self.left[number])
            out.append((where + canvas.prompt_length, np.where(stops, STOP, WORD)))
        return out


def dictated(choose: Choose, paths: Sequence[Passes], new: int) -> Choose:
    """The same for a rival's loop, whose sequences wait for each other at the end of a block."""
    left = [iter(passes) for passes in paths]

    def run(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        tokens, _ = choose(logits, masks)
        chosen = torch.zeros_like(masks)
        for row, passes in enumerate(left):
            if masks[row].any():
                where, _ = next(passes)
                chosen[row, torch.from_numpy(where) + masks.size(1) - new] = True
        return torch.full_like(tokens, WORD), chosen

    return run

"""Schedulers that bound what is accepted together: its joint probability from below, or its entropy from above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lsp.decoding.checks import check_fields
from lsp.decoding.scheduler import Chosen, Scheduler
from lsp.decoding.step import Step
from lsp.schedulers.scattered import Confident

if TYPE_CHECKING:
    from lsp.tracing.records import PassRecord


@dataclass(frozen=True)
class Frechet(Confident):
    """The n most confident, while their joint probability exceeds the risk of the n-th by delta (Fast-dLLM++).

    Whatever depends on what, n tokens with the probabilities c₁ ≥ … ≥ cₙ are right together with a probability of at
    least c₁ + … + cₙ - (n - 1), the lower bound of Fréchet. That bound, or 0, minus 1 - cₙ must exceed `delta`. At
    least one mask is taken.
    """

    key: ClassVar[str] = "frechet"
    delta: float = 0.25

    def __post_init__(self) -> None:
        check_fields(self)
        if not -1 <= self.delta < 1:
            raise ValueError(f"Invalid delta: expected -1 <= delta < 1, got {self.delta!r}")

    def count(self, confidence: np.ndarray) -> int:
        # In terms of the risks 1 - c, of which small ones do not round: 1 - (their sum) is the bound.
        risks = 1 - confidence
        enough = np.maximum(0, 1 - np.cumsum(risks)) - risks > self.delta
        return max(1, int(enough.sum()))  # falls with n: the largest n is the number of those

    @property
    def name(self) -> str:
        return "Fréchet bound"

    def reason(self, seen: PassRecord) -> str:
        if len(seen.chosen) == 1:
            return "The best mask is taken."
        return (
            f"The best {len(seen.chosen)} masks are taken: they are right together with a probability that exceeds the "
            f"risk of the last one by more than {self.delta:g}."
        )


@dataclass(frozen=True)
class EntropyBound(Scheduler):
    """The masks of the lowest entropies, as long as their sum without the largest is at most gamma (EB-Sampler)."""

    key: ClassVar[str] = "entropy"
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.gamma >= 0:
            raise ValueError(f"Invalid gamma: expected gamma >= 0, got {self.gamma!r}")

    def __call__(self, step: Step) -> list[Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        out = []
        for where, stats in zip(masks, step.stats(masks, entropy=True), strict=True):
            assert stats.entropy is not None
            ranked = np.argsort(stats.entropy, kind="stable")  # the surest first, ties to the left
            taken = np.sort(ranked[: self.count(stats.entropy[ranked])])
            out.append((where[taken], stats.tokens[taken]))
        return out

    def count(self, entropy: np.ndarray) -> int:
        """How many of these entropies, sorted from low to high, to accept."""
        before = np.cumsum(entropy, dtype=np.float64) - entropy  # the n-th is the largest of the first n
        return max(1, int((before <= self.gamma).sum()))

    @property
    def name(self) -> str:
        return "Entropy bound"

    @property
    def notes(self) -> list[str]:
        return [f"gamma = {self.gamma:g}"]

    def reason(self, seen: PassRecord) -> str:
        if len(seen.chosen) == 1:
            return "The mask with the lowest entropy is taken."
        return (
            f"The {len(seen.chosen)} masks with the lowest entropies are taken: without the largest, their sum is at "
            f"most {self.gamma:g}."
        )

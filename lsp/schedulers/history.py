"""Schedulers that accept what does not change any more from pass to pass. The passes are those of the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lsp.decoding.checks import check_fields
from lsp.decoding.history import lasting
from lsp.decoding.scheduler import Chosen, Scheduler
from lsp.decoding.step import Stats, Step
from lsp_kernels.errors import as_integer

if TYPE_CHECKING:
    from lsp.tracing.records import PassRecord

LARGEST_VOCABULARY = 16384  # of Klass: 64 KiB for every mask


class Unchanging(Scheduler):
    """Every confident mask that has not changed for some passes; the best one if there is none."""

    p: float
    passes: int

    def check_confidence(self) -> None:
        check_fields(self)
        if not 0 < self.p <= 1:
            raise ValueError(f"Invalid p: expected 0 < p <= 1, got {self.p!r}")
        as_integer("passes", self.passes, 1)

    def choose(self, where: np.ndarray, stats: Stats, unchanged: np.ndarray) -> Chosen:
        taken = unchanged & (stats.confidence >= self.p)
        taken[int(np.argmax(stats.log_odds))] |= not taken.any()
        return where[taken], stats.tokens[taken]

    @property
    def level(self) -> float:
        return self.p

    def reason(self, seen: PassRecord) -> str:
        by_position = dict(zip(seen.masks_in_pass, seen.confidence, strict=True))
        best = max(by_position[position] or 0.0 for position in seen.masks)
        chosen = [by_position[position] or 0.0 for position in seen.chosen]
        if len(chosen) == 1 and chosen[0] == best:
            return "The best mask is taken: no other one is confident and unchanged."
        return f"The masks with a confidence of at least {self.p:g} {self.unchanged} are taken."

    unchanged: ClassVar[str] = "that have not changed"


@dataclass(frozen=True)
class Less(Unchanging):
    """Every mask with a confidence of at least p and the same best token for some passes; else the best one.

    LESS without its condition on the divergence of the distributions.

    Parameters
    ----------
    p : float
        The confidence that is asked for.
    passes : int
        In how many passes, this one included, the token must have been the best one.
    """

    key: ClassVar[str] = "less"
    p: float = 0.75
    passes: int = 2
    unchanged: ClassVar[str] = "and the same token as before"

    def __post_init__(self) -> None:
        self.check_confidence()

    def __call__(self, step: Step) -> list[Chosen]:
        before = self.passes - 1
        earlier = step.earlier(before)
        masks = [canvas.masks for canvas in step.canvases]
        found = zip(masks, step.stats(masks), earlier, strict=True)
        return [self.choose(where, stats, lasting(past, before, where, stats.tokens)) for where, stats, past in found]

    @property
    def name(self) -> str:
        return "LESS"

    @property
    def notes(self) -> list[str]:
        return [f"p = {self.p:g}", f"{self.passes} passes"]


@dataclass(frozen=True)
class Klass(Unchanging):
    """Every mask with a confidence of at least p whose distribution has hardly moved for some passes; else the best.

    Keeps the whole distribution of every mask, so it is for vocabularies of up to 16384 ids.

    Parameters
    ----------
    p : float
        The confidence that is asked for.
    kl : float
        The divergence of a distribution from the one of the pass before must be less than this.
    passes : int
        In how many passes, this one included, it must have been.
    """

    key: ClassVar[str] = "klass"
    p: float = 0.9
    kl: float = 0.01
    passes: int = 2
    unchanged: ClassVar[str] = "whose distribution has hardly moved"

    def __post_init__(self) -> None:
        self.check_confidence()
        if not self.kl > 0:
            raise ValueError(f"Invalid kl: expected kl > 0, got {self.kl!r}")

    def check_vocabulary(self, size: int) -> None:
        if size > LARGEST_VOCABULARY:
            most = f"a vocabulary of at most {LARGEST_VOCABULARY} ids with Klass, which keeps whole distributions"
            raise ValueError(f"Invalid scheduler: expected {most}, got {size} ids")

    def __call__(self, step: Step) -> list[Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        found = zip(masks, step.stats(masks), step.drifts(self.passes), strict=True)
        return [self.choose(where, stats, self._still(drifts, where)) for where, stats, drifts in found]

    def _still(self, drifts: list[np.ndarray], where: np.ndarray) -> np.ndarray:
        """Whether the distribution at each position has hardly moved in all of the passes."""
        if len(drifts) < self.passes:
            return np.zeros(len(where), dtype=bool)
        largest: np.ndarray = np.max([drift[where] for drift in drifts], axis=0)
        return largest < self.kl

    @property
    def name(self) -> str:
        return "KLASS"

    @property
    def notes(self) -> list[str]:
        return [f"p = {self.p:g}", f"KL under {self.kl:g}", f"{self.passes} passes"]

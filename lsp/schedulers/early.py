"""Schedulers that commit one token a step until they are sure of the whole text, and then everything at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from lsp.decoding.canvas import Canvas
from lsp.decoding.checks import check_fields, check_number
from lsp.decoding.options import Options
from lsp.decoding.scheduler import Chosen, Scheduler
from lsp.decoding.step import Stats, Step
from lsp_kernels.errors import as_integer

if TYPE_CHECKING:
    from lsp.tracing.records import PassRecord


class AllAtOnce(Scheduler):
    """The most confident mask, until the mean margin reaches `enough`; then everything, also past the block."""

    region: int | None = None

    def enough(self, done: float) -> float:
        """The mean margin that suffices when this share of the masks is committed."""
        raise NotImplementedError

    def check(self, options: Options) -> None:
        if options.lookahead is not None:
            kind, got = type(self).__name__, options.lookahead
            raise ValueError(f"Invalid lookahead: expected None with {kind}, which commits everything, got {got}")
        if options.cache == "dual":
            kind = type(self).__name__
            raise ValueError(f"Invalid cache: expected every mask in the pass with {kind}, got 'dual'")

    def __call__(self, step: Step) -> list[Chosen]:
        masks = [canvas.masks_in_pass for canvas in step.canvases]
        found = zip(step.canvases, masks, step.stats(masks), strict=True)
        return [self._choose(canvas, where, stats) for canvas, where, stats in found]

    def _choose(self, canvas: Canvas, where: np.ndarray, stats: Stats) -> Chosen:
        done = 1 - canvas.masks_left / canvas.masks_at_start
        looked_at = stats.margins[where >= canvas.end - self.region] if self.region else stats.margins
        if looked_at.size and looked_at.mean() >= self.enough(done):
            return where, stats.tokens
        here = np.isin(where, canvas.masks)
        best = int(np.argmax(np.where(here, stats.log_odds, -np.inf)))
        return where[best : best + 1], stats.tokens[best : best + 1]

    def reason(self, seen: PassRecord) -> str:
        if len(seen.chosen) == len(seen.masks_in_pass) > 1:
            return "The mean margin reaches the threshold, so everything is committed at once."
        return "The mean margin is under the threshold, so the mask with the highest confidence is taken."


@dataclass(frozen=True)
class Prophet(AllAtOnce):
    """One token a step until the mean margin is large enough, then everything at once, also past the block.

    Parameters
    ----------
    thresholds : three floats
        The mean margin that suffices in the first, second and last third of the steps.
    region : int, optional
        How many of the last positions are looked at, where the answer is expected; by default all masks.
    """

    key: ClassVar[str] = "prophet"
    thresholds: tuple[float, float, float] = (7.5, 5.0, 2.5)
    region: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.thresholds, tuple | list) or len(self.thresholds) != 3:
            raise ValueError(f"Invalid thresholds: expected three numbers >= 0, got {self.thresholds!r}")
        for threshold in self.thresholds:
            check_number("thresholds", threshold)
        if not all(threshold >= 0 for threshold in self.thresholds):
            raise ValueError(f"Invalid thresholds: expected three numbers >= 0, got {self.thresholds!r}")
        if self.region is not None:
            as_integer("region", self.region, 1)

    def enough(self, done: float) -> float:
        return self.thresholds[min(2, int(3 * done))]

    @property
    def notes(self) -> list[str]:
        region = [] if self.region is None else [f"region = {self.region}"]
        return [f"thresholds = {', '.join(f'{t:g}' for t in self.thresholds)}", *region]


@dataclass(frozen=True)
class SchED(AllAtOnce):
    """As Prophet, with a threshold that falls smoothly from high to low as the masks are filled.

    Parameters
    ----------
    high, low : float
        The mean margin that suffices at the beginning and at the end.
    shape : {"exponential", "linear", "cosine"}
        How the threshold falls; exponential with e^(-k x) at the share x of committed masks, so that it ends a little
        above `low`.
    k : float
        How fast it falls, for the exponential shape.

    Examples
    --------
    >>> SchED(7.5, 2.5, "linear").enough(0.5)
    5.0
    """

    key: ClassVar[str] = "sched"
    high: float = 7.5
    low: float = 2.5
    shape: Literal["exponential", "linear", "cosine"] = "exponential"
    k: float = 2.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.low <= self.high < math.inf:
            raise ValueError(f"Invalid low: expected 0 <= low <= high, got {self.low!r} and {self.high!r}")
        if self.shape not in ("exponential", "linear", "cosine"):
            raise ValueError(f"Invalid shape: expected 'exponential', 'linear' or 'cosine', got {self.shape!r}")
        if not 0 < self.k < math.inf:
            raise ValueError(f"Invalid k: expected a finite number above 0, got {self.k!r}")

    def enough(self, done: float) -> float:
        if self.shape == "linear":
            share = 1 - done
        else:
            share = math.exp(-self.k * done) if self.shape == "exponential" else (1 + math.cos(math.pi * done)) / 2
        return self.low + (self.high - self.low) * share

    @property
    def notes(self) -> list[str]:
        shape = f"{self.shape}, k = {self.k:g}" if self.shape == "exponential" else self.shape
        return [f"thresholds from {self.high:g} to {self.low:g}", shape]

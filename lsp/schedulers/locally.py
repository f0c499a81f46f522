"""Schedulers that look at the neighbourhood of a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lsp.decoding.checks import check_fields
from lsp.decoding.scheduler import Chosen, Scheduler
from lsp.decoding.step import Step
from lsp_kernels.errors import as_integer

if TYPE_CHECKING:
    from lsp.tracing.records import PassRecord


@dataclass(frozen=True)
class LocalLeap(Scheduler):
    """Masks with a confidence of at least p are anchors; near one, near_p suffices. Without an anchor the best one.

    Parameters
    ----------
    p : float
        The confidence of an anchor.
    near_p : float
        The confidence that suffices in the neighbourhood of an anchor.
    radius : int
        How many positions to each side the neighbourhood has.
    """

    key: ClassVar[str] = "leap"
    p: float = 0.9
    near_p: float = 0.75
    radius: int = 4

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.p <= 1:
            raise ValueError(f"Invalid p: expected 0 < p <= 1, got {self.p!r}")
        if not 0 < self.near_p <= self.p:
            raise ValueError(f"Invalid near_p: expected 0 < near_p <= p = {self.p!r}, got {self.near_p!r}")
        as_integer("radius", self.radius, 0)

    def __call__(self, step: Step) -> list[Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        out = []
        for where, stats in zip(masks, step.stats(masks), strict=True):
            confidence = stats.confidence
            anchors = where[confidence >= self.p]
            taken = (confidence >= self.near_p) & self._near(where, anchors)
            taken[int(np.argmax(stats.log_odds))] |= not anchors.size
            out.append((where[taken], stats.tokens[taken]))
        return out

    def _near(self, where: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Whether each position is an anchor or in the neighbourhood of one."""
        near: np.ndarray = (np.abs(where[:, None] - anchors) <= self.radius).any(axis=1)
        return near

    @property
    def name(self) -> str:
        return "LocalLeap"

    @property
    def level(self) -> float:
        return self.p

    @property
    def notes(self) -> list[str]:
        return [f"p = {self.p:g}", f"near_p = {self.near_p:g}", f"radius = {self.radius}"]

    def reason(self, seen: PassRecord) -> str:
        anchors = sum((confidence or 0.0) >= self.p for confidence in seen.confidence[: len(seen.masks)])
        if not anchors:
            return f"No confidence reaches {self.p:g}, so the best mask is taken."
        near = len(seen.chosen) - anchors
        return (
            f"The masks with a confidence of at least {self.p:g} are taken, and {near or 'no'} more within "
            f"{self.radius} positions with at least {self.near_p:g}."
        )

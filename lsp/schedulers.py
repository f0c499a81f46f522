"""Which masks to commit in a step: the longest stable prefix, and every rival that it is compared with.

A scheduler is called once a step with the `Scores` of the pass and returns, for every sequence that is not finished,
positions and the tokens to write there, at least one. It keeps nothing between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from lsp.canvas import Canvas
from lsp.decode import Chosen, Scheduler
from lsp.scoring import Prefix, Scores, Stats
from lsp_kernels import PrefixRule, select_prefix
from lsp_kernels.errors import as_integer


@dataclass(frozen=True)
class LongestStablePrefix:
    """The paper's scheduler: the rule's prefix of the masks, committed at once.

    Parameters
    ----------
    rule : PrefixRule
        By default `PrefixRule.guarded`.
    islands : float, optional
        *Stable islands*, for answers that are not written from left to right: when the first margin is under the floor,
        every mask whose margin reaches `islands` is committed instead of the forced first one. A stop that reaches it
        is committed at any time and drops the tail. Needs a floor, and beta = 1, so that all masks are scored.
    stuck : {"first", "best"}
        What is committed when the first margin is under the floor and there is no island: the first mask, or the one of
        the largest margin.
    """

    rule: PrefixRule = field(default_factory=PrefixRule.guarded)
    islands: float | None = None
    stuck: Literal["first", "best"] = "first"

    @classmethod
    def guarded(cls) -> LongestStablePrefix:
        """The longest stable prefix with islands, as tuned (docs/results.md): the default of `lsp.generate`."""
        return cls(PrefixRule.guarded(), islands=4.0)

    @classmethod
    def paper(cls) -> LongestStablePrefix:
        """The longest stable prefix as the paper has it, without a floor."""
        return cls(PrefixRule())

    def __post_init__(self) -> None:
        if self.stuck not in ("first", "best"):
            raise ValueError(f"Invalid stuck: expected 'first' or 'best', got {self.stuck!r}")
        if self.islands is None:
            if self.stuck == "best":
                raise ValueError("Invalid stuck: 'best' expects islands, got None")
            return
        if not self.islands >= 0:
            raise ValueError(f"Invalid islands: expected a margin of at least 0, got {self.islands!r}")
        if self.rule.floor is None or self.rule.beta != 1:
            raise ValueError(f"Invalid islands: expected a rule with a floor and beta = 1, got {self.rule}")

    def __call__(self, scores: Scores) -> list[Chosen]:
        found = zip(scores.canvases, scores.commit(self.rule), strict=True)
        return [self._choose(canvas.masks, prefix, scores.stops) for canvas, prefix in found]

    def _choose(self, masks: np.ndarray, prefix: Prefix, stops: frozenset[int]) -> Chosen:
        chosen = np.arange(len(prefix.margins)) < prefix.length
        if self.islands is not None and len(prefix.margins):
            sure = prefix.margins >= self.islands
            if prefix.margins[0] < self.rule.floor:
                if sure.any():
                    chosen = sure
                elif self.stuck == "best":
                    chosen = np.arange(len(sure)) == int(np.argmax(prefix.margins))
            chosen = chosen | (sure & np.isin(prefix.tokens, list(stops)))
        return masks[: len(chosen)][chosen], prefix.tokens[chosen]


@dataclass(frozen=True)
class FixedPrefix:
    """The first k masks, whatever their margins."""

    k: int = 1

    def __post_init__(self) -> None:
        as_integer("k", self.k, 1)

    def __call__(self, scores: Scores) -> list[Chosen]:
        first = [canvas.masks[: self.k] for canvas in scores.canvases]
        return [(where, stats.tokens) for where, stats in zip(first, scores.stats(first), strict=True)]


class Confident:
    """Schedulers that rank the masks by confidence and accept some of them, wherever they stand."""

    def __call__(self, scores: Scores) -> list[Chosen]:
        masks = [canvas.masks for canvas in scores.canvases]
        out = []
        for where, stats in zip(masks, scores.stats(masks), strict=True):
            ranked = np.argsort(-stats.log_odds, kind="stable")  # the most confident first, ties to the left
            taken = np.sort(ranked[: self.count(stats.confidence[ranked])])
            out.append((where[taken], stats.tokens[taken]))
        return out

    def count(self, confidence: np.ndarray) -> int:
        """How many to accept of these, which fall."""
        raise NotImplementedError


@dataclass(frozen=True)
class TopK(Confident):
    """The k most confident masks."""

    k: int = 1

    def __post_init__(self) -> None:
        as_integer("k", self.k, 1)

    def count(self, confidence: np.ndarray) -> int:
        return self.k


@dataclass(frozen=True)
class Full(Confident):
    """The one most confident mask: as many passes as tokens."""

    def count(self, confidence: np.ndarray) -> int:
        return 1


@dataclass(frozen=True)
class Threshold(Confident):
    """Every mask whose confidence reaches p, and always the best one (Fast-dLLM)."""

    p: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"Invalid p: expected 0 < p <= 1, got {self.p!r}")

    def count(self, confidence: np.ndarray) -> int:
        return max(1, int((confidence >= self.p).sum()))


@dataclass(frozen=True)
class Factor(Confident):
    """The n most confident, as long as the n-th has a confidence of at least 1 - f / (n + 1) (Fast-dLLM)."""

    f: float = 1.0

    def __post_init__(self) -> None:
        if not self.f > 0:
            raise ValueError(f"Invalid f: expected f > 0, got {self.f!r}")

    def count(self, confidence: np.ndarray) -> int:
        enough = confidence >= 1 - self.f / (np.arange(len(confidence)) + 2)
        return max(1, int(np.cumprod(enough).sum()))


@dataclass(frozen=True)
class ScatteredMargin:
    """The paper's ablation: as many masks as the candidate prefix is long, those of the largest margins anywhere."""

    rule: PrefixRule = field(default_factory=PrefixRule)

    def __call__(self, scores: Scores) -> list[Chosen]:
        masks = [canvas.masks for canvas in scores.canvases]
        candidate = replace(self.rule, snap=False, min_length=1)
        out = []
        for where, stats in zip(masks, scores.stats(masks), strict=True):
            margins, tokens = torch.from_numpy(stats.margins), torch.from_numpy(stats.tokens)
            length = int(select_prefix(margins, tokens, rule=candidate)[0])
            taken = np.sort(np.argsort(-stats.margins, kind="stable")[:length])
            out.append((where[taken], stats.tokens[taken]))
        return out


@dataclass(frozen=True)
class Prophet:
    """One token a step until the mean margin is large enough, then everything at once, also past the block.

    Parameters
    ----------
    thresholds : three floats
        The mean margin that suffices in the first, second and last third of the steps.
    region : int, optional
        How many of the last positions are looked at, where the answer is expected; by default all masks.
    """

    thresholds: tuple[float, float, float] = (7.5, 5.0, 2.5)
    region: int | None = None

    def __post_init__(self) -> None:
        if len(self.thresholds) != 3 or not all(t >= 0 for t in self.thresholds):
            raise ValueError(f"Invalid thresholds: expected three numbers >= 0, got {self.thresholds!r}")
        if self.region is not None:
            as_integer("region", self.region, 1)

    def __call__(self, scores: Scores) -> list[Chosen]:
        if any(canvas.options.lookahead is not None for canvas in scores.canvases):
            raise ValueError("Invalid lookahead: expected None with Prophet, which commits everything, got a number")
        masks = [canvas.masks_in_pass for canvas in scores.canvases]
        found = zip(scores.canvases, masks, scores.stats(masks), strict=True)
        return [self._choose(canvas, where, stats) for canvas, where, stats in found]

    def _choose(self, canvas: Canvas, where: np.ndarray, stats: Stats) -> Chosen:
        done = 1 - canvas.masks_left / canvas.masks_at_start
        looked_at = stats.margins[where >= canvas.end - self.region] if self.region else stats.margins
        if looked_at.size and looked_at.mean() >= self.thresholds[min(2, int(3 * done))]:
            return where, stats.tokens
        here = np.isin(where, canvas.masks)
        best = int(np.argmax(np.where(here, stats.log_odds, -np.inf)))
        return where[best : best + 1], stats.tokens[best : best + 1]


NAMES: dict[str, Callable[..., Scheduler]] = {
    "lsp": LongestStablePrefix.guarded,
    "paper": LongestStablePrefix.paper,
    "fixed": FixedPrefix,
    "full": Full,
    "topk": TopK,
    "threshold": Threshold,
    "factor": Factor,
    "scattered": ScatteredMargin,
    "prophet": Prophet,
}
"""The schedulers by the names that `generate` understands."""


def scheduler_of(given: Scheduler | str | None) -> Scheduler:
    """A scheduler from its name, or as it is; by default `LongestStablePrefix.guarded`."""
    if given is None:
        return LongestStablePrefix.guarded()
    if isinstance(given, str):
        if given not in NAMES:
            raise ValueError(f"Invalid scheduler: expected one of {', '.join(NAMES)}, got {given!r}")
        return NAMES[given]()
    if not callable(given) or isinstance(given, type):
        raise TypeError(f"Invalid scheduler: expected a scheduler or its name, got {given!r}")
    return given

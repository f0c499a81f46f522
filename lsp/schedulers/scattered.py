"""Schedulers that accept masks wherever they stand: by confidence, or by margin without a prefix."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from lsp.decoding.checks import check_fields
from lsp.decoding.scheduler import Chosen, Scheduler
from lsp.decoding.step import Step
from lsp_kernels import PrefixRule, select_prefix
from lsp_kernels.errors import as_integer

if TYPE_CHECKING:
    from lsp.tracing.records import PassRecord


class Confident(Scheduler):
    """Ranks the masks of each sequence by confidence and accepts the first `count` of them."""

    def __call__(self, step: Step) -> list[Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        out = []
        for where, stats in zip(masks, step.stats(masks), strict=True):
            ranked = np.argsort(-stats.log_odds, kind="stable")  # the most confident first, ties to the left
            taken = np.sort(ranked[: self.count(stats.confidence[ranked])])
            out.append((where[taken], stats.tokens[taken]))
        return out

    def count(self, confidence: np.ndarray) -> int:
        """How many of these confidences, sorted from high to low, to accept."""
        raise NotImplementedError

    @property
    def notes(self) -> list[str]:
        values: Any = self
        return [f"{f.name} = {getattr(self, f.name)}" for f in fields(values)]


@dataclass(frozen=True)
class Full(Confident):
    """The one most confident mask: as many passes as tokens."""

    key: ClassVar[str] = "full"

    def count(self, confidence: np.ndarray) -> int:
        return 1

    @property
    def name(self) -> str:
        return "Full: one token a pass"

    def reason(self, seen: PassRecord) -> str:
        return "The mask with the highest confidence is taken."


@dataclass(frozen=True)
class TopK(Confident):
    """The k most confident masks."""

    key: ClassVar[str] = "topk"
    k: int = 1

    def __post_init__(self) -> None:
        as_integer("k", self.k, 1)

    def count(self, confidence: np.ndarray) -> int:
        return self.k

    @property
    def name(self) -> str:
        return "Top k by confidence"

    def reason(self, seen: PassRecord) -> str:
        n = len(seen.chosen)
        return f"{n} masks are taken, those with the highest confidence." if n > 1 else "The best mask is taken."


@dataclass(frozen=True)
class Threshold(Confident):
    """Every mask whose confidence reaches p, and always the best one (Fast-dLLM)."""

    key: ClassVar[str] = "threshold"
    p: float = 0.9

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.p <= 1:
            raise ValueError(f"Invalid p: expected 0 < p <= 1, got {self.p!r}")

    def count(self, confidence: np.ndarray) -> int:
        return max(1, int((confidence >= self.p).sum()))

    @property
    def name(self) -> str:
        return "Confidence threshold"

    @property
    def level(self) -> float:
        return self.p

    def reason(self, seen: PassRecord) -> str:
        if max(confidence or 0.0 for confidence in seen.confidence[: len(seen.masks)]) < self.p:
            return f"No confidence reaches {self.p:g}, so the best mask is taken."
        return f"The masks with a confidence of at least {self.p:g} are taken."


@dataclass(frozen=True)
class Factor(Confident):
    """The n most confident, as long as the n-th has a confidence of at least 1 - f / (n + 1), and at least one.

    As Fast-dLLM's own code does, all masks are taken when only the last one misses its bound.
    """

    key: ClassVar[str] = "factor"
    f: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.f > 0:
            raise ValueError(f"Invalid f: expected f > 0, got {self.f!r}")

    def count(self, confidence: np.ndarray) -> int:
        enough = confidence >= 1 - self.f / (np.arange(len(confidence)) + 2)
        enough[0] = True
        n = int(np.cumprod(enough).sum())
        return len(confidence) if n >= len(confidence) - 1 else n

    @property
    def name(self) -> str:
        return "Confidence factor"

    def reason(self, seen: PassRecord) -> str:
        n = len(seen.chosen)
        if n == 1:
            return "The best mask is taken."
        if n == len(seen.masks):
            return "All masks are taken: none, or only the last, misses the confidence that is asked for its rank."
        return (
            f"The best {n} masks are taken: the last of them has a confidence of at least {1 - self.f / (n + 1):.3g}."
        )


@dataclass(frozen=True)
class ScatteredMargin(Scheduler):
    """The paper's ablation: as many masks as the candidate prefix is long, those with the largest margins anywhere."""

    key: ClassVar[str] = "scattered"
    measure: ClassVar[Literal["margin"]] = "margin"
    rule: PrefixRule = field(default_factory=PrefixRule)

    def __call__(self, step: Step) -> list[Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        candidate = replace(self.rule, snap=False, min_length=1)
        out = []
        for where, stats in zip(masks, step.stats(masks), strict=True):
            margins, tokens = torch.from_numpy(stats.margins), torch.from_numpy(stats.tokens)
            length = int(select_prefix(margins, tokens, rule=candidate)[0])
            taken = np.sort(np.argsort(-stats.margins, kind="stable")[:length])
            out.append((where[taken], stats.tokens[taken]))
        return out

    @property
    def name(self) -> str:
        return "Scattered by margin"

    def reason(self, seen: PassRecord) -> str:
        return "The masks with the largest margins are taken, as many as the candidate prefix is long."

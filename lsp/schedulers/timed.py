"""The orders of Dream: a share of the masks in each of so many passes, by confidence, margin, entropy or chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from lsp.decoding.checks import check_fields
from lsp.decoding.scheduler import Chosen, Scheduler
from lsp.decoding.step import Stats, Step
from lsp_kernels.errors import as_integer

if TYPE_CHECKING:
    from lsp.tracing.records import PassRecord

ALGS = ("origin", "maskgit_plus", "topk_margin", "entropy")


@dataclass(frozen=True)
class DreamOrder(Scheduler):
    """Dream's own orders: a share of the masks in each of `steps` passes, chosen as `alg` says.

    In pass i it commits the share 1 - t(i + 1) / t(i) of the masks, where t falls evenly from 1 to `eps`; all that are
    left in the last one. Dream's loop may commit none in a pass; here it is at least one.

    Parameters
    ----------
    alg : {"entropy", "maskgit_plus", "topk_margin", "origin"}
        What is committed first: the lowest entropy, the highest probability of the token, the largest difference of the
        two highest probabilities; or ``"origin"``, any mask with the probability of the share. All are those of the
        logits without noise, temperature and filters.
    steps : int
        Passes, at most.
    alg_temp : float
        Above 0, positions are drawn without replacement by softmax(values / alg_temp).
    eps : float
        Where the schedule ends.
    """

    key: ClassVar[str] = "dream"
    alg: Literal["entropy", "maskgit_plus", "topk_margin", "origin"] = "entropy"
    steps: int = 512
    alg_temp: float = 0.0
    eps: float = 1e-3

    def __post_init__(self) -> None:
        check_fields(self)
        if self.alg not in ALGS:
            raise ValueError(f"Invalid alg: expected one of {', '.join(ALGS)}, got {self.alg!r}")
        as_integer("steps", self.steps, 1)
        if not 0 <= self.alg_temp < float("inf"):
            raise ValueError(f"Invalid alg_temp: expected a finite number from 0, got {self.alg_temp!r}")
        if not 0 < self.eps < 1:
            raise ValueError(f"Invalid eps: expected a number between 0 and 1, got {self.eps!r}")

    def __call__(self, step: Step) -> list[Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        drawn = step.stats(masks, entropy=self.alg == "entropy")
        ranked_by = step.stats(masks, clean=True) if self.alg == "topk_margin" else drawn
        out = []
        for b, (canvas, where, stats) in enumerate(zip(step.canvases, masks, drawn, strict=True)):
            share, random = self.share(canvas.passes), step.random(b)
            chance = random.random(len(canvas.tokens))[where]  # of the position, whatever else is open
            taken = self._at_random(chance, share) if self.alg == "origin" else self._first(ranked_by[b], chance, share)
            out.append((where[taken], stats.tokens[taken]))
        return out

    def share(self, index: int) -> float:
        """The share of the masks that pass `index` commits."""
        if index >= self.steps - 1:
            return 1.0
        times = torch.linspace(1, self.eps, self.steps + 1)
        return float(1 - times[index + 1] / times[index])

    def values(self, stats: Stats) -> np.ndarray:
        """What masks are ordered by, the largest first."""
        if self.alg == "entropy":
            assert stats.entropy is not None
            return -stats.entropy
        if self.alg == "topk_margin":
            return stats.confidence * -np.expm1(-stats.margins.astype(np.float64))
        return stats.log_odds if self.alg_temp == 0 else stats.confidence  # the same order; log-odds tell more apart

    def _first(self, stats: Stats, chance: np.ndarray, share: float) -> np.ndarray:
        values = self.values(stats)
        count = max(1, int(np.float32(len(values)) * np.float32(share)))
        if self.alg_temp > 0:
            values = values / self.alg_temp - np.log(-np.log(np.clip(chance, 1e-300, None)))
        return np.sort(np.argsort(-values, kind="stable")[:count])

    @staticmethod
    def _at_random(chance: np.ndarray, share: float) -> np.ndarray:
        taken = np.flatnonzero(chance < share)
        return taken if len(taken) else np.array([int(np.argmin(chance))])

    @property
    def name(self) -> str:
        return "Dream's order"

    @property
    def notes(self) -> list[str]:
        drawn = [f"alg_temp = {self.alg_temp:g}"] if self.alg_temp else []
        return [f"alg = {self.alg}", f"steps = {self.steps}", *drawn]

    def reason(self, seen: PassRecord) -> str:
        first = {
            "origin": "any masks",
            "maskgit_plus": "those with the highest probability",
            "topk_margin": "those with the largest difference of the two highest probabilities",
            "entropy": "those with the lowest entropy",
        }[self.alg]
        return f"The schedule commits {len(seen.chosen)} of {len(seen.masks)} masks in this pass: {first}."

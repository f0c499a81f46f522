"""Schedulers that commit a prefix of the masks: the paper's, and a fixed length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from lsp.decoding.checks import check_fields
from lsp.decoding.history import lasting
from lsp.decoding.options import Options
from lsp.decoding.scheduler import Chosen, Scheduler
from lsp.decoding.step import Prefix, Step
from lsp.schedulers import sentences
from lsp_kernels import PrefixRule, select_prefix
from lsp_kernels.errors import as_integer, deprecated

if TYPE_CHECKING:
    from lsp.tracing.records import PassRecord

AUTO: Any = "auto"  # islands at the floor, if the rule allows islands


@dataclass(frozen=True)
class LongestStablePrefix(Scheduler):
    """The longest stable prefix of the masks, committed at once.

    Without arguments it is the default of `lsp.generate`: a floor under the margins, stable islands, and the loop
    options that were tuned with them (docs/results.md). `LongestStablePrefix.paper` is the paper's.

    Parameters
    ----------
    rule : PrefixRule
        By default `PrefixRule.guarded()`.
    islands : float, optional
        *Stable islands*, for answers that are not written from left to right: when the first margin is under the floor,
        every mask whose margin reaches `islands` is committed instead of the forced first one. A stop that reaches it
        is committed at any time and drops the tail. Needs a rule with a floor and beta = 1, so that all masks are
        scored; by default it is the floor where the rule has both, else None.
    stuck : {"first", "best"}
        What is committed when the first margin is under the floor and there is no island: the first mask, or the one
        with the largest margin.
    stable : int
        In how many passes, this one included, a token must have been the best one for its margin to count. With 1, the
        default, nothing is remembered. More needs a rule with a floor: without one a prefix is taken whatever its
        margins are.

    Examples
    --------
    >>> from lsp_kernels import PrefixRule
    >>> LongestStablePrefix().islands, LongestStablePrefix().options.lookahead
    (4.0, 64)
    >>> LongestStablePrefix(PrefixRule()) == LongestStablePrefix.paper()
    True
    """

    key: ClassVar[str] = "lsp"
    measure: ClassVar[Literal["margin"]] = "margin"
    rule: PrefixRule = field(default_factory=PrefixRule.guarded)
    islands: float | None = AUTO
    stuck: Literal["first", "best"] = "first"
    stable: int = 1

    @classmethod
    def guarded(cls) -> LongestStablePrefix:
        """The old name of ``LongestStablePrefix()``."""
        deprecated("LongestStablePrefix.guarded()", "LongestStablePrefix()")
        return cls()

    @classmethod
    def paper(cls) -> LongestStablePrefix:
        """The longest stable prefix as in the paper: no floor, no islands."""
        return cls(PrefixRule())

    def __post_init__(self) -> None:
        allowed = self.rule.floor is not None and self.rule.beta == 1
        if self.islands is AUTO:
            object.__setattr__(self, "islands", self.rule.floor if allowed else None)
        check_fields(self)
        if self.stuck not in ("first", "best"):
            raise ValueError(f"Invalid stuck: expected 'first' or 'best', got {self.stuck!r}")
        if as_integer("stable", self.stable, 1) > 1 and self.rule.floor is None:
            raise ValueError(f"Invalid stable: expected 1 or a rule with a floor, got {self.stable} and {self.rule}")
        if self.islands is None:
            if self.stuck == "best":
                raise ValueError("Invalid stuck: 'best' expects islands, got None")
            return
        if not self.islands >= 0:
            raise ValueError(f"Invalid islands: expected a margin of at least 0, got {self.islands!r}")
        if not allowed:
            raise ValueError(f"Invalid islands: expected a rule with a floor and beta = 1, got {self.rule}")

    def __call__(self, step: Step) -> list[Chosen]:
        if self.stable > 1:
            return self._lasting(step)
        found = zip(step.canvases, step.commit(self.rule), strict=True)
        return [self._choose(canvas.masks, prefix, prefix.margins, step.stops) for canvas, prefix in found]

    def _lasting(self, step: Step) -> list[Chosen]:
        """With a margin of -inf wherever the token has not been the best one for long enough."""
        before, flags = self.stable - 1, step.vocabulary.to("cpu")
        earlier = step.earlier(before)
        masks = [canvas.masks for canvas in step.canvases]
        out = []
        for where, stats, past in zip(masks, step.stats(masks), earlier, strict=True):
            counts = lasting(past, before, where, stats.tokens)
            margins = np.where(counts, stats.margins, np.float32(-np.inf))
            operands = torch.from_numpy(margins), torch.from_numpy(stats.tokens)
            length, _ = select_prefix(*operands, rule=self.rule, vocabulary=flags)
            prefix = Prefix(int(length), stats.tokens, margins)
            out.append(self._choose(where, prefix, stats.margins, step.stops))
        return out

    def _choose(self, masks: np.ndarray, prefix: Prefix, margins: np.ndarray, stops: frozenset[int]) -> Chosen:
        """From the margins that count, in `prefix`, and all of them, for the case that none of those suffices."""
        chosen = np.arange(len(prefix.margins)) < prefix.length
        if self.islands is not None and len(prefix.margins):
            sure = prefix.margins >= self.islands
            if prefix.margins[0] < self.rule.floor:
                if sure.any():
                    chosen = sure
                elif self.stuck == "best":
                    chosen = np.arange(len(sure)) == int(np.argmax(margins))
            chosen = chosen | (sure & np.isin(prefix.tokens, list(stops)))
        return masks[: len(chosen)][chosen], prefix.tokens[chosen]

    @property
    def name(self) -> str:
        return "Longest stable prefix"

    @property
    def options(self) -> Options:
        """With islands a lookahead of 64 and a refresh after islands, tuned together (docs/results.md); else none."""
        return Options() if self.islands is None else Options(lookahead=64, refresh_scattered=True)

    @property
    def level(self) -> float | None:
        return self.rule.floor

    @property
    def shown_rule(self) -> PrefixRule | None:
        """A record of a pass does not say which tokens are stable, so the steps of the rule are not those shown."""
        return self.rule if self.stable == 1 else None

    @property
    def notes(self) -> list[str]:
        rule = self.rule
        paper = f"no floor, α = {rule.alpha}, β = {rule.beta}"
        islands = [] if self.islands is None else [f"islands {self.islands:g}"]
        stable = [f"stable for {self.stable} passes"] if self.stable > 1 else []
        return [paper if rule.floor is None else f"floor {rule.floor:g}", *islands, *stable]

    def reason(self, seen: PassRecord) -> str:
        if self.stable > 1:
            return sentences.of_stable(seen, self.stable)
        return sentences.of_prefix(seen, self.rule, self.islands)


Scheduler.registered["paper"] = LongestStablePrefix.paper


@dataclass(frozen=True)
class FixedPrefix(Scheduler):
    """The first k masks, whatever their margins."""

    key: ClassVar[str] = "fixed"
    k: int = 1

    def __post_init__(self) -> None:
        as_integer("k", self.k, 1)

    def __call__(self, step: Step) -> list[Chosen]:
        first = [canvas.masks[: self.k] for canvas in step.canvases]
        return [(where, stats.tokens) for where, stats in zip(first, step.stats(first), strict=True)]

    @property
    def name(self) -> str:
        return "Fixed prefix"

    @property
    def notes(self) -> list[str]:
        return [f"k = {self.k}"]

    def reason(self, seen: PassRecord) -> str:
        return (
            f"The first {sentences.count(len(seen.chosen), 'mask')} {'is' if len(seen.chosen) == 1 else 'are'} taken."
        )

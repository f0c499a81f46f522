"""Schedulers that commit a prefix of the masks: the paper's, and a fixed length."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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

AUTO: Any = "auto"  # what goes with the rule
FADE = 0.1
"""How much a margin fades with every mask before it, unless it is given."""
MOST = 1e6
"""With more a margin far behind the first one would fade by what is no float32."""
ABOVE = 2.0
"""How far the level of islands lies above the floor, unless it is given."""


def preset_rule() -> PrefixRule:
    """The rule of the default scheduler: `PrefixRule.guarded` with a lower floor, because margins fade."""
    return replace(PrefixRule.guarded(), floor=3.0)


@dataclass(frozen=True)
class LongestStablePrefix(Scheduler):
    """The longest stable prefix of the masks, committed at once.

    Without arguments it is the default of `lsp.generate`: a floor under the margins, margins that fade, stable islands,
    and the loop options that were tuned with them (docs/results.md). `LongestStablePrefix.paper` is the paper's.

    Parameters
    ----------
    rule : PrefixRule
        By default `PrefixRule.guarded()` with a floor of 3.
    islands : float, optional
        *Stable islands*, for answers that are not written from left to right: when the first margin is under the floor,
        every mask whose margin reaches `islands` is committed instead of the forced first one. A stop that reaches it
        is committed at any time and drops the tail. Needs a rule with a floor and beta = 1, so that all masks are
        scored; by default it is the floor plus 2 where the rule has both, else None.
    stuck : {"first", "best"}
        What is committed when the first margin is under the floor and there is no island: the first mask, or the one
        with the largest margin, which needs the same rule as islands. By default ``"best"`` with islands, else
        ``"first"``.
    stable : int
        In how many passes, this one included, a token must have been the best one for its margin to count. With 1, the
        default, nothing is remembered. More needs a rule with a floor: without one a prefix is taken whatever its
        margins are.
    fade : float
        How much less a margin counts for every mask to the left of its own, for the floor, islands and ``"best"``
        alike. What a model predicts far behind the first mask depends on all that is still unknown before it, and can
        be wrong with a large margin. More than 0 needs a rule with a floor; by default 0.1 where it also has beta = 1,
        else 0.

    Examples
    --------
    >>> from lsp_kernels import PrefixRule
    >>> LongestStablePrefix()  # doctest: +NORMALIZE_WHITESPACE
    LongestStablePrefix(rule=PrefixRule(alpha=0.25, beta=1.0, min_length=1, window=16, floor=3.0, snap=False,
    no_delimiter='keep'), islands=5.0, stuck='best', stable=1, fade=0.1)
    >>> LongestStablePrefix(PrefixRule()) == LongestStablePrefix.paper()
    True
    """

    key: ClassVar[str] = "lsp"
    measure: ClassVar[Literal["margin"]] = "margin"
    rule: PrefixRule = field(default_factory=preset_rule)
    islands: float | None = AUTO
    stuck: Literal["first", "best"] = AUTO
    stable: int = 1
    fade: float = AUTO

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
        floor = self.rule.floor if self.rule.beta == 1 else None
        allowed = floor is not None
        if self.islands is AUTO:
            object.__setattr__(self, "islands", None if floor is None else floor + ABOVE)
        if self.stuck is AUTO:
            object.__setattr__(self, "stuck", "first" if self.islands is None else "best")
        if self.fade is AUTO:
            object.__setattr__(self, "fade", FADE if allowed else 0.0)
        check_fields(self)
        if self.stuck not in ("first", "best"):
            raise ValueError(f"Invalid stuck: expected 'first' or 'best', got {self.stuck!r}")
        if as_integer("stable", self.stable, 1) > 1 and self.rule.floor is None:
            raise ValueError(f"Invalid stable: expected 1 or a rule with a floor, got {self.stable} and {self.rule}")
        if not 0 <= self.fade <= MOST:
            raise ValueError(f"Invalid fade: expected a number from 0 to {MOST:g}, got {self.fade!r}")
        if self.fade and self.rule.floor is None:
            raise ValueError(f"Invalid fade: expected 0 or a rule with a floor, got {self.fade!r} and {self.rule}")
        if self.islands is not None and not self.islands >= 0:
            raise ValueError(f"Invalid islands: expected a margin of at least 0, got {self.islands!r}")
        for name, asked in (("islands", self.islands is not None), ("stuck", self.stuck == "best")):
            if asked and not allowed:
                raise ValueError(f"Invalid {name}: expected a rule with a floor and beta = 1, got {self.rule}")

    def __call__(self, step: Step) -> list[Chosen]:
        if self.stable > 1:
            return self._lasting(step)
        found = zip(step.canvases, step.commit(self.rule), strict=True)
        return [self._of_pass(canvas.masks, prefix, step) for canvas, prefix in found]

    def counted(self, margins: np.ndarray) -> np.ndarray:
        if not self.fade:
            return margins
        faded: np.ndarray = margins - np.float32(self.fade) * np.arange(len(margins), dtype=np.float32)
        return faded.clip(min=np.float32(0))

    def _of_pass(self, masks: np.ndarray, prefix: Prefix, step: Step) -> Chosen:
        """What this pass alone says."""
        margins = self.counted(prefix.margins)
        if self.fade:
            prefix = self._prefix(margins, prefix.tokens, len(masks), step)
        return self._choose(masks, prefix, margins, step.stops)

    def _lasting(self, step: Step) -> list[Chosen]:
        """With a margin of -inf wherever the token has not been the best one for long enough."""
        before = self.stable - 1
        earlier = step.earlier(before)
        masks = [canvas.masks for canvas in step.canvases]
        out = []
        for where, stats, past in zip(masks, step.stats(masks), earlier, strict=True):
            counts, margins = lasting(past, before, where, stats.tokens), self.counted(stats.margins)
            own = np.where(counts, margins, np.float32(-np.inf))
            prefix = self._prefix(own, stats.tokens, len(where), step)
            out.append(self._choose(where, prefix, margins, step.stops))
        return out

    def _prefix(self, margins: np.ndarray, tokens: np.ndarray, n: int, step: Step) -> Prefix:
        """The rule on the margins that count, of a sequence with `n` masks."""
        operands = torch.from_numpy(margins), torch.from_numpy(tokens)
        count, vocabulary = torch.tensor([n], dtype=torch.int32), step.vocabulary_on_host
        length, _ = select_prefix(*operands, None, count, rule=self.rule, vocabulary=vocabulary)
        return Prefix(int(length), tokens, margins)

    def _choose(self, masks: np.ndarray, prefix: Prefix, margins: np.ndarray, stops: frozenset[int]) -> Chosen:
        """From the margins that count, in `prefix`, and all of them, for the case that none of those suffices."""
        chosen = np.arange(len(prefix.margins)) < prefix.length
        sure = np.zeros_like(chosen) if self.islands is None else prefix.margins >= self.islands
        if len(chosen) and self.rule.floor is not None and prefix.margins[0] < self.rule.floor:
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
        """With islands a lookahead of 24 and a refresh after islands, tuned together (docs/results.md); else none."""
        return Options() if self.islands is None else Options(lookahead=24, refresh_scattered=True)

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
        fade = [f"fade {self.fade:g}"] if self.fade else []
        return [paper if rule.floor is None else f"floor {rule.floor:g}", *islands, *fade, *stable]

    def reason(self, seen: PassRecord) -> str:
        if self.stable > 1:
            return sentences.of_stable(seen, self.stable, self.islands, self.stuck)
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

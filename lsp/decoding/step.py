"""What a scheduler sees of a step: the open positions of every sequence, and the predictions for those it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lsp.decoding.batch import Batch
from lsp.decoding.canvas import Canvas
from lsp.decoding.guidance import Twin
from lsp.decoding.history import Distributions, Predicted
from lsp.decoding.passes import Pass
from lsp.decoding.scheduler import Chosen
from lsp.decoding.scoring import Asked, Question, Scoring
from lsp_kernels import PrefixRule, Vocabulary


class Stats(NamedTuple):
    """`lsp_kernels.TokenStats` of some positions, on the host.

    At a temperature the tokens are samples and the margins are those of the noisy logits. Log-odds and entropy are
    those of the logits without noise.
    """

    tokens: np.ndarray
    margins: np.ndarray
    log_odds: np.ndarray
    entropy: np.ndarray | None = None

    @property
    def confidence(self) -> np.ndarray:
        """The probability of the token, in float64."""
        with np.errstate(over="ignore"):  # the odds of a token that is drawn against all odds
            return 1 / (1 + np.exp(-self.log_odds.astype(np.float64)))


class Prefix(NamedTuple):
    """`lsp_kernels.Commit` of one sequence, on the host: its first masks, and how many of them to commit."""

    length: int
    tokens: np.ndarray
    margins: np.ndarray


class Ask(NamedTuple):
    """What a scheduler asks of a step: the rule on its masks, or statistics of some positions of each sequence.

    These are `clean` if they are those without noise. Instead of statistics it may ask for whole `distributions`.
    """

    rule: PrefixRule | None = None
    where: Sequence[np.ndarray] = ()
    entropy: bool = False
    clean: bool = False
    distributions: bool = False


class Proposals:
    """The tokens that a step has proposed for a sequence, and their log-odds, by position."""

    def __init__(self, length: int) -> None:
        self.tokens = np.full(length, -1, dtype=np.int64)
        self.log_odds = np.full(length, np.nan, dtype=np.float32)

    def logprobs(self, where: np.ndarray, what: np.ndarray) -> np.ndarray:
        """log p = -log(1 + e^-log_odds), in float32; NaN for tokens that were not proposed there."""
        proposed = self.tokens[where] == what
        log_odds = np.where(proposed, self.log_odds[where], 0.0).astype(np.float64)
        return np.where(proposed, 0.0 - np.logaddexp(0.0, -log_odds), np.nan).astype(np.float32)


class Known(NamedTuple):
    """Statistics that a step has given already, for these sorted positions of each sequence."""

    where: list[np.ndarray]
    stats: list[Stats]

    def have(self, where: Sequence[np.ndarray]) -> bool:
        return all(np.isin(asked, known).all() for asked, known in zip(where, self.where, strict=True))

    def at(self, where: Sequence[np.ndarray]) -> list[Stats]:
        """Those at some of the positions."""
        rows = [np.searchsorted(known, asked) for asked, known in zip(where, self.where, strict=True)]
        found = zip(rows, self.stats, strict=True)
        return [Stats(stats.tokens[at], stats.margins[at], stats.log_odds[at]) for at, stats in found]


class Step:
    """One pass of the loop, as a scheduler sees it. The LM head runs on the rows that are asked for, and no others.

    Attributes
    ----------
    canvases : list of Canvas
        The sequences that are not finished. `Canvas.masks` are the positions that may be committed.
    numbers : list of int
        Which prompt each of them continues.
    vocabulary : Vocabulary
    stops : frozenset of int
        The tokens that end a text; empty where they are tokens like any other.
    scored : int
        How many rows went through the LM head in this step so far.
    broken : tuple or None
        The first sequence whose logits cannot be used, by the number of its prompt, and what they hold.
    """

    def __init__(self, passed: Pass, batch: Batch, scoring: Scoring) -> None:
        self._pass, self._scoring, self.vocabulary = passed, scoring, scoring.vocabulary
        self.stops = scoring.stops
        seats = [b for b, canvas in enumerate(batch.canvases) if canvas.active]
        self.numbers = [batch.numbers[b] for b in seats]
        self.canvases = [batch.canvases[b] for b in seats]
        self._places = [places_of(batch.canvases[b], batch.borders[b]) for b in seats]
        twins = [(twin, batch.borders[len(batch.canvases) + b]) for b in seats if (twin := batch.canvases[b].twin)]
        self._twins = [(twin.offset, places_of(twin, begin)) for twin, begin in twins]
        self.scored = 0
        self.broken: tuple[int, str] | None = None
        self._proposals = [Proposals(len(canvas.tokens)) for canvas in self.canvases if scoring.logprobs]
        self._known: Known | None = None  # the statistics of all masks without noise, once they were asked for
        self.announce: Callable[[Ask], None] = no_one  # is told what is asked, before it is answered: other ranks

    @property
    def vocabulary_on_host(self) -> Vocabulary:
        """The same on the host, for a scheduler that applies a rule itself. Copied once for all steps of a run."""
        return self._scoring.on_host

    def ask(self, what: Ask) -> None:
        """Asks the same as somebody else did."""
        if what.rule is not None:
            self.commit(what.rule)
        elif what.distributions:
            self.distributions(what.where)
        else:
            self.stats(what.where, entropy=what.entropy, clean=what.clean)

    def stats(self, where: Sequence[np.ndarray], *, entropy: bool = False, clean: bool = False) -> list[Stats]:
        """Best token, margin and log-odds at these positions of each sequence; on request the entropy too, in nats.

        At a temperature the token is a sample; `clean` asks for the best one instead.
        """
        clean = clean or self._scoring.temperature == 0
        if self._known is not None and clean and not entropy and self._known.have(where):
            return self._known.at(where)
        self.announce(Ask(where=list(where), entropy=entropy, clean=clean))
        borders, (tokens, margins, best, log_odds, *more) = self._ask(where, [], Asked(entropy=entropy), clean)
        self._inspect(borders, margins, best)
        if self._scoring.logprobs and clean == (self._scoring.temperature == 0):
            self._note(where, borders, tokens, log_odds)
        each = (tokens, margins, log_odds, *more)
        return [Stats(*(values[a:b] for values in each)) for a, b in pairwise(borders)]

    def distributions(self, where: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The log-probabilities of all ids at these positions of each sequence, without noise, float32 [n, V]."""
        self.announce(Ask(where=list(where), distributions=True))
        borders, (log_probs,) = self._ask(where, [], Asked(distributions=True), clean=True)
        return [log_probs[a:b] for a, b in pairwise(borders)]

    def earlier(self, passes: int) -> list[list[Predicted]]:
        """What each of so many passes before this one predicted for each sequence, without noise, the last one first.

        There are fewer at the beginning of a sequence. What this pass predicts for all its masks is noted, so that the
        next ones have it; a pass in which nobody asks is a gap, and nothing before a gap is given.
        """
        if self._known is None:
            masks = [canvas.masks_in_pass for canvas in self.canvases]
            self._known = Known(masks, self.stats(masks, clean=True))
            for canvas, where, stats in zip(self.canvases, masks, self._known.stats, strict=True):
                now = Predicted.at(where, stats.tokens, stats.log_odds, len(canvas.tokens))
                canvas.history.predicted.note(canvas.passes, now, keep=passes + 1)
        return [canvas.history.predicted.before(canvas.passes, passes) for canvas in self.canvases]

    def drifts(self, passes: int) -> list[list[np.ndarray]]:
        """How far the distribution of every mask has moved in this pass and in those before, the last one first.

        For each sequence and each of so many passes, or as many as there are: the divergence of a pass from the one
        before it, by position; infinite where there is none. Needs whole distributions, so a small vocabulary.
        """
        masks = [canvas.masks_in_pass for canvas in self.canvases]
        out = []
        for canvas, where, log_probs in zip(self.canvases, masks, self.distributions(masks), strict=True):
            log, now = canvas.history, Distributions(where, log_probs)
            drift = now.drift(log.distributions.before(canvas.passes, 1), len(canvas.tokens))
            log.distributions.note(canvas.passes, now, keep=2)
            log.drifts.note(canvas.passes, drift, keep=passes)
            out.append([drift, *log.drifts.before(canvas.passes, passes - 1)])
        return out

    def commit(self, rule: PrefixRule) -> list[Prefix]:
        """The rule on the masks of each sequence; only those that it looks at are scored."""
        self.announce(Ask(rule))
        counts = [len(canvas.masks) for canvas in self.canvases]
        where = [c.masks[: rule.scored_rows(n)] for c, n in zip(self.canvases, counts, strict=True)]
        borders, (lengths, tokens, margins, best, *more) = self._ask(where, counts, Asked(rule))
        self._inspect(borders, margins, best)
        if self._scoring.logprobs:
            self._note(where, borders, tokens, *more)
        spans = pairwise(borders)
        return [Prefix(int(n), tokens[a:b], margins[a:b]) for n, (a, b) in zip(lengths, spans, strict=True)]

    def logprobs(self, chosen: Sequence[Chosen]) -> Sequence[np.ndarray | None]:
        """Log-probabilities of each choice, if they are asked for; NaN for tokens that this step did not propose."""
        if not self._scoring.logprobs:
            return [None] * len(chosen)
        return [proposals.logprobs(*choice) for proposals, choice in zip(self._proposals, chosen, strict=True)]

    def random(self, sequence: int) -> np.random.Generator:
        """Random numbers for choices in one of `canvases`: a function of its seed and of the number of its pass."""
        seed, own_pass = self._scoring.seeds[self.numbers[sequence]], self.canvases[sequence].passes
        return np.random.Generator(np.random.Philox(key=seed % 2**64, counter=[0, 0, 0, own_pass]))

    def finish(self) -> None:
        """Ends the step: a pass that nobody has asked anything runs now."""
        self._pass.finish()

    def _ask(
        self, where: Sequence[np.ndarray], counts: list[int], asked: Asked, clean: bool = False
    ) -> tuple[list[int], list[np.ndarray]]:
        """The borders of the rows of each sequence, and what the pass answers for them."""
        rows, borders = self._rows(where)
        passes = [canvas.passes for canvas in self.canvases]
        noise = None if clean else self._scoring.noise(self.numbers, passes, where)
        return borders, self._pass.answer(Question(asked, rows, borders, counts, noise, self._twin_rows(where)))

    def _note(self, where: Sequence[np.ndarray], borders: list[int], tokens: np.ndarray, log_odds: np.ndarray) -> None:
        """Keeps what was proposed, for the log-probabilities of what will be chosen of it."""
        for proposals, positions, (a, b) in zip(self._proposals, where, pairwise(borders), strict=True):
            proposals.tokens[positions], proposals.log_odds[positions] = tokens[a:b], log_odds[a:b]

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """What is scored inside may be unusable."""
        broken = self.broken
        yield
        self.broken = broken

    def _inspect(self, borders: list[int], margins: np.ndarray, best: np.ndarray) -> None:
        """Notes the first sequence with a NaN, or with a row in which all of the largest logits are infinite."""
        unusable = {"NaN": np.isnan(margins), "infinite logits": np.isinf(best) & (margins == 0)}
        for what, rows in unusable.items():
            if self.broken is None and rows.any():
                sequence = int(np.searchsorted(borders, np.argmax(rows), side="right")) - 1
                self.broken = self.numbers[sequence], what

    def _rows(self, where: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]]:
        """Rows of the packed pass, and their borders by sequence."""
        for canvas, positions in zip(self.canvases, where, strict=True):
            first = canvas.pass_begin + canvas.shifted
            if len(positions) and not first <= positions.min() <= positions.max() < canvas.pass_end:
                expected = f"{first} to {canvas.pass_end - 1}, the positions of the pass"
                raise ValueError(f"Invalid positions: expected {expected}, got {positions.tolist()}")
        shift = int(self._scoring.shifted)  # the row before a place predicts it, so that is the one to find
        rows = [places[positions - shift] + shift for positions, places in zip(where, self._places, strict=True)]
        borders = np.cumsum([0, *map(len, rows)]).tolist()
        self.scored += borders[-1]
        return np.concatenate(rows).astype(np.int64), borders

    def _twin_rows(self, where: Sequence[np.ndarray]) -> np.ndarray | None:
        """The rows of the same positions in the twins, with guidance."""
        if not self._scoring.cfg_scale:
            return None
        shift, each = int(self._scoring.shifted), zip(where, self._twins, strict=True)
        rows = [places[positions + offset - shift] + shift for positions, (offset, places) in each]
        return np.concatenate(rows).astype(np.int64)


def places_of(sequence: Canvas | Twin, begin: int) -> np.ndarray:
    """Where each position of a sequence that begins here lies in the packed pass; -1 for those that do not."""
    where = sequence.pass_positions
    out = np.full(int(where.max(initial=-1)) + 1, -1, dtype=np.int64)
    out[where] = np.arange(begin, begin + len(where))
    return out


def no_one(asked: Ask) -> None:
    """Nobody else needs to know what is asked."""

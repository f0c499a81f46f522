"""What a scheduler sees of a step: the open positions of every sequence, and the predictions for those it asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lsp.decoding.batch import Batch
from lsp.decoding.passes import Pass
from lsp.decoding.scoring import Question, Scoring
from lsp_kernels import PrefixRule


class Stats(NamedTuple):
    """`lsp_kernels.TokenStats` of some positions, on the host."""

    tokens: np.ndarray
    margins: np.ndarray
    log_odds: np.ndarray

    @property
    def confidence(self) -> np.ndarray:
        """The probability of the best token, in float64."""
        return 1 / (1 + np.exp(-self.log_odds.astype(np.float64)))


class Prefix(NamedTuple):
    """`lsp_kernels.Commit` of one sequence, on the host: its first masks, and how many of them to commit."""

    length: int
    tokens: np.ndarray
    margins: np.ndarray


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
        self._offsets = [batch.borders[b] - batch.canvases[b].pass_begin for b in seats]
        self.scored = 0
        self.broken: tuple[int, str] | None = None

    def stats(self, where: Sequence[np.ndarray]) -> list[Stats]:
        """Best token, margin and log-odds at these positions of each sequence."""
        borders, (tokens, margins, log_odds, best) = self._ask(where, [], None)
        self._inspect(borders, margins, best)
        return [Stats(tokens[a:b], margins[a:b], log_odds[a:b]) for a, b in pairwise(borders)]

    def commit(self, rule: PrefixRule) -> list[Prefix]:
        """The rule on the masks of each sequence; only those that it looks at are scored."""
        counts = [len(canvas.masks) for canvas in self.canvases]
        where = [c.masks[: rule.scored_rows(n)] for c, n in zip(self.canvases, counts, strict=True)]
        borders, (lengths, tokens, margins, best) = self._ask(where, counts, rule)
        self._inspect(borders, margins, best)
        spans = pairwise(borders)
        return [Prefix(int(n), tokens[a:b], margins[a:b]) for n, (a, b) in zip(lengths, spans, strict=True)]

    def finish(self) -> None:
        """Ends the step: a pass that nobody has asked anything runs now."""
        self._pass.finish()

    def _ask(
        self, where: Sequence[np.ndarray], counts: list[int], rule: PrefixRule | None
    ) -> tuple[list[int], list[np.ndarray]]:
        """The borders of the rows of each sequence, and what the pass answers for them."""
        rows, borders = self._rows(where)
        noise = None if self._scoring.temperature == 0 else partial(self._noisy, where=where)
        return borders, self._pass.answer(Question(rows, borders, counts, rule), noise)

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
        rows = [positions + offset for positions, offset in zip(where, self._offsets, strict=True)]
        borders = np.cumsum([0, *map(len, rows)]).tolist()
        self.scored += borders[-1]
        return np.concatenate(rows).astype(np.int64), borders

    def _noisy(self, logits: Tensor, where: Sequence[np.ndarray]) -> Tensor:
        """The logits with Gumbel noise. It depends on the seed, the pass and the position of the sequence alone."""
        scale, logits = self._scoring.temperature, logits.float()
        noise = (
            gumbel(self._scoring.seeds[number], canvas.passes, position, logits.size(-1))
            for number, canvas, positions in zip(self.numbers, self.canvases, where, strict=True)
            for position in positions.tolist()
        )
        for row, drawn in zip(logits, noise, strict=True):
            row += scale * drawn.to(row.device)
        return logits


def gumbel(seed: int, number: int, position: int, size: int) -> Tensor:
    """Gumbel noise [size] in float32 for one position in one pass."""
    digest = hashlib.blake2b(f"{seed} {number} {position}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    uniform = torch.rand(size, generator=generator, dtype=torch.float64).clamp(min=1e-300)
    return (-(-uniform.log()).log()).float()

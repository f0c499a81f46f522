"""What a scheduler sees of a step: the open positions of every sequence, and the predictions for those it asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lsp.canvas import Canvas
from lsp.clock import Clock
from lsp.models.head import Head
from lsp_kernels import PrefixRule, Vocabulary, commit_prefix, token_stats


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
    """`lsp_kernels.Commit` of one sequence, on the host: of the first masks, and how many of them to commit."""

    length: int
    tokens: np.ndarray
    margins: np.ndarray


class Scores:
    """The step, and the LM head on the rows that a scheduler asks for, once a step and for all sequences together.

    Attributes
    ----------
    index : int
        The number of passes before this one.
    canvases : list of Canvas
        The sequences that are not finished. `Canvas.masks` are the positions that may be committed.
    stops : frozenset of int
        The tokens that end a text; empty where they are tokens like any other.
    """

    def __init__(
        self,
        head: Head,
        canvases: Sequence[Canvas],
        borders: np.ndarray,
        index: int,
        vocabulary: Vocabulary,
        stops: frozenset[int],
        temperature: float,
        seeds: Sequence[int],
        clock: Clock,
    ) -> None:
        self.head, self.vocabulary, self.index, self.clock = head, vocabulary, index, clock
        self.stops, self.temperature = stops, temperature
        self.numbers = [b for b, canvas in enumerate(canvases) if canvas.active]  # of the sequences, in the batch
        self.canvases = [canvases[b] for b in self.numbers]
        self.seeds = [seeds[b] for b in self.numbers]
        self._offsets = [int(borders[b]) - canvases[b].window.start for b in self.numbers]
        self._broken: int | None = None  # the first sequence whose logits hold a NaN

    def stats(self, positions: Sequence[np.ndarray]) -> list[Stats]:
        """The statistics of these positions of each sequence."""
        with self.clock("head"):
            rows, borders = self._rows(positions)
            noisy = self._noisy(rows, positions)
            if noisy is None:
                found = self.head.stats(rows, vocabulary=self.vocabulary)
            else:
                found = token_stats(noisy, vocabulary=self.vocabulary)
            tokens, margins, log_odds = to_host(found.tokens, found.margins, found.log_odds)
        out = [Stats(tokens[a:b], margins[a:b], log_odds[a:b]) for a, b in pairwise(borders)]
        self._note([np.isnan(stats.log_odds).any() for stats in out])
        return out

    def commit(self, rule: PrefixRule) -> list[Prefix]:
        """The rule on the masks of each sequence; only those that it looks at are scored."""
        with self.clock("head"):
            counts = [len(canvas.masks) for canvas in self.canvases]
            positions = [c.masks[: rule.scored_rows(n)] for c, n in zip(self.canvases, counts, strict=True)]
            rows, borders = self._rows(positions)
            cu_rows, n_active = (torch.tensor(x, dtype=torch.int32, device=rows.device) for x in (borders, counts))
            noisy = self._noisy(rows, positions)
            if noisy is None:
                found = self.head.commit(rows, cu_rows, n_active, rule=rule, vocabulary=self.vocabulary)
            else:
                found = commit_prefix(noisy, cu_rows, n_active, rule=rule, vocabulary=self.vocabulary)
            lengths, tokens, margins = to_host(found.lengths, found.tokens, found.margins)
        self._note(lengths == 0)
        spans = pairwise(borders)
        return [Prefix(int(n), tokens[a:b], margins[a:b]) for n, (a, b) in zip(lengths, spans, strict=True)]

    def require_numbers(self, progress: object, error: type[Exception]) -> None:
        """Raises if what was scored in this step held a NaN."""
        if self._broken is not None:
            where = f"sequence {self.numbers[self._broken]}, step {self.index}"
            raise error(f"the model returned NaN in {where}; nothing of this step was committed", progress)

    @contextmanager
    def not_noted(self) -> Iterator[None]:
        """What is scored inside may hold NaN."""
        broken = self._broken
        yield
        self._broken = broken

    def _note(self, broken: Sequence[bool] | np.ndarray) -> None:
        if self._broken is None and np.any(broken):
            self._broken = int(np.argmax(broken))

    def _rows(self, positions: Sequence[np.ndarray]) -> tuple[Tensor, list[int]]:
        """Rows of the packed pass, and their borders by sequence."""
        rows = [where + offset for where, offset in zip(positions, self._offsets, strict=True)]
        borders = np.cumsum([0, *map(len, rows)]).tolist()
        return torch.from_numpy(np.concatenate(rows).astype(np.int64)).to(self.head.hidden.device), borders

    def _noisy(self, rows: Tensor, positions: Sequence[np.ndarray]) -> Tensor | None:
        """Logits with Gumbel noise, which depends on the prompt's seed, the step and the position and nothing else."""
        if self.temperature == 0:
            return None
        logits = self.head.logits(rows).float()
        keys = [(seed, p) for seed, where in zip(self.seeds, positions, strict=True) for p in where.tolist()]
        for row, (seed, position) in zip(logits, keys, strict=True):
            digest = hashlib.blake2b(f"{seed} {self.index} {position}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
            uniform = torch.rand(row.numel(), generator=generator, dtype=torch.float64).clamp(min=1e-300)
            gumbel = -(-uniform.log()).log()
            row += self.temperature * gumbel.float().to(row.device)
        return logits


def to_host(*tensors: Tensor) -> list[np.ndarray]:
    """Copies that are queued without waiting, and one synchronisation."""
    if tensors[0].device.type != "cuda":
        return [tensor.cpu().numpy() for tensor in tensors]
    copies = [torch.empty_like(t, device="cpu", pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copy.numpy() for copy in copies]

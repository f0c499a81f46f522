"""A pass in one CUDA graph: captured once per shape, from the embedding to the statistics, and replayed.

A graph has fixed memory and a fixed number of tokens and rows, so both are rounded up to a *bucket*. Tokens past the
last border of the sequences belong to nobody, and so do rows past the last border of the rows. Tokens, positions, rows,
lengths and what the noise is made of are written before a replay, into memory that stays; the choice of the scheduler
comes after it. A pass in which a sequence begins or is computed anew runs as it is: it is long, and its length is
seldom seen twice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lsp.decoding.batch import Batch
from lsp.decoding.passes import Eager, EagerPass, Pass
from lsp.decoding.scoring import Asked, Question, Rows, Scoring, to_host
from lsp.models.protocol import Model
from lsp_kernels import PrefixCache

Replay = Callable[[], tuple[Tensor, ...]]
NOTHING = Question(Asked(), np.zeros(0, dtype=np.int64), [0], [], None)


def bucket(n: int) -> int:
    """The number of tokens or rows for which a graph is captured: at least n, and at most a quarter or 16 more.

    >>> [bucket(n) for n in (0, 1, 16, 17, 130, 1000)]
    [16, 16, 16, 32, 160, 1024]
    """
    step = max(16, 1 << max(n - 1, 0).bit_length() >> 3)
    return max(1, -(-n // step)) * step


def capture(run: Replay, device: torch.device) -> Replay:
    """`run` as a CUDA graph. Its tensors keep their places: a replay reads the same inputs and writes the same outputs.

    On a CPU there is nothing to capture, and a replay is `run` itself.
    """
    if device.type != "cuda":
        return run
    current, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        run()  # compiles kernels, makes handles and grows workspaces, which a capture cannot
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()

    def replay() -> tuple[Tensor, ...]:
        graph.replay()
        return outputs

    return replay


class Inputs:
    """The memory that captured passes read. A graph reads the first tokens and rows, as many as its buckets have."""

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        most = bucket(batch * capacity)
        self.tokens, self.positions, self.rows, self.twins = torch.zeros(4, most, dtype=torch.int64, device=device)
        self.noise = torch.zeros(most, 3, dtype=torch.int64, device=device)
        self.cu_rows = torch.zeros(batch + 1, dtype=torch.int32, device=device)
        self.n_active = torch.zeros(batch, dtype=torch.int32, device=device)

    def fill(self, batch: Batch, question: Question, tokens: int, first: int) -> None:
        """Writes a pass of `tokens` tokens, unused ones included. `first`: a row that is always there."""
        used = len(batch.tokens)
        for to, values in ((self.tokens, batch.tokens), (self.positions, batch.positions)):
            to[:used].copy_(values)
            to[used:tokens].zero_()
        for to, given in ((self.rows, question.rows), (self.twins, question.twins)):
            if given is not None:
                rows = np.full(bucket(len(given)), first, dtype=np.int64)
                rows[: len(given)] = given
                upload(rows, to[: len(rows)])
        if question.noise is not None:  # past these rows it is what it was, which is as good as anything
            upload(question.noise, self.noise[: len(question.rows)])
        if question.asked.rule is not None:
            idle = len(self.n_active) - len(question.counts)  # sequences without rows
            upload(np.array([*question.borders, *question.borders[-1:] * idle], dtype=np.int32), self.cu_rows)
            upload(np.array([*question.counts, *[0] * idle], dtype=np.int32), self.n_active)


def upload(values: np.ndarray, to: Tensor) -> None:
    host = torch.from_numpy(values)
    to.copy_(host.pin_memory() if to.is_cuda else host, non_blocking=True)


class Captured:
    """Runs passes as graphs, one per bucket of tokens, bucket of rows and what is asked."""

    def __init__(self, model: Model, cache: PrefixCache, scoring: Scoring) -> None:
        if not hasattr(model, "run_layers"):
            name = type(model).__name__
            raise ValueError(f"Invalid graph: expected a model whose passes can be captured (lsp.load), got {name}")
        self.run_layers: Callable[[Tensor, Tensor, PrefixCache], Tensor] = model.run_layers
        self.eager, self.cache, self.scoring = Eager(model, cache, scoring), cache, scoring
        self.device = model.device
        self.inputs = Inputs(cache.batch, cache.capacity, model.device)
        self.graphs: dict[tuple[int, int, Asked, bool], Replay] = {}

    def __call__(self, batch: Batch) -> Pass:
        return self.eager(batch) if batch.anew else CapturedPass(self, batch)

    def replay(self, batch: Batch, question: Question) -> tuple[Tensor, ...]:
        """The hidden states of the pass and the answer, each with its unused rows, in memory of the graph."""
        tokens, rows = bucket(len(batch.tokens)), bucket(len(question.rows))
        self.inputs.fill(batch, question, tokens, first=int(self.scoring.shifted))
        self.cache.begin(batch.cu_seqlens, batch.append)
        shape = tokens, rows, question.asked, question.noise is not None
        if shape not in self.graphs:
            self.graphs[shape] = capture(lambda: self._pass(*shape), self.device)
        out = self.graphs[shape]()
        self.cache.written()
        self.cache.advance()
        return out

    @torch.no_grad()
    def _pass(self, tokens: int, rows: int, asked: Asked, noisy: bool) -> tuple[Tensor, ...]:
        """What is captured."""
        given = self.inputs
        hidden = self.run_layers(given.tokens[:tokens], given.positions[:tokens], self.cache)
        noise = given.noise[:rows] if noisy else None
        twins = given.twins[:rows] if self.scoring.cfg_scale else None
        asked_of = Rows(given.rows[:rows], given.cu_rows, given.n_active, noise, twins)
        return hidden, *self.scoring.answer(hidden, asked_of, asked)


class CapturedPass:
    """A pass that runs when the first question is asked, together with its answer."""

    def __init__(self, graphs: Captured, batch: Batch) -> None:
        self.graphs, self.batch = graphs, batch
        self.hidden: Tensor | None = None

    def answer(self, question: Question) -> list[np.ndarray]:
        if self.hidden is not None:  # a further question: the hidden states are there
            return EagerPass(self.hidden, self.graphs.scoring).answer(question)
        progress = self.graphs.scoring.progress
        with progress.clock("model"), progress.kept("the model"):
            self.hidden, *found = self.graphs.replay(self.batch, question)
            out = to_host(*found)
        sequences = [out.pop(0)[: len(question.counts)]] if question.asked.rule is not None else []
        return [*sequences, *(each[: len(question.rows)] for each in out)]

    def finish(self) -> None:
        if self.hidden is None:
            self.answer(NOTHING)

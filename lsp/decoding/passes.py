"""How a pass is run: as soon as it is laid out, or, in `graphs`, captured and replayed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lsp.decoding.batch import Batch
from lsp.decoding.scoring import Question, Rows, Scoring, to_host
from lsp.models.protocol import Model
from lsp_kernels import PrefixCache


class Pass(Protocol):
    """A pass of the model over a batch, which answers what a scheduler asks of it."""

    def answer(self, question: Question) -> list[np.ndarray]: ...
    def finish(self) -> None:
        """Runs the pass if nobody has asked anything: what it appends to the cache is needed all the same."""


class EagerPass:
    """Hidden states that are there."""

    def __init__(self, hidden: Tensor, scoring: Scoring) -> None:
        self.hidden, self.scoring = hidden, scoring

    def answer(self, question: Question) -> list[np.ndarray]:
        with self.scoring.progress.clock("head"):
            rows = upload(question, self.hidden.device)
            return to_host(*self.scoring.answer(self.hidden, rows, question.asked))

    def finish(self) -> None:
        pass


class Eager:
    """Runs every pass at once."""

    def __init__(self, model: Model, cache: PrefixCache, scoring: Scoring) -> None:
        self.model, self.cache, self.scoring = model, cache, scoring

    def __call__(self, batch: Batch) -> Pass:
        progress = self.scoring.progress
        with progress.clock("model"), progress.kept("the model"):
            hidden = self.model(batch.tokens, batch.positions, batch.cu_seqlens, self.cache, batch.append)
        return EagerPass(hidden, self.scoring)


def upload(question: Question, device: torch.device) -> Rows:
    """The rows of a question on the device; places and noise travel together."""
    count, guided = len(question.rows), question.twins is not None
    tables = [table.reshape(-1) for table in (question.twins, question.noise) if table is not None]
    values = torch.from_numpy(np.concatenate([question.rows, *tables])).to(device)
    places, twins, noise = values.tensor_split([count, count * (1 + guided)])
    lengths = (question.borders, question.counts)
    cu_rows, n_active = (torch.tensor(x, dtype=torch.int32, device=device) for x in lengths)
    table = None if question.noise is None else noise.view(count, 3)
    return Rows(places, cu_rows, n_active, table, twins if guided else None)

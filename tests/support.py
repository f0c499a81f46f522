"""What several test suites share: comparing bit for bit, and comparing a backend with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests import oracle
from tests.strategies import Case


def same(got: Tensor, expected: Tensor) -> None:
    """Equal bit for bit, but for the payload of NaN."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    if got.is_floating_point():
        zero = got == 0
        assert torch.equal(got[zero].signbit(), expected[zero].signbit())


def check_commit(backend: Any, case: Case) -> None:
    """commit_prefix says what the enumeration of thresholds says."""
    chosen, tokens, margins = case.expected()
    commit = backend.commit_prefix(case.logits, **case.arguments())
    shape = case.logits.shape[:-1]
    same(commit.tokens, torch.tensor(tokens).long().view(shape))
    same(commit.margins, torch.tensor(margins).float().view(shape))
    same(commit.lengths, torch.tensor([length for length, _ in chosen], dtype=torch.int32))
    same(commit.finished, torch.tensor([done for _, done in chosen], dtype=torch.bool))


def check_select(backend: Any, case: Case, strided: bool, shift: float) -> None:
    """select_prefix chooses as the oracle does, whatever the strides and signs of the margins."""
    _, tokens, margins = case.expected()
    shape = case.logits.shape[:-1]
    tokens, margins = torch.tensor(tokens).long().view(shape), torch.tensor(margins).float().view(shape) - shift
    if strided:
        margins, tokens = (torch.stack([t, t], -1)[..., 1] for t in (margins, tokens))
    expected = [
        oracle.select(
            [float(np.float32(r.margin) - np.float32(shift)) for r in rows], [r.token for r in rows],
            case.rule, case.delimiters, case.stops,
        )
        for rows in case.sequences
    ]  # fmt: skip
    lengths, finished = backend.select_prefix(margins, tokens, **case.arguments())
    same(lengths, torch.tensor([length for length, _ in expected], dtype=torch.int32))
    same(finished, torch.tensor([done for _, done in expected], dtype=torch.bool))


def check_stats(backend: Any, case: Case) -> None:
    """token_stats says what the definition says of every row."""
    stats = backend.token_stats(case.logits, vocabulary=case.vocabulary)
    hidden = case.vocabulary.suppressed
    suppressed = set() if hidden is None else set(hidden.tolist())
    rows = case.logits.reshape(-1, case.logits.size(-1)).float().tolist()
    expected = [oracle.score_row(row, suppressed) for row in rows]

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(row, name) for row in expected]).to(dtype).view(case.logits.shape[:-1])

    same(stats.tokens, column("token", torch.int64))
    same(stats.top1, column("top1", torch.float32))
    same(stats.top2, column("top2", torch.float32))
    same(stats.margins, column("margin", torch.float32))
    torch.testing.assert_close(stats.log_odds, column("log_odds", torch.float32), rtol=0, atol=1e-5, equal_nan=True)

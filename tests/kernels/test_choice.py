"""The two largest logits of rows of many blocks, whatever their order is and wherever suppressed ids are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lsp_kernels import PrefixRule, Vocabulary
from tests.strategies import DTYPES, KINDS, random_logits
from tests.support import same

RULE = PrefixRule(beta=1.0, snap=False)
SIZES = (2047, 2048, 2600, 6000)
LARGE = 270_000


def check(backend, logits: Tensor, suppress: np.ndarray) -> None:
    """Tokens and margins are those of the allowed values, sorted."""
    vocabulary = Vocabulary(logits.size(1), suppress=suppress.tolist())
    z = logits.double().numpy().copy()
    z[:, suppress] = -math.inf
    nan = np.isnan(z).any(1)
    z[np.isnan(z)] = -math.inf
    tokens = z.argmax(1)  # the lowest of equal ids
    second, first = np.partition(z, -2, axis=1)[:, -2:].T
    with np.errstate(invalid="ignore"):
        margins = np.where(nan, math.nan, np.where(first == second, 0.0, first - second))
    tokens[first == -math.inf] = vocabulary.lowest
    commit = backend.commit_prefix(logits, rule=RULE, vocabulary=vocabulary)
    same(commit.tokens, torch.from_numpy(tokens))
    same(commit.margins, torch.from_numpy(margins).float())
    same(commit.top1, torch.from_numpy(first + 0.0).float())


def hidden_ids(rng: np.random.Generator, size: int, share: float) -> np.ndarray:
    ids = np.flatnonzero(rng.random(size) < share)
    return ids[ids != rng.integers(size)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_every_kind_in_any_order(backend, dtype: torch.dtype, kind: str) -> None:
    rng = np.random.default_rng(0)
    for size in SIZES:
        logits = random_logits(rng, 24, size, kind, dtype)
        logits[8:12] = logits[8:12].sort(dim=1).values
        logits[12:16] = logits[12:16].sort(dim=1, descending=True).values
        for share in (0.0, 1 / size, 0.01, 0.999):
            check(backend, logits, hidden_ids(rng, size, share))


@pytest.mark.parametrize("dtype", DTYPES)
def test_suppressed_values_that_are_the_largest_of_their_blocks(backend, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    for size in SIZES:
        for share in (1 / size, 4 / size, 0.01, 0.3):
            logits = random_logits(rng, 24, size, "ties", dtype)
            ids = hidden_ids(rng, size, share)
            large = rng.choice([5.0, 9.0, 30.0, 40.0, 50.0, math.inf, math.nan, -math.inf], (24, len(ids)))
            logits[:, ids] = torch.from_numpy(large).to(dtype)
            check(backend, logits, ids)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_values_are_far_apart(backend, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    logits = torch.full((16, LARGE), -1.0).to(dtype)
    for row, count in enumerate([1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5, 6, 6]):
        places = rng.integers(LARGE, size=count)
        logits[row, places] = torch.from_numpy(rng.choice([3.0, 4.0, 5.0, 6.0], count)).to(dtype)
    check(backend, logits, np.array([], dtype=np.int64))
    check(backend, logits, np.flatnonzero((logits > 5).any(0).numpy()))

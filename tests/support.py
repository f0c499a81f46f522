"""What several test suites share: tensors to test with, equality bit for bit, and a backend beside the oracle."""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from lsp_kernels import Noise
from lsp_kernels._namespace import NAMESPACE
from tests import oracle

if TYPE_CHECKING:
    from tests.strategies import CommitCase

ROOT = Path(__file__).parents[1]
OPERATORS = getattr(torch.ops, NAMESPACE)  # torch.ops.lsp, or those of a copy of the package


def modules_of(package: ModuleType) -> list[str]:
    """Names of all modules of a package, its subpackages included. Nothing is imported to find them."""
    found, folders = [], [(package.__name__, Path(folder)) for folder in package.__path__]
    for name, folder in folders:
        for module in pkgutil.iter_modules([str(folder)]):
            found.append(f"{name}.{module.name}")
            if module.ispkg:
                folders.append((found[-1], folder / module.name))
    return sorted(found)


def import_or_skip(name: str) -> ModuleType:
    """A module of ours. Where a library that it needs is not installed the test is skipped, and says so."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] in ("lsp", "lsp_kernels"):
            raise
        pytest.skip(f"{name} needs {error.name}")


def ints(*values: int) -> Tensor:
    """Lengths and borders, as the operations take them."""
    return torch.tensor(values, dtype=torch.int32)


def in_sparse_file(path: Path, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """A float16 tensor whose elements may lie gigabytes apart, because the file has holes."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    with path.open("wb") as file:
        file.truncate(2 * size)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.float16).as_strided(shape, strides)


def examples(count: int) -> settings:
    """Half of this many examples; LSP_EXAMPLES says how many times all."""
    slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    count = max(2, round(count * float(os.environ.get("LSP_EXAMPLES", "0.5"))))
    return settings(max_examples=count, suppress_health_check=slow)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fresh memory holds NaN and absurd numbers, in torch and in C++, so that an unwritten output is noticed."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    os.environ["LSP_POISON"] = "1"
    yield
    os.environ.pop("LSP_POISON")
    torch.use_deterministic_algorithms(False)


def same(got: Tensor | np.ndarray | None, expected: Tensor | np.ndarray | None) -> None:
    """Equal bit for bit, but for the payload of NaN; what was not asked for is None."""
    if got is None and expected is None:
        return
    got, expected = torch.as_tensor(got), torch.as_tensor(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    if got.is_floating_point():
        zero = got == 0
        assert torch.equal(got[zero].signbit(), expected[zero].signbit())


def check_commit(backend: Any, case: CommitCase) -> None:
    """commit_prefix says what the enumeration of thresholds says."""
    chosen, tokens, margins = case.expected()
    commit = backend.commit_prefix(case.logits, **case.arguments())
    shape = case.logits.shape[:-1]
    same(commit.tokens, torch.tensor(tokens).long().view(shape))
    same(commit.margins, torch.tensor(margins).float().view(shape))
    same(commit.top1, torch.tensor(case.expected_top1()).float().view(shape))
    assert commit.log_odds is None
    same(commit.lengths, torch.tensor([length for length, _ in chosen], dtype=torch.int32))
    same(commit.finished, torch.tensor([done for _, done in chosen], dtype=torch.bool))


def check_select(backend: Any, case: CommitCase, strided: bool, shift: float) -> None:
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


def check_stats(backend: Any, case: CommitCase, **options: Any) -> None:
    """token_stats says what the definition says of every row."""
    stats = backend.token_stats(case.logits, vocabulary=case.vocabulary, **options)
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
    if options.get("entropy"):
        torch.testing.assert_close(
            stats.entropy, column("entropy", torch.float32), rtol=1e-5, atol=1e-5, equal_nan=True
        )
    else:
        assert stats.entropy is None
    assert stats.clean is None


def noisy_tolerance(row: oracle.Row, draw: oracle.Draw) -> float:
    """How much a backend may be wrong about the two largest noisy logits of a row, as docs/kernels.md states."""
    largest = max((abs(z) for z in (row.top1, row.top2) if math.isfinite(z)), default=0.0)
    return 2**-20 * (largest + 24 * draw.temperature)


def check_noisy_stats(
    backend: Any, case: CommitCase, noise: Noise, draws: list[oracle.Draw], id_offset: int = 0
) -> None:
    """token_stats with noise draws what the definition draws; log-odds, entropy and clean logit are without noise.

    Rows in which the two largest noisy logits are closer than the tolerance are compared but for the token.
    """
    stats = backend.token_stats(case.logits, vocabulary=case.vocabulary, noise=noise, entropy=True, id_offset=id_offset)
    hidden = case.vocabulary.suppressed
    suppressed = set() if hidden is None else set(hidden.tolist())
    rows = case.logits.reshape(-1, case.logits.size(-1)).float().tolist()
    for i, (row, draw) in enumerate(zip(rows, draws, strict=True)):
        expected = oracle.score_row(row, suppressed, draw, id_offset)
        token, *found = (column.flatten()[i].item() for column in stats)
        check_noisy_row(token, dict(zip(stats._fields[1:], found, strict=True)), expected, draw)


def check_noisy_row(token: int, found: dict[str, float], expected: oracle.Row, draw: oracle.Draw) -> None:
    """What was found of a row is what was expected, as far as the tolerance of the noise allows."""
    tolerance = noisy_tolerance(expected, draw)
    sure = math.isnan(expected.margin) or expected.margin > 2 * tolerance or expected.margin == 0
    close = {"top1": tolerance, "top2": tolerance, "entropy": 1e-5 + 1e-5 * abs(expected.entropy)}
    if sure:
        assert token == expected.token
        close |= {"clean": 0.0, "log_odds": 1e-5 + 1e-6 * abs(expected.log_odds)}
    for name, most in close.items():
        if name in found:
            assert found[name] == pytest.approx(np.float32(getattr(expected, name)), rel=0, abs=most, nan_ok=True), name


def check_noisy_commit(backend: Any, case: CommitCase, noise: Noise, draws: list[oracle.Draw]) -> None:
    """commit_prefix with noise scores rows as the definition does, and applies the rule to what it found."""
    commit = backend.commit_prefix(case.logits, **case.arguments(), noise=noise, log_odds=True)
    hidden = case.vocabulary.suppressed
    suppressed = set() if hidden is None else set(hidden.tolist())
    rows = case.logits.reshape(-1, case.logits.size(-1)).float().tolist()
    tokens, margins, top1, odds = (column.flatten().tolist() for column in commit[2:])
    scored = set()
    for b, (first, sequence) in enumerate(zip(case.first_rows, case.sequences, strict=True)):
        here = range(first, first + oracle.scored_rows(len(sequence), case.rule))
        scored |= {*here}
        for i in here:
            expected = oracle.score_row(rows[i], suppressed, draws[i])
            check_noisy_row(tokens[i], {"top1": top1[i], "log_odds": odds[i]}, expected, draws[i])
            tolerance = 2 * noisy_tolerance(expected, draws[i])
            assert margins[i] == pytest.approx(expected.margin, rel=0, abs=tolerance, nan_ok=True)
        rest = len(sequence) - len(here)  # rows that the rule does not look at
        known = [margins[i] for i in here] + [0.0] * rest, [tokens[i] for i in here] + [-1] * rest
        assert oracle.select(*known, case.rule, case.delimiters, case.stops) == (
            commit.lengths[b].item(),
            commit.finished[b].item(),
        )
    for i in {*range(len(rows))} - scored:
        assert (tokens[i], margins[i], top1[i], odds[i]) == (-1, -math.inf, -math.inf, -math.inf)

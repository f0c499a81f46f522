"""The compiled PTX of the commit kernels, executed: exact, within bounds, without races, each logit read once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lsp_kernels import PrefixRule, Vocabulary, reference
from lsp_kernels.triton.builds import Build, build
from lsp_kernels.triton.commit import commit_kernel, stats_kernel
from tests.ptx import RaceError, launch
from tests.ptx.mutate import with_ticket, without_each_barrier
from tests.strategies import DTYPES, random_logits
from tests.support import same
from tests.triton.inputs import CommitInputs

TARGETS = ["sm_80", "sm_90", "sm_100", "sm_120"]
SIZE = 10_304  # one group of four tiles and a ragged end per split of two; divisible by 16, as aligned builds expect
BORDERS = [0, 5, 5, 6, 9]


def inputs(
    dtype: torch.dtype = torch.bfloat16,
    kind: str = "ties",
    rule: PrefixRule | None = None,
    size: int = SIZE,
    seed: int = 0,
) -> CommitInputs:
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, BORDERS[-1], size, kind, dtype)
    vocabulary = Vocabulary(size, delimiters=range(0, size, 3), stops=range(0, size, 40), suppress=[0, 1, size - 5])
    return CommitInputs(logits, BORDERS, rule or PrefixRule(), vocabulary)


def check(case: CommitInputs, made: Build, outputs: tuple[torch.Tensor, ...]) -> None:
    """What the kernel wrote is what the reference says, and every ticket is back at zero."""
    if made.kernel is commit_kernel:
        expected = reference.commit_prefix(case.logits, **case.arguments())
    else:
        expected = reference.token_stats(case.logits, vocabulary=case.vocabulary)
        torch.testing.assert_close(outputs[3], expected[3], rtol=0, atol=1e-5, equal_nan=True)
        outputs, expected = outputs[:3], expected[:3]
    for got, wanted in zip(outputs, expected, strict=True):
        same(got, wanted)
    assert not case.tickets.any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [commit_kernel, stats_kernel], ids=lambda k: k.__name__)
def test_executed_code_is_exact_in_any_order_of_programs(kernel, target: str) -> None:
    for seed, (dtype, kind) in enumerate(zip(DTYPES, ["smooth", "extreme", "nan"], strict=True)):
        made = build(kernel, target, dtype, splits=2)
        case = inputs(dtype, kind, seed=seed)
        grid, arguments, outputs = case.prepare(made)
        launch(made.compile(), grid, arguments, seed=seed)
        check(case, made, outputs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("options", "rule"),
    [
        pytest.param({"guarded": True, "splits": 1}, PrefixRule(floor=1.0, beta=1.0, no_delimiter="keep"), id="floor"),
        pytest.param({"aligned": False, "splits": 4}, PrefixRule(min_length=3), id="unaligned"),
    ],
)
def test_other_builds_are_exact_too(target: str, options: dict, rule: PrefixRule) -> None:
    made = build(commit_kernel, target, torch.bfloat16, **options)
    case = inputs(rule=rule, kind="falling", size=SIZE - 1 if "aligned" in options else SIZE)
    grid, arguments, outputs = case.prepare(made)
    launch(made.compile(), grid, arguments, seed=5)
    check(case, made, outputs)


@pytest.mark.parametrize("target", TARGETS)
def test_each_logit_of_a_scored_row_is_read_once_and_no_other(target: str) -> None:
    made = build(commit_kernel, target, torch.bfloat16, splits=2)
    case = inputs()
    grid, arguments, _ = case.prepare(made)
    run = launch(made.compile(), grid, arguments, seed=1, races=False)
    reads = torch.from_numpy(run.reads(case.logits))
    scored = torch.cat([torch.arange(n) < case.rule.scored_rows(n) for n in case.n_active.tolist()])
    assert (reads[scored] == 1).all()
    assert (reads[~scored] == 0).all()
    assert run.bytes_read(case.logits) <= 1.02 * scored.sum() * SIZE * 2


def test_a_relaxed_ticket_is_a_race() -> None:
    made = build(commit_kernel, "sm_90", torch.bfloat16, splits=2)
    grid, arguments, _ = inputs().prepare(made)
    compiled = made.compile()
    with pytest.raises(RaceError):
        launch(with_ticket(compiled.text, "relaxed"), grid, arguments, shared=compiled.shared, seed=1)


def test_no_barrier_can_be_removed() -> None:
    """Enough rows, sequences, suppressed ids and window that every loop runs twice: then each barrier is needed."""
    made = build(commit_kernel, "sm_80", torch.bfloat16, splits=1)
    size, many = 2064, made.constants["ROWS"] + 3
    logits = random_logits(np.random.default_rng(0), many, size, "falling", torch.bfloat16)
    vocabulary = Vocabulary(size, delimiters=[size - 1], suppress=range(many))
    case = CommitInputs(logits, [0] * many + [many], PrefixRule(beta=1.0, window=many), vocabulary)
    compiled = made.compile()
    survivors = []
    for i, mutant in enumerate(without_each_barrier(compiled.text)):
        grid, arguments, _ = case.prepare(made)
        try:
            launch(mutant, grid, arguments, shared=compiled.shared, seed=i)
        except RaceError:
            continue
        survivors.append(i)
    assert survivors == []


def test_rows_are_counted_on_the_grid_axis_that_has_no_small_limit() -> None:
    for kernel in (commit_kernel, stats_kernel):
        text = build(kernel, "sm_90", torch.bfloat16).compile().text
        assert "%ctaid.x" in text
        assert "%ctaid.y" not in text
        assert "%ctaid.z" not in text


def test_nan_and_infinity_survive_compilation() -> None:
    made = build(commit_kernel, "sm_90", torch.float32, splits=2)
    case = inputs(torch.float32, "extreme")
    case.logits[2, 4000] = math.nan
    case.logits[7, 0] = math.nan  # suppressed: not looked at
    grid, arguments, outputs = case.prepare(made)
    launch(made.compile(), grid, arguments, seed=2)
    check(case, made, outputs)
    assert outputs[0][0] == 0

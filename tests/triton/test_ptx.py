"""The compiled PTX of the commit kernels, executed: exact, within bounds, without races, each logit read once."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch

from lsp_kernels import Commit, PrefixRule, TokenStats, Vocabulary, reference
from lsp_kernels.triton.aot.builds import Build, build
from lsp_kernels.triton.commit import commit_kernel, select_kernel, stats_kernel
from tests.strategies import DTYPES, random_logits
from tests.support import same
from tests.triton.inputs import BORDERS, SIZE, CommitInputs, commit_inputs
from tests.virtual_gpu import RaceError, floating, launch
from tests.virtual_gpu.mutate import with_ticket, without_each_barrier

TARGETS = ["sm_80", "sm_90", "sm_100", "sm_120"]


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
        case = commit_inputs(dtype, kind, seed=seed)
        grid, arguments, outputs = case.prepare(made)
        launch(made.compile(), grid, arguments, seed=seed)
        check(case, made, outputs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("options", "rule"),
    [
        pytest.param(
            {"has_floor": True, "splits": 1}, PrefixRule(floor=1.0, beta=1.0, no_delimiter="keep"), id="floor"
        ),
        pytest.param({"aligned": False, "splits": 4}, PrefixRule(min_length=3), id="unaligned"),
        pytest.param({"packed": False}, PrefixRule(), id="batch"),
    ],
)
def test_other_builds_are_exact_too(target: str, options: dict, rule: PrefixRule) -> None:
    made = build(commit_kernel, target, torch.bfloat16, **options)
    size = SIZE if options.get("aligned", True) else SIZE - 1
    case = commit_inputs(rule=rule, kind="falling", size=size, batch=not options.get("packed", True))
    grid, arguments, outputs = case.prepare(made)
    launch(made.compile(), grid, arguments, seed=5)
    check(case, made, outputs)


@pytest.mark.parametrize("target", TARGETS)
def test_each_logit_of_a_scored_row_is_read_once_and_no_other(target: str) -> None:
    made = build(commit_kernel, target, torch.bfloat16, splits=2)
    case = commit_inputs()
    grid, arguments, _ = case.prepare(made)
    run = launch(made.compile(), grid, arguments, seed=1, races=False)
    reads = torch.from_numpy(run.reads(case.logits))
    scored = torch.zeros(BORDERS[-1], dtype=torch.bool)
    for begin, end, start in zip(BORDERS, BORDERS[1:], case.starts.tolist(), strict=False):
        first = begin + start
        scored[first : first + case.rule.scored_rows(end - first)] = True
    assert (reads[scored] == 1).all()
    assert (reads[~scored] == 0).all()
    assert run.bytes_read(case.logits) <= 1.02 * scored.sum() * SIZE * 2


def check_drawn(case: CommitInputs, outputs: Commit | TokenStats) -> None:
    """Near the definition; tokens where the two largest are further apart than the tolerance, in most rows."""
    expected = reference.token_stats(
        case.logits, vocabulary=case.vocabulary, noise=case.noise, id_offset=case.id_offset, entropy=True
    )
    temperature = case.noise.table[..., 2].int().view(torch.float32)
    size = torch.stack([expected.top1, expected.top2]).abs().nan_to_num(posinf=0).amax(0)
    tolerance = 2**-20 * (size + 24 * temperature)
    scored, margins = outputs.tokens >= 0, expected.margins
    sure = scored & ((margins > 2 * tolerance) | margins.isnan() | (margins == 0))
    assert sure.sum() >= 0.8 * scored.sum() > 0
    same(outputs.tokens[sure], expected.tokens[sure])
    near(outputs.top1, expected.top1, tolerance, scored)
    near(outputs.margins, margins, 2 * tolerance, scored)
    if outputs.log_odds is not None:
        near(outputs.log_odds, expected.log_odds, 1e-5 + 1e-6 * expected.log_odds.abs(), sure)
    if isinstance(outputs, TokenStats):
        near(outputs.entropy, expected.entropy, 1e-5 + 1e-5 * expected.entropy.abs(), scored)
        same(outputs.clean[sure], expected.clean[sure])
    else:
        sequences = {key: value for key, value in case.arguments().items() if key != "vocabulary"}
        chosen = reference.select_prefix(outputs.margins, outputs.tokens, **sequences, vocabulary=case.vocabulary)
        same(outputs.lengths, chosen[0])
    assert not case.tickets.any()


def near(found: torch.Tensor, expected: torch.Tensor, most: torch.Tensor, where: torch.Tensor) -> None:
    equal = (found == expected) | (found.isnan() & expected.isnan()) | ((found - expected).abs() <= most)
    assert equal[where].all()


@pytest.mark.parametrize(
    ("target", "dtype", "kind"),
    [
        pytest.param("sm_80", torch.float16, "ties", marks=pytest.mark.targets),
        pytest.param("sm_90", torch.bfloat16, "nan"),
        pytest.param("sm_100", torch.float32, "extreme"),
        pytest.param("sm_120", torch.bfloat16, "smooth", marks=pytest.mark.targets),
    ],
)
@pytest.mark.parametrize("kernel", [commit_kernel, stats_kernel], ids=lambda k: k.__name__)
def test_executed_code_draws_what_the_definition_draws(kernel, target: str, dtype: torch.dtype, kind: str) -> None:
    more = {"log_odds": True} if kernel is commit_kernel else {"entropy": True}
    made = build(kernel, target, dtype, splits=2, noise=True, **more)
    case = commit_inputs(dtype, kind, seed=3, noise=True, id_offset=0 if kernel is commit_kernel else 2**31 - 2**16)
    grid, arguments, outputs = case.prepare(made)
    run = launch(made.compile(), grid, arguments, seed=3)
    check_drawn(case, outputs)
    if kernel is stats_kernel:
        assert (run.reads(case.logits) == 1).all()


@pytest.mark.parametrize(
    "options", [{"grouped": False}, {"aligned": False}, {"grouped": False, "aligned": False, "splits": 1}], ids=str
)
def test_odd_ids_and_addresses_are_drawn_alike(options: dict) -> None:
    made = build(stats_kernel, "sm_90", torch.bfloat16, **{"splits": 2, "noise": True, "entropy": True} | options)
    size = SIZE if options.get("aligned", True) else SIZE - 1
    case = commit_inputs(
        size=size, kind="smooth", noise=True, id_offset=0 if options.get("grouped", True) else 2**31 - 3
    )
    grid, arguments, outputs = case.prepare(made)
    launch(made.compile(), grid, arguments, seed=1)
    check_drawn(case, outputs)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_error_of_the_logarithm_instruction_is_allowed_for(monkeypatch: pytest.MonkeyPatch, sign: int) -> None:
    """As large as the PTX manual says: 2^-22, absolute from 1/2 to 2 and relative elsewhere."""

    def inexact(x: np.ndarray) -> np.ndarray:
        exact = np.log2(x.astype(np.float64))
        return (exact + sign * 2.0**-22 * np.where((x > 0.5) & (x < 2), 1.0, np.abs(exact))).astype(np.float32)

    monkeypatch.setitem(floating._FUNCTIONS, "lg2", inexact)
    made = build(commit_kernel, "sm_90", torch.bfloat16, splits=2, noise=True)
    assert "lg2.approx.ftz.f32" in made.compile().text
    case = commit_inputs(kind="smooth", noise=True)
    grid, arguments, outputs = case.prepare(made)
    launch(made.compile(), grid, arguments, seed=1)
    check_drawn(case, outputs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "batch"])
def test_the_rule_alone_is_exact(target: str, packed: bool) -> None:
    made = build(select_kernel, target, torch.float32, packed=packed)
    rule, vocabulary = PrefixRule(window=2), Vocabulary(50, delimiters=range(0, 50, 4), stops=[49])
    margins, tokens = torch.randn(2, 150), torch.randint(50, (2, 150))  # more rows than one chunk
    sequences = {"n_active": torch.tensor([150, 99], dtype=torch.int32)}
    if packed:
        margins, tokens = margins.flatten(), tokens.flatten()
        sequences = {"cu_rows": torch.tensor([0, 131, 300]).int(), "starts": torch.tensor([2, 0]).int()}
    lengths, finished = torch.full((2,), -7, dtype=torch.int32), torch.full((2,), 7, dtype=torch.uint8)
    named = {
        "margin_ptr": margins, "token_ptr": tokens, "s_margin_batch": margins.stride(0), "s_margin": 1,
        "s_token_batch": tokens.stride(0), "s_token": 1, "cu_ptr": sequences.get("cu_rows"),
        "active_ptr": sequences.get("n_active"), "starts_ptr": sequences.get("starts"),
        "flags_ptr": vocabulary.flags, "length_ptr": lengths, "finished_ptr": finished, "rows": 300,
        "length": 300 if packed else 150, "vocabulary": 50, "alpha": rule.alpha_ppm, "beta": rule.beta_ppm,
        "min_length": rule.min_length, "window": rule.window, "floor": 0.0,
    }  # fmt: skip
    launch(made.compile(), (2,), [named[name] for name in made.signature], seed=0)
    expected = reference.select_prefix(margins, tokens, **sequences, rule=rule, vocabulary=vocabulary)
    same(lengths, expected[0])
    same(finished.view(torch.bool), expected[1])


def test_a_relaxed_ticket_is_a_race() -> None:
    made = build(commit_kernel, "sm_90", torch.bfloat16, splits=2)
    grid, arguments, _ = commit_inputs().prepare(made)
    compiled = made.compile()
    with pytest.raises(RaceError):
        launch(with_ticket(compiled.text, "relaxed"), grid, arguments, shared=compiled.shared, seed=1)


@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.targets)])  # a copy takes seconds
def test_no_barrier_can_be_removed(every: int) -> None:
    """Enough rows, sequences and window that every loop runs twice: then each barrier is needed."""
    made = build(commit_kernel, "sm_80", torch.bfloat16, splits=2)
    size, many = 2064, made.constants["ROWS"] + 3
    logits = random_logits(np.random.default_rng(0), many, size, "falling", torch.bfloat16)
    vocabulary = Vocabulary(size, delimiters=[size - 1], suppress=[0])
    rule, borders = PrefixRule(beta=1.0, window=many), [0] * many + [many]
    case = CommitInputs(logits, rule, vocabulary, borders=borders, starts=[0] * many)
    compiled = made.compile()
    survivors = []
    for i, mutant in islice(enumerate(without_each_barrier(compiled.text)), 0, None, every):
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
    case = commit_inputs(torch.float32, "extreme")
    case.logits[2, 4000] = math.nan
    case.logits[7, 0] = math.nan  # suppressed: not looked at
    grid, arguments, outputs = case.prepare(made)
    launch(made.compile(), grid, arguments, seed=2)
    check(case, made, outputs)
    assert outputs[0][0] == 0

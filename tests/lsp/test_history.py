"""What earlier passes predicted: per sequence, without noise, only if asked for; and the schedulers that go by it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import lsp
from lsp.decoding.history import Log, divergence
from lsp_kernels import PrefixRule, Vocabulary
from tests import oracle
from tests.lsp import simulation
from tests.lsp.agreement import DELIMITERS, MASK, SIZE, STOPS, check_agreement
from tests.lsp.recorder import last, scripted
from tests.lsp.simulation import script
from tests.support import examples

VOCABULARY = Vocabulary(SIZE, DELIMITERS, STOPS, suppress=[MASK])


@pytest.mark.parametrize("scheduler", [lsp.Less(), lsp.Less(0.2, 2), lsp.Less(0.2, 3), lsp.Less(0.6, 1)], ids=str)
@examples(25)
@given(data=st.data())
def test_less_decodes_as_its_simulation(scheduler: lsp.Less, data: st.DataObject) -> None:
    check_agreement(scheduler, data)


@pytest.mark.parametrize(
    "scheduler", [lsp.Klass(), lsp.Klass(0.2, 3.0, 1), lsp.Klass(0.2, 4.0, 2), lsp.Klass(0.1, 9.0, 3)], ids=str
)
@examples(25)
@given(data=st.data())
def test_klass_decodes_as_its_simulation(scheduler: lsp.Klass, data: st.DataObject) -> None:
    check_agreement(scheduler, data)


def in_the_third_pass(rule: lsp.Scheduler, steps: list[np.ndarray]) -> set[int]:
    """What a scheduler commits of 8 masks whose logits are these in its first three passes."""
    calls = iter(np.concatenate([z, np.full((8, 1), 50.0)], 1).astype(np.float32) for z in steps)

    def third_pass_only(step: lsp.decoding.Step) -> list:
        (canvas,) = step.canvases
        found = rule(step)
        return [(np.array([8 + canvas.passes]), np.array([0]))] if canvas.passes < 2 else found

    vocabulary = Vocabulary(6)
    model = scripted(lambda ids: np.concatenate([next(calls), np.zeros((2, 6), dtype=np.float32)]), 6, 5)
    loop = lsp.decode(model, [[]], 10, third_pass_only, vocabulary)
    for _ in range(4):
        state = next(loop)
    return set(np.flatnonzero(~state.canvases[0].masked[:8]).tolist())


def restated_klass(p: np.ndarray, before: list[np.ndarray], confidence: float, most: float) -> set[int]:
    """KLASS on one sequence: [n, V] probabilities now and in the passes before, the last one first."""
    passes = [p, *before]
    kls = [(a * np.log(a / b)).sum(1) for a, b in pairwise(passes)]
    sure = (p.max(1) >= confidence) & np.all([each < most for each in kls], axis=0)
    return set(np.flatnonzero(sure).tolist()) or {int(p.max(1).argmax())}


@examples(50)
@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.4, 0.8]), st.sampled_from([0.002, 0.05, 0.5]))
def test_klass_is_its_formula_on_random_distributions(seed: int, confidence: float, most: float) -> None:
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(8, 5)) * 2
    steps = [start + rng.normal(size=(8, 5)) * scale for scale in rng.choice([0.01, 0.1, 1.0], size=(3, 8, 1))]
    chosen = in_the_third_pass(lsp.Klass(confidence, most, 2), steps)
    probs = [np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in reversed(steps)]
    for a, b in pairwise(probs):
        assume((np.abs((a * np.log(a / b)).sum(1) - most) > 1e-5).all())
    assume((np.abs(probs[0].max(1) - confidence) > 1e-5).all())
    assert chosen == restated_klass(probs[0], probs[1:], confidence, most)


@examples(50)
@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.4, 0.8]), st.sampled_from([1, 2, 3]))
def test_less_is_its_formula_on_random_distributions(seed: int, confidence: float, passes: int) -> None:
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(8, 5)) * 2
    steps = [start + rng.normal(size=(8, 5)) * scale for scale in rng.choice([0.1, 1.0], size=(3, 8, 1))]
    p = (np.exp(steps[-1]) / np.exp(steps[-1]).sum(1, keepdims=True)).max(1)
    assume((np.abs(p - confidence) > 1e-5).all())
    same = np.ptp([z.argmax(1) for z in steps[-passes:]], axis=0) == 0
    wanted = set(np.flatnonzero((p >= confidence) & same).tolist()) or {int(p.argmax())}
    assert in_the_third_pass(lsp.Less(confidence, passes), steps) == wanted


@given(st.integers(0, 10**6))
def test_a_divergence_is_that_of_the_definition_and_ignores_what_is_suppressed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    now, then = (np.concatenate([rng.normal(size=(4, 6)) * 3, np.full((4, 1), -np.inf)], 1) for _ in range(2))
    log_probs = [(z - np.logaddexp.reduce(z, axis=1, keepdims=True)).astype(np.float32) for z in (now, then)]
    expected = [simulation.kl(a[:-1].tolist(), b[:-1].tolist(), -1) for a, b in zip(now, then, strict=True)]
    np.testing.assert_allclose(divergence(*log_probs), expected, rtol=1e-5, atol=1e-6)


@examples(30)
@given(data=st.data())
def test_the_step_gives_what_earlier_passes_predicted_without_noise(data: st.DataObject) -> None:
    """Whatever the seats, the temperature and the blocks: for each sequence what its own passes had."""
    passes = data.draw(st.integers(1, 3), "passes")
    shifted, temperature = data.draw(st.booleans(), "shifted"), data.draw(st.sampled_from([0.0, 1.5]), "temperature")
    rows = script(data.draw(st.integers(0, 10**6), "seed"), SIZE, MASK)
    given_options = {"block_length": data.draw(st.sampled_from([None, 3])), "lookahead": 4}
    prompts = [[1], [2, 3, 4], [5, 6]]
    seen: dict[int, list[dict[int, tuple[int, float]]]] = {b: [] for b in range(3)}

    def remember(step: lsp.decoding.Step) -> list:
        earlier = step.earlier(passes)
        for number, canvas, past in zip(step.numbers, step.canvases, earlier, strict=True):
            mine = seen[number]
            assert canvas.passes == len(mine)
            assert len(past) == min(passes, len(mine))
            for predicted, known in zip(past, reversed(mine), strict=False):
                assert {p: int(t) for p, t in enumerate(predicted.tokens) if t >= 0} == {
                    p: token for p, (token, _) in known.items()
                }
                for p, (_, odds) in known.items():
                    assert predicted.log_odds[p] == pytest.approx(odds, abs=1e-4)
            ids = np.where(canvas.masked, MASK, canvas.tokens)[: canvas.pass_end].tolist()
            logits = rows(ids)
            now = {int(p): oracle.score_row(logits[p - shifted].tolist(), {MASK}) for p in canvas.masks_in_pass}
            mine.append({p: (row.token, row.log_odds) for p, row in now.items()})
        return lsp.TopK(1)(step)

    options = lsp.Options(temperature=temperature, stop_early=False, **given_options)
    model = scripted(rows, SIZE, MASK, shifted=shifted)
    end = last(lsp.decode(model, prompts, 7, remember, VOCABULARY, options, batch_size=2))
    assert all(len(mine) == canvas.passes == 7 for mine, canvas in zip(seen.values(), end.canvases, strict=True))
    assert not any(canvas.history.predicted.before(7, 9) for canvas in end.canvases)  # dropped with the seat


def test_nothing_is_kept_or_scored_for_those_who_do_not_ask() -> None:
    model = scripted(script(3, SIZE, MASK), SIZE, MASK)
    scored = []

    def counted(step: lsp.decoding.Step) -> list:
        found = lsp.LongestStablePrefix(PrefixRule(floor=1.0, beta=1, snap=False))(step)
        scored.append((step.scored, sum(len(canvas.masks) for canvas in step.canvases)))
        assert not any(canvas.history.predicted.before(canvas.passes + 1, 1) for canvas in step.canvases)
        return found

    last(lsp.decode(model, [[1], [2]], 6, counted, VOCABULARY))
    assert all(rows == masks for rows, masks in scored)


@pytest.mark.parametrize(("temperature", "times"), [(0.0, 1), (1.0, 2)])
def test_what_is_scored_without_noise_is_not_scored_again(temperature: float, times: int) -> None:
    counted = []

    def choose(step: lsp.decoding.Step) -> list:
        out = lsp.Less()(step)
        counted.append(step.scored == times * sum(len(canvas.masks) for canvas in step.canvases))
        return out

    model = scripted(script(3, SIZE, MASK), SIZE, MASK)
    last(lsp.decode(model, [[1], [2]], 6, choose, VOCABULARY, lsp.Options(temperature=temperature)))
    assert counted
    assert all(counted)


@pytest.mark.parametrize("scheduler", [lsp.Less(), lsp.LongestStablePrefix(stable=2)], ids=lambda s: s.name)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_log_probabilities_are_those_of_what_was_committed(scheduler: lsp.Scheduler, temperature: float) -> None:
    rows = script(11, SIZE, MASK)
    arguments = {"max_new_tokens": 9, "vocabulary": VOCABULARY, "temperature": temperature, "cache": "none"}
    model = scripted(rows, SIZE, MASK)
    (out,) = lsp.generate(model, [[1, 2]], scheduler=scheduler, logprobs=True, lookahead=None, **arguments)
    known = [1, 2, *[MASK] * 9]
    for number in range(out.passes):
        logits = rows(known[: len(model.passes[number][0].tokens)])
        for i, at in enumerate(out.committed_in):
            if at == number:
                odds = oracle.log_odds(
                    float(logits[2 + i, out.tokens[i]]),
                    [float(z) for t, z in enumerate(logits[2 + i]) if t not in (MASK, out.tokens[i])],
                )
                assert out.logprobs[i] == pytest.approx(-math.log1p(math.exp(-odds)), abs=1e-4)
        for i, at in enumerate(out.committed_in):
            if at == number:
                known[2 + i] = out.tokens[i]


def test_a_log_gives_what_was_noted_up_to_the_first_gap() -> None:
    log: Log[str] = Log()
    for number, what in ((0, "a"), (1, "b"), (3, "d"), (4, "e")):
        log.note(number, what, keep=3)
    assert log.before(5, 2) == ["e", "d"]
    assert log.before(5, 9) == ["e", "d"]
    assert log.before(3, 2) == []  # 2 was not noted
    log.note(5, "f", keep=1)
    assert (log.before(6, 3), log.before(5, 1)) == (["f"], [])


@pytest.mark.abuse("schedulers")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lsp.Less(0.0), r"Invalid p: expected 0 < p <= 1, got 0\.0"),
        (lambda: lsp.Less(passes=0), "Invalid passes: expected an integer from 1"),
        (lambda: lsp.Klass(1.5), r"Invalid p: expected 0 < p <= 1, got 1\.5"),
        (lambda: lsp.Klass(kl=0.0), r"Invalid kl: expected kl > 0, got 0\.0"),
        (lambda: lsp.Klass(passes=0), "Invalid passes: expected an integer from 1"),
    ],
)
def test_parameters_that_make_no_sense_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.abuse("schedulers")
@pytest.mark.parametrize("call", [lsp.generate, lsp.trace])
def test_a_large_vocabulary_is_refused_before_the_first_pass(call: object) -> None:
    def never(ids: object) -> object:
        raise AssertionError("decoded")

    model = lsp.adapt(never, vocab_size=20000, mask_id=0)
    with pytest.raises(ValueError, match=r"expected a vocabulary of at most 16384 ids with Klass, .* got 20000 ids"):
        call(model, [[1]], scheduler="klass", max_new_tokens=4)

"""Log-probabilities of what is committed, against probabilities that are computed once more from recorded passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import lsp
from lsp.decoding.canvas import Canvas
from lsp.models import Transformer
from lsp.schedulers import NAMES, scheduler_of
from lsp_kernels import Vocabulary
from tests.lsp.checkpoints import FAMILIES, Case, ids_of
from tests.lsp.recorder import SCHEDULERS, Recorder, last, scripted
from tests.lsp.simulation import seated

CASES = {name: make() for name, make in FAMILIES.items()}
MASK = 7
OPTIONS = {
    "cached": {},
    "uncached": {"cache": "none"},
    "block cache": {"block_length": 4, "cache": "block"},
    "noise": {"temperature": 0.8},
    "noise, uncached": {"temperature": 3.0, "cache": "none"},
}
PROMPT = "Use 3, 5 and 7 to make 15.\n"


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def model(folder: Path) -> Transformer:
    return lsp.load(folder, dtype=torch.float32)


def brute_force(recorder: Recorder, canvas: Canvas, places: list[tuple[int, int]], shifted: bool) -> list[float]:
    """log softmax of the recorded logits, without the mask, at the pass that committed each token."""
    out = []
    for position in range(canvas.prompt_length, canvas.first_mask):
        at, seat = places[canvas.committed_in[position]]
        segment = recorder.passes[at][seat]
        logits = segment.logits[position - segment.held - shifted].double()
        logits[MASK] = -torch.inf
        out.append(float(logits.log_softmax(0)[canvas.tokens[position]]))
    return out


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seats", [4, 2], ids=["together", "two at a time"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_token_has_its_log_probability_in_the_pass_that_committed_it(
    case: Case, model: Transformer, name: str, options: dict, seats: int
) -> None:
    prompts, recorder = [ids_of(case, n, seed=n) for n in (9, 1, 17, 4)], Recorder(model)
    known = Vocabulary(case.vocab_size, range(0, 200, 5), range(100, 120))
    given = {"batch_size": seats, "logprobs": True}
    state = last(lsp.decode(recorder, prompts, 12, SCHEDULERS[name], known, lsp.Options(**options), **given))
    places = seated([canvas.passes for canvas in state.canvases], seats)
    for canvas, mine in zip(state.canvases, places, strict=True):
        found = canvas.logprobs[canvas.prompt_length : canvas.first_mask]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, brute_force(recorder, canvas, mine, case.shifted), rtol=1e-4, atol=2e-5)
        assert np.isnan(canvas.logprobs[: canvas.prompt_length]).all()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("scheduler", NAMES)
def test_a_generation_has_them_on_request_and_is_the_same_otherwise(scheduler: str, temperature: float) -> None:
    model, given = lsp.load("tiny"), {"max_new_tokens": 32, "scheduler": scheduler, "temperature": temperature}
    (plain,), (out,) = (lsp.generate(model, PROMPT, logprobs=wanted, **given) for wanted in (False, True))
    assert plain.logprobs is None
    assert (out.tokens, out.committed_in) == (plain.tokens, plain.committed_in)
    assert (out.logprobs.dtype, len(out.logprobs)) == (np.float32, len(out.tokens))
    assert (out.logprobs <= 0).all()
    assert len(np.unique(out.logprobs)) > 5


def test_a_stop_string_cuts_them_as_it_cuts_the_tokens() -> None:
    model, given = lsp.load("tiny"), {"max_new_tokens": 32, "logprobs": True, "scheduler": "fixed"}
    (whole,) = lsp.generate(model, PROMPT, **given)
    (cut,) = lsp.generate(model, PROMPT, stop=",", **given)
    assert 0 < len(cut.logprobs) == len(cut.tokens) < len(whole.tokens)
    assert cut.logprobs.tolist() == whole.logprobs[: len(cut.tokens)].tolist()


@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_they_do_not_depend_on_the_batch_a_graph_or_a_stream(batch_size: int | None) -> None:
    model, prompts = lsp.load("tiny"), [PROMPT, "Use 2, 9 and 14 to make 21.\n", "Use 1, 5 and 7 to make 13.\n"]
    given = {"max_new_tokens": 32, "logprobs": True, "temperature": 0.5}
    alone = [lsp.generate(model, prompt, seed=4 + i, **given)[0] for i, prompt in enumerate(prompts)]
    for graph in (False, True):
        together = lsp.generate(model, prompts, seed=4, batch_size=batch_size, graph=graph, **given)
        for one, other in zip(alone, together, strict=True):
            assert one.tokens == other.tokens
            np.testing.assert_allclose(other.logprobs, one.logprobs, rtol=1e-4, atol=1e-6)
    streamed = lsp.generation.Run(model, prompts[0], seed=4, **given)
    for _ in streamed:
        streamed.writers[0].piece()
    assert streamed.generations()[0].logprobs.tolist() == alone[0].logprobs.tolist()


def test_a_certain_token_has_zero_and_an_almost_certain_one_all_its_digits() -> None:
    rows = np.array([[0.0, 300.0, 0.0], [0.0, 40.0, 0.0]], dtype=np.float32)
    (sure,) = lsp.generate(scripted(lambda ids: rows, 3, 2), [[]], max_new_tokens=2, logprobs=True)
    assert sure.tokens == [1, 1]
    np.testing.assert_allclose(sure.logprobs, [0.0, -np.exp(-40.0)], rtol=1e-5, atol=1e-30)
    only = scripted(lambda ids: np.zeros((len(ids), 2), dtype=np.float32), 2, 1)
    assert lsp.generate(only, [[]], max_new_tokens=1, logprobs=True)[0].logprobs.tolist() == [0.0]


def test_a_token_that_was_drawn_against_all_odds_has_a_finite_one() -> None:
    model = scripted(lambda ids: np.tile(np.float32([0.0, 2000.0, 0.0]), (len(ids), 1)), 3, 2)
    (out,) = lsp.generate(model, [[]], max_new_tokens=20, temperature=1e6, logprobs=True)
    assert set(out.tokens) == {0, 1}
    np.testing.assert_allclose(out.logprobs, [-2000.0 if token == 0 else 0.0 for token in out.tokens], atol=1e-30)


def test_a_token_of_a_schedulers_own_has_none() -> None:
    """It was not proposed in that pass: another token, a position that was not asked for, or an older answer."""
    older = []

    def own(step: lsp.Step) -> list[lsp.Chosen]:
        (canvas,) = step.canvases
        if canvas.passes == 0:
            (stats,) = step.stats([canvas.masks])
            older.append(stats.tokens[2:3])
            return [(canvas.masks[:2], np.array([stats.tokens[0], (stats.tokens[1] + 1) % 4]))]
        return [(canvas.masks[:1], older[0])]

    model = scripted(lambda ids: np.eye(5, dtype=np.float32)[np.arange(len(ids)) % 4] * 3, 5, 4)
    (out,) = lsp.generate(model, [[0]], max_new_tokens=3, scheduler=own, vocabulary=Vocabulary(5), logprobs=True)
    assert out.tokens == [1, 3, 3]
    np.testing.assert_allclose(out.logprobs, [3 - np.log(np.exp(3) + 3), np.nan, np.nan], rtol=1e-5)


@pytest.mark.parametrize("scheduler", [scheduler_of("lsp"), scheduler_of("full")], ids=repr)
def test_an_error_keeps_those_of_what_was_committed(scheduler: lsp.Scheduler) -> None:
    calls = []

    def rows(ids: list[int]) -> np.ndarray:
        calls.append(0)
        return np.eye(5, dtype=np.float32)[np.arange(len(ids)) % 4] * (1.0 if len(calls) < 3 else np.nan)

    with pytest.raises(lsp.DecodingError) as caught:
        lsp.generate(scripted(rows, 5, 4), [[0]], max_new_tokens=6, scheduler=scheduler, logprobs=True)
    (canvas,) = caught.value.progress.canvases
    committed = canvas.logprobs[1:][~canvas.masked[1:]]
    np.testing.assert_allclose(committed, [1 - np.log(np.exp(1) + 3)] * 2, rtol=1e-5)

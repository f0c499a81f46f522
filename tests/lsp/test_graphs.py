"""Captured passes: the same tokens as the padded passes that they replay, and nothing that a CUDA graph cannot do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lsp
from lsp.decoding import graphs
from lsp.decoding.batch import Batch
from lsp.decoding.graphs import bucket
from lsp.decoding.scoring import Question
from lsp.models import Transformer
from lsp.models.adapted import UncachedWarning
from lsp_kernels import PrefixCache, Vocabulary
from lsp_kernels._pass import Operands, Tables
from tests.lsp.capture import CaptureError, capture
from tests.lsp.checkpoints import FAMILIES, Case, ids_of
from tests.lsp.recorder import SCHEDULERS, last

CASES = {name: FAMILIES[name]() for name in ("llada", "dream")}
OPTIONS = {
    "prefix": {},
    "refresh": {"refresh_every": 4},
    "refresh scattered": {"refresh_scattered": True},
    "block": {"block_length": 4, "cache": "block"},
    "dual": {"block_length": 4, "cache": "dual"},
    "sliding": {"block_length": 4, "blocks": "sliding", "cache": "dual", "recompute": 2},
    "lookahead": {"block_length": 4, "lookahead": 3},
    "window": {"lookahead": 5},
    "noise": {"temperature": 0.7},
    "noise in blocks": {"temperature": 2.0, "block_length": 4, "lookahead": 3},
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def model(folder: Path) -> Transformer:
    return lsp.load(folder, dtype=torch.float32)


class Counted:
    """The simulated capture, and how often it and its graphs ran."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, run: graphs.Replay, device: torch.device) -> graphs.Replay:
        self.captures += 1
        replay = capture(run, device)

        def counted() -> tuple[Tensor, ...]:
            self.replays += 1
            return replay()

        return counted


TOKEN_BY_TOKEN = {"max_new_tokens": 48, "scheduler": lsp.FixedPrefix(1)}  # so that there are passes to replay


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(graphs, "capture", counted)
    return counted


def decode(model: Transformer, case: Case, scheduler: object, new: int = 40, **options: object) -> list[tuple]:
    """What came of four ragged prompts, three of them at a time."""
    prompts = [ids_of(case, n, seed=n) for n in (9, 1, 17, 4)]
    known = Vocabulary(case.vocab_size, range(0, 200, 5), range(100, 104))
    given = {"seeds": [2**63, 5, -6, 5], "batch_size": 3, "logprobs": bool(options.pop("logprobs", False))}
    state = last(lsp.decode(model, prompts, new, scheduler, known, lsp.Options(**options), **given))
    logprobs = [None if c.logprobs is None else c.logprobs[c.prompt_length : c.end].tolist() for c in state.canvases]
    seen = [(c.run.tolist(), c.committed_in.tolist(), c.passes, c.positions) for c in state.canvases]
    return list(zip(seen, logprobs, strict=True))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_replayed_pass_is_the_padded_pass(
    model: Transformer, case: Case, captured: Counted, monkeypatch: pytest.MonkeyPatch, name: str, options: dict
) -> None:
    if isinstance(SCHEDULERS[name], lsp.Prophet) and ("lookahead" in options or options.get("cache") == "dual"):
        pytest.skip("Prophet looks at every mask")
    given = {"graph": True, "logprobs": "block_length" in options, **options}
    replayed = decode(model, case, SCHEDULERS[name], **given)
    monkeypatch.setattr(graphs, "capture", lambda run, device: run)
    assert replayed == decode(model, case, SCHEDULERS[name], **given)
    if options != OPTIONS["refresh scattered"]:  # where a scheduler that scatters computes everything anew
        assert captured.replays > captured.captures > 0


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_padding_changes_nothing(exact: Transformer, case: Case, options: dict) -> None:
    for scheduler in (lsp.LongestStablePrefix.paper(), lsp.Threshold(0.3), lsp.Less(0.1)):
        assert decode(exact, case, scheduler, graph=True, **options) == decode(exact, case, scheduler, **options)


def test_the_embedded_model_gives_the_same_texts(captured: Counted) -> None:
    model, prompts = lsp.load("tiny"), [f"Use {a}, 5 and 7 to make {a + 12}.\n" for a in range(1, 7)]
    plain = lsp.generate(model, prompts, max_new_tokens=48)
    assert [a.text for a in lsp.generate(model, prompts, max_new_tokens=48, graph=True)] == [a.text for a in plain]
    assert captured.replays > 0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_trace_asks_a_second_time_and_sees_the_same(captured: Counted, temperature: float) -> None:
    model, prompt = lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n"
    given = {"max_new_tokens": 48, "temperature": temperature}
    (replayed,), (plain,) = (lsp.trace(model, prompt, graph=graph, **given) for graph in (True, False))
    assert [step.written for step in replayed.steps] == [step.written for step in plain.steps]
    assert [step.tokens for step in replayed.steps] == [step.tokens for step in plain.steps]
    assert captured.replays > 0


@pytest.mark.real_gpu
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_on_a_gpu_a_replayed_pass_is_the_padded_pass(
    folder: Path, case: Case, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    model, given = lsp.load(folder, dtype=torch.bfloat16, device="cuda"), {"graph": True, "temperature": temperature}
    replayed = decode(model, case, lsp.LongestStablePrefix.paper(), **given)
    monkeypatch.setattr(graphs, "capture", lambda run, device: run)
    assert replayed == decode(model, case, lsp.LongestStablePrefix.paper(), **given)


def test_a_scheduler_that_asks_nothing_still_fills_the_cache(model: Transformer, case: Case, captured: Counted) -> None:
    def first(step: lsp.Step) -> list[lsp.Chosen]:
        return [(canvas.masks[:1], np.array([9 + canvas.passes])) for canvas in step.canvases]

    def then_the_paper(step: lsp.Step) -> list[lsp.Chosen]:
        return first(step) if step.canvases[0].passes % 2 else lsp.LongestStablePrefix.paper()(step)

    replayed = decode(model, case, then_the_paper, graph=True)
    assert captured.replays > 0
    assert replayed == decode(model, case, then_the_paper)


def test_an_error_keeps_what_was_committed(model: Transformer, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run: graphs.Replay, device: torch.device) -> graphs.Replay:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(graphs, "capture", fails)
    with pytest.raises(lsp.DecodingError, match=r"the model raised RuntimeError in pass \d: out of memory") as error:
        decode(model, case, lsp.FixedPrefix(2), graph=True)
    done = error.value.progress
    assert done.passes > 0
    assert [len(canvas.run) for canvas in done.canvases] == [2 * done.passes] * 3 + [0]


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100, 128, 129, 1000, 4097])
def test_a_bucket_holds_its_tokens_and_wastes_little(n: int) -> None:
    assert n <= bucket(n) <= max(16, n + 16, n * 5 // 4)
    assert bucket(bucket(n)) == bucket(n)


@pytest.mark.parametrize("options", [{"cache": "none"}, {"refresh_every": 1}])
def test_what_cannot_be_captured_is_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="Invalid graph: expected a cache, got none"):
        lsp.Options(graph=True, **options)
    with pytest.raises(TypeError, match="Invalid graph: expected True or False, got 1"):
        lsp.Options(graph=1)


def test_an_adapted_model_is_refused() -> None:
    with pytest.warns(UncachedWarning):
        model = lsp.adapt(torch.nn.Embedding(50, 50), vocab_size=50, mask_id=49)
    with pytest.raises(ValueError, match="Invalid graph: expected a model whose passes can be captured"):
        lsp.generate(model, [[1, 2]], graph=True)


# What a pass must not do, and what the simulation says of it.
def reads_a_value(hidden: Tensor) -> Tensor:
    return hidden * (1 if hidden.max().item() < 1e9 else 0)


def branches_on_a_value(hidden: Tensor) -> Tensor:
    return hidden if hidden.isfinite().all() else hidden * 0


def has_a_size_that_depends_on_values(hidden: Tensor) -> Tensor:
    return hidden + 0 * len(hidden.abs().nonzero())


def picks_by_a_mask(hidden: Tensor) -> Tensor:
    return hidden + 0 * hidden[hidden > 0].sum()


def brings_data_from_the_host(hidden: Tensor) -> Tensor:
    return hidden * torch.tensor([1.0])


@pytest.mark.parametrize(
    "broken",
    [
        reads_a_value,
        branches_on_a_value,
        has_a_size_that_depends_on_values,
        picks_by_a_mask,
        brings_data_from_the_host,
    ],
)
def test_the_simulation_refuses_what_cuda_refuses(
    captured: Counted, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Tensor], Tensor]
) -> None:
    whole = Transformer.run_layers
    monkeypatch.setattr(Transformer, "run_layers", lambda *arguments: broken(whole(*arguments)))
    with pytest.raises(lsp.DecodingError, match="CaptureError"):
        lsp.generate(lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n", max_new_tokens=48, graph=True)


def test_the_simulation_notices_lengths_that_are_uploaded_anew(
    captured: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Tables.filled

    def elsewhere(self: Tables, *arguments: object) -> Operands:
        return tuple(None if x is None else x.clone() for x in whole(self, *arguments))

    monkeypatch.setattr(Tables, "filled", elsewhere)
    with pytest.raises(lsp.DecodingError, match="memory freed since the capture"):
        lsp.generate(lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n", graph=True, **TOKEN_BY_TOKEN)


def test_noise_that_is_not_written_before_a_replay_shows(captured: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n"
    given = {"max_new_tokens": 48, "temperature": 9.0, "scheduler": lsp.FixedPrefix(1), "stop_early": False}
    whole = graphs.Inputs.fill

    def stale(self: graphs.Inputs, batch: Batch, question: Question, *sizes: int, **more: int) -> None:
        whole(self, batch, question._replace(noise=None), *sizes, **more)

    monkeypatch.setattr(graphs.Inputs, "fill", stale)
    replayed, plain = (lsp.generate(model, prompt, graph=graph, **given) for graph in (True, False))
    assert replayed[0].tokens != plain[0].tokens


def test_the_simulation_notices_a_number_that_was_captured(captured: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n"
    whole = Transformer.run_layers

    def at_the_time_of_the_capture(self: Transformer, tokens: Tensor, positions: Tensor, cache: PrefixCache) -> Tensor:
        frozen = cache._lengths[0]  # right in an eager pass
        return whole(self, tokens, frozen + torch.arange(len(tokens)), cache)

    monkeypatch.setattr(Transformer, "run_layers", at_the_time_of_the_capture)
    replayed, plain = (lsp.generate(model, prompt, graph=graph, **TOKEN_BY_TOKEN) for graph in (True, False))
    assert replayed[0].tokens != plain[0].tokens


def test_memory_of_a_graph_is_poisoned_but_for_its_outputs() -> None:
    given, kept = torch.ones(3), []

    def run() -> tuple[Tensor, ...]:
        inner = given + 1
        kept.append(inner)
        return (inner * 2,)

    (out,) = (replay := capture(run, torch.device("cpu")))()
    assert out.tolist() == [4.0] * 3
    given.fill_(2)
    replay()
    assert out.tolist() == [6.0] * 3
    assert kept[-1].isnan().all()


def test_a_capture_refuses_a_copy_to_the_host() -> None:
    with pytest.raises(CaptureError, match="expected no value from or for the host, got cpu"):
        capture(lambda: (torch.ones(3).cpu(),), torch.device("cpu"))

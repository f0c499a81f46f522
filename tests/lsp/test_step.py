"""What a step offers to schedulers, and that what nobody asks for is not computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import lsp
from lsp.decoding import scoring
from lsp.decoding.step import Stats
from lsp.schedulers import NAMES
from lsp_kernels import Vocabulary
from tests import oracle
from tests.lsp.recorder import last, scripted
from tests.lsp.simulation import script

SIZE, MASK = 13, 12
PROMPT = "Use 3, 5 and 7 to make 15.\n"
OPERATIONS = ("token_stats", "commit_prefix", "linear_token_stats", "linear_commit_prefix")


def all_stats(prompts: Sequence[list[int]], new: int, rows: object, entropy: bool, **options: Any) -> list[Stats]:
    """The statistics of every mask in the first pass."""
    seen: list[Stats] = []

    def look(step: lsp.Step) -> list[lsp.Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        seen.extend(step.stats(masks, entropy=entropy))
        return [(where, stats.tokens) for where, stats in zip(masks, seen, strict=True)]

    model = scripted(rows, SIZE, MASK)
    last(lsp.decode(model, prompts, new, look, Vocabulary(SIZE), lsp.Options(**options), range(len(prompts))))
    return seen


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_entropy_is_that_of_the_logits_without_noise(temperature: float) -> None:
    rows, prompts = script(3, SIZE, MASK), [[1, 2], [3]]
    for prompt, stats in zip(prompts, all_stats(prompts, 9, rows, True, temperature=temperature), strict=True):
        logits = rows([*prompt, *[MASK] * 9])[len(prompt) :, :MASK]
        np.testing.assert_allclose(
            stats.entropy, [oracle.entropy(row.tolist()) for row in logits], rtol=1e-5, atol=1e-6
        )
        assert len(np.unique(stats.entropy)) > 5


def test_the_other_statistics_are_the_same_with_entropy_and_without() -> None:
    rows, prompts = script(4, SIZE, MASK), [[1, 2], [3]]
    plain, more = (all_stats(prompts, 9, rows, entropy, temperature=0.7) for entropy in (False, True))
    for without, having in zip(plain, more, strict=True):
        assert without.entropy is None
        for name in ("tokens", "margins", "log_odds", "confidence"):
            assert getattr(without, name).tolist() == getattr(having, name).tolist()


def test_a_captured_pass_has_the_entropy_too() -> None:
    model, seen = lsp.load("tiny"), {False: [], True: []}

    def by_entropy(step: lsp.Step) -> list[lsp.Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        (stats,) = found = step.stats(masks, entropy=step.canvases[0].passes % 2 == 0)
        seen[graph].append(stats.entropy)
        return [(where[:2], stats.tokens[:2]) for where, stats in zip(masks, found, strict=True)]

    for graph in seen:
        lsp.generate(model, PROMPT, max_new_tokens=12, scheduler=by_entropy, graph=graph, stop_early=False)
    assert len(seen[True]) == len(seen[False]) == 6
    for number, (captured, plain) in enumerate(zip(seen[True], seen[False], strict=True)):
        if number % 2:
            assert captured is plain is None
        else:
            np.testing.assert_allclose(captured, plain, rtol=1e-4, atol=1e-6)


def test_a_captured_pass_can_be_asked_without_noise() -> None:
    model, seen = lsp.load("tiny"), {False: [], True: []}

    def clean_first(step: lsp.Step) -> list[lsp.Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        if step.canvases[0].passes % 2:  # then the noise of an earlier pass is still in the memory of the graph
            step.stats(masks)
        seen[graph].append(step.stats(masks, clean=True)[0].tokens.tolist())
        return [(where[:2], stats.tokens[:2]) for where, stats in zip(masks, step.stats(masks), strict=True)]

    for graph in seen:
        lsp.generate(model, PROMPT, max_new_tokens=12, scheduler=clean_first, graph=graph, temperature=5.0)
    assert len(seen[True]) > 2
    assert seen[True] == seen[False]


def spied(operation: Callable[..., Any], asked: list[dict[str, Any]]) -> Callable[..., Any]:
    """The operation; what it is asked for is written down."""

    def spy(*given: Any, **options: Any) -> Any:
        asked.append(options)
        return operation(*given, **options)

    return spy


@pytest.mark.parametrize("scheduler", NAMES)
def test_what_nobody_asks_for_is_not_computed(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither entropy nor noise, and of a rule no log-odds unless there are log-probabilities."""
    asked: list[dict[str, Any]] = []
    for name in OPERATIONS:
        monkeypatch.setattr(scoring, name, spied(getattr(scoring, name), asked))
    model = lsp.load("tiny")
    for logprobs, temperature in ((False, 0.0), (True, 0.0), (True, 0.5)):
        asked.clear()
        with torch.no_grad():
            lsp.generate(
                model, PROMPT, max_new_tokens=12, scheduler=scheduler, logprobs=logprobs, temperature=temperature
            )
        assert asked
        for options in asked:
            assert options.get("entropy", False) == (scheduler in ("dream", "entropy"))  # which go by it
            assert options.get("log_odds", logprobs) is logprobs
        noisy = [options["noise"] is not None for options in asked]
        expected = [False, True] if scheduler == "less" else [True]  # it also asks what would be best without noise
        assert noisy == expected * (len(asked) // len(expected)) if temperature else not any(noisy)

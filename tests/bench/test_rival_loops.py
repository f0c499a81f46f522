"""Fast-dLLM's loops, as the benchmarks run them, commit what their rules commit in ours."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import lsp
from bench.rival_loops import Choose, above, rival_loop, within
from bench.support import random_model
from lsp.decoding.clock import Clock
from lsp.models import Transformer
from lsp.tiny.tasks import LEVELS, generate
from lsp_kernels import Vocabulary

BLOCK = 16
RULES = {"threshold": (above(0.6), lsp.Threshold(0.6)), "factor": (within(1.0), lsp.Factor(1.0))}
CACHES = {"block": {"cached": True}, "dual": {"cached": True, "dual": True}}


class Case(NamedTuple):
    """Prompts of a model, and how many masks follow."""

    model: Transformer
    prompts: list[list[int]]
    new: int


def random_case() -> Case:
    """A model whose answers what a cache keeps would change."""
    torch.manual_seed(3)
    model = random_model(500, 64, 3, 2, 96)
    model.lm_head.weight.mul_(2.5)  # so that it is sure of some tokens
    return Case(model, torch.randint(2, 500, (3, 20)).tolist(), 40)


@pytest.fixture(scope="module", params=["arithmetic", "traces", "random"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "random":
        return random_case()
    model, level = lsp.load("tiny"), LEVELS[request.param][0]
    tokenizer, drawn = lsp.load_tokenizer(model), generate(request.param, 2, split="dev", seed=7, level=level)
    prompts = [tokenizer(each.prompt, add_special_tokens=False)["input_ids"] for each in drawn]
    return Case(model, prompts, 64 if request.param == "arithmetic" else 192)


def theirs(case: Case, choose: Choose, *numbers: int, **cache: bool) -> list[tuple]:
    """For each of these prompts the tokens, and the pass that committed each of them."""
    mask, prompts = case.model.config.mask_id, torch.tensor([case.prompts[number] for number in numbers])
    when = torch.full((len(prompts), case.new), -1)
    passes = rival_loop(case.model, prompts, case.new, choose, Clock(), block=BLOCK, **cache)
    for number, x in enumerate(passes):
        when[(x[:, -case.new :] != mask) & (when < 0)] = number
    return list(zip(x[:, -case.new :].tolist(), when.tolist(), strict=True))


def ours(case: Case, scheduler: lsp.Scheduler, cache: str) -> list[tuple]:
    options = lsp.Options(block_length=BLOCK, cache=cache, stop_early=False)
    known = Vocabulary(case.model.config.vocab_size)
    *_, end = lsp.decode(case.model, case.prompts, case.new, scheduler, known, options)
    return [(canvas.tokens[-case.new :].tolist(), canvas.committed_in[-case.new :].tolist()) for canvas in end.canvases]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cache", CACHES)
def test_every_token_is_committed_in_the_same_pass_as_in_ours(case: Case, cache: str, rule: str) -> None:
    choose, scheduler = RULES[rule]
    expected = ours(case, scheduler, cache)
    assert [theirs(case, choose, number, **CACHES[cache])[0] for number in range(len(case.prompts))] == expected
    assert all(max(when) < case.new - 4 for _, when in expected)  # several tokens a pass, or no rule would show


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cache", CACHES)
def test_sequences_that_wait_for_each_other_get_the_tokens_of_those_that_are_alone(cache: str, rule: str) -> None:
    case, choose, how = random_case(), RULES[rule][0], CACHES[cache]
    together = [tokens for tokens, _ in theirs(case, choose, 0, 1, 2, **how)]
    assert together == [theirs(case, choose, number, **how)[0][0] for number in range(3)]


def test_the_caches_give_different_texts() -> None:
    """Or the comparisons could not tell which of them was used."""
    case = random_case()
    dual, block, none = (
        [tokens for tokens, _ in theirs(case, above(0.6), 0, 1, 2, **how)]
        for how in (CACHES["dual"], CACHES["block"], {"cached": False})
    )
    assert dual != block != none != dual

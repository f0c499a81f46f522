"""A trace changes nothing that is committed, and tells the rule's steps as the oracle has them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lsp
from lsp.models import Transformer
from lsp.schedulers import NAMES
from lsp.tiny.tasks import TASKS, generate
from lsp.tracing import PassRecord, Trace, flip_rate
from lsp.tracing.recorder import rule_record
from lsp_kernels import PrefixRule, Vocabulary
from tests import oracle

SCHEDULERS = {name: make() for name, make in NAMES.items()} | {
    "paper": lsp.LongestStablePrefix(PrefixRule()),
    "plain": lsp.LongestStablePrefix(islands=None),
}
LOOPS = [{}, {"block_length": 8, "lookahead": 4}, {"cache": "block", "block_length": 8}, {"temperature": 0.5}]
LOOPS += [{"cache": "dual", "block_length": 8}]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return lsp.load("tiny")


@pytest.fixture(scope="module")
def example(model: Transformer) -> Trace:
    return lsp.trace(model, "Use 3, 5 and 7 to make 15.\n", max_new_tokens=24)[0]


def test_a_trace_refuses_log_probabilities_which_it_would_drop(model: Transformer) -> None:
    with pytest.raises(TypeError, match="Invalid logprobs: not supported in a trace"):
        lsp.trace(model, "Use 3, 5 and 7 to make 15.\n", max_new_tokens=4, logprobs=True)


def test_a_trace_names_the_seed_that_decodes_it_again(model: Transformer) -> None:
    given = {"max_new_tokens": 24, "temperature": 4.0}
    first, second = lsp.trace(model, ["Use 3, 5 and 7 to make 15.\n"] * 2, seed=5, **given)
    assert (first.seed, second.seed) == (5, 6)
    assert first.tokens != second.tokens
    assert lsp.trace(model, "Use 3, 5 and 7 to make 15.\n", seed=second.seed, **given) == [second]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", LOOPS, ids=str)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_commits_are_those_of_a_run_without_a_trace(model: Transformer, name: str, options: dict[str, object]) -> None:
    if name in ("prophet", "sched") and ("lookahead" in options or options.get("cache") == "dual"):
        pytest.skip("commits everything at once, so every mask is in the pass")
    if name == "sliding" and options.get("cache") == "block":
        pytest.skip("its blocks do not stay")
    prompts = [next(generate(task, 1, seed=5)).prompt for task in TASKS]
    arguments = {"max_new_tokens": 20, "scheduler": SCHEDULERS[name], **options}
    plain, traces = lsp.generate(model, prompts, **arguments), lsp.trace(model, prompts, **arguments)
    for out, trace in zip(plain, traces, strict=True):
        assert (trace.tokens, trace.committed_in, trace.text) == (out.tokens, out.committed_in, out.text)
        assert (trace.passes, trace.positions, trace.finished) == (out.passes, out.positions, out.finished)
        assert [step.index for step in trace.steps] == list(range(out.passes))
        begin = len(trace.prompt)
        for number, step in enumerate(trace.steps):
            inside = [p for p in step.chosen if p < begin + len(out.tokens)]
            assert inside == [begin + i for i, at in enumerate(out.committed_in) if at == number]
            assert set(step.chosen) <= set(step.masks) | set(step.masks_in_pass if name in ("prophet", "sched") else [])
            assert set(step.masks) <= set(step.masks_in_pass) <= set(range(step.begin, step.end))
        if name in ("lsp", "plain", "paper") and SCHEDULERS[name].islands is None:
            assert [step.chosen for step in trace.steps] == [s.masks[: s.rule.length] for s in trace.steps]


def test_margins_are_recorded_as_they_count(model: Transformer) -> None:
    rule, prompt = PrefixRule(floor=3.0, beta=1.0, snap=False), "Use 3, 5 and 7 to make 15.\n"
    plain, faded = (
        lsp.trace(model, prompt, max_new_tokens=24, scheduler=lsp.LongestStablePrefix(rule, fade=fade))[0]
        for fade in (0.0, 0.5)
    )
    assert (plain.fade, faded.fade) == (0.0, 0.5)
    whole, less = plain.steps[0], faded.steps[0]
    assert less.tokens == whole.tokens
    assert less.margins == pytest.approx([max(0.0, m - 0.5 * i) for i, m in enumerate(whole.margins)], rel=0.02)
    assert less.rule.prefix_min == list(np.minimum.accumulate(less.margins))
    assert less.rule.candidate == [m >= 3.0 for m in [*less.margins, 0.0]].index(False) < whole.rule.candidate


def test_every_mask_of_the_pass_is_scored(example: Trace) -> None:
    assert example.steps[0].masks_in_pass == list(range(len(example.prompt), len(example.prompt) + 24))
    for step in example.steps:
        assert len(step.masks_in_pass) == len(step.tokens) == len(step.margins) == len(step.confidence)


margins = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.5, math.inf]), min_size=1, max_size=12)
rules = st.builds(
    PrefixRule,
    alpha=st.sampled_from([0.1, 0.25]),
    beta=st.sampled_from([0.25, 0.5, 1.0]),
    min_length=st.integers(1, 3),
    window=st.integers(0, 4),
    floor=st.sampled_from([None, 0.5, 2.0]),
    snap=st.booleans(),
    no_delimiter=st.sampled_from(["minimum", "keep"]),
)


@given(margins, rules, st.data())
def test_the_steps_of_the_rule_are_those_of_the_oracle(
    margins: list[float], rule: PrefixRule, data: st.DataObject
) -> None:
    n = len(margins)
    tokens = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    vocabulary = Vocabulary(4, delimiters=[1], stops=[2])
    step = rule_record(rule, np.array(margins, dtype=np.float32), np.array(tokens), vocabulary)
    assert step.n == n
    assert step.length == oracle.select(margins, tokens, rule, {1}, {2})[0]
    assert step.candidate == oracle.candidate_length(margins, rule)
    ends = [j for j in range(1, step.candidate + 1) if tokens[j - 1] == 1 and step.candidate - j <= rule.window]
    assert step.snap == (max(ends) if ends and rule.snap else None)
    lowest = [min(margins[: j + 1]) for j in range(len(step.prefix_min))]
    assert step.prefix_min == [x if math.isfinite(x) else None for x in lowest]
    if rule.floor is None and step.tau is not None:  # the paper's run of margins above tau
        assert next(j for j in range(n + 1) if j == n or not margins[j] > step.tau) == step.candidate


def test_flips_are_counted_in_the_middle_of_decoding_on_masks_that_stay_open(example: Trace) -> None:
    def step(positions: list[int], tokens: list[int], chosen: list[int]) -> PassRecord:
        blank = example.steps[0]
        return dataclasses.replace(blank, masks_in_pass=positions, tokens=tokens, chosen=chosen)

    steps = [
        step([0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 9], [0]),
        step([1, 2, 3, 4, 5, 6, 7], [9, 9, 9, 9, 9, 9, 9], [1]),  # 1 of 8 committed: too early, none of these counts
        step([2, 3, 4, 5, 6, 7], [9, 9, 9, 9, 9, 1], [2, 3, 4, 5]),  # 2 of 8: one of six has changed
        step([6, 7], [9, 9], [6]),  # 6 of 8: one of two
        step([7], [1], [7]),  # 7 of 8: too late
    ]
    trace = dataclasses.replace(example, prompt=[], max_new_tokens=8, tokens=[0] * 8, steps=steps)
    assert flip_rate([trace]) == pytest.approx(2 / 8)
    answer = dataclasses.replace(trace, tokens=[0] * 7)  # the last is tail
    assert flip_rate([answer], tail=False) == pytest.approx(0)
    assert flip_rate([trace, trace]) == flip_rate([trace])
    assert math.isnan(flip_rate([]))


def test_a_model_without_a_tokenizer_is_traced_by_ids() -> None:
    import torch

    model = lsp.adapt(lambda ids: torch.randn(1, ids.size(1), 7), vocab_size=7, mask_id=6)
    (trace,) = lsp.trace(model, [1, 2], max_new_tokens=3)
    assert (trace.pieces, trace.text, len(trace.tokens)) == ({}, None, 3)

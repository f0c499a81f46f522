"""A scheduler describes itself: whoever decodes, traces or compares finds its name, options and words there."""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import replace

import pytest

import lsp
from lsp.evaluation.comparison import Setting
from lsp.models import Transformer
from lsp.schedulers import NAMES, scheduler_of
from lsp.tiny.tasks import TASKS, generate
from lsp_kernels import PrefixRule, Vocabulary

PROMPTS = [next(generate(task, 1, seed=11)).prompt for task in TASKS]
NEW = 48


@pytest.fixture(scope="module")
def model() -> Transformer:
    return lsp.load("tiny")


def costs(model: Transformer, **arguments: object) -> list[tuple]:
    out = lsp.generate(model, PROMPTS, max_new_tokens=NEW, **arguments)
    return [(answer.tokens, answer.passes, answer.positions, answer.options) for answer in out]


def outside_in(step: lsp.decoding.Step) -> list:
    ends = [canvas.masks[[0, -1]] if len(canvas.masks) > 1 else canvas.masks for canvas in step.canvases]
    return [(where, stats.tokens) for where, stats in zip(ends, step.stats(ends), strict=True)]


def test_a_function_with_the_options_of_a_scheduler_decodes_as_it_does(model: Transformer) -> None:
    default = lsp.LongestStablePrefix()
    same = lsp.Custom(lambda step: default(step), options=default.options)
    assert costs(model, scheduler=same) == costs(model)
    assert costs(model, scheduler=lambda step: default(step)) == costs(
        model, scheduler=default, lookahead=None, refresh_scattered=False
    )


def test_decode_and_generate_run_the_default_alike(model: Transformer) -> None:
    tokenizer = lsp.load_tokenizer(model)
    vocabulary = lsp.tokens.vocabulary(tokenizer, model.config)
    ids = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    (end,) = deque(lsp.decode(model, ids, NEW, lsp.LongestStablePrefix(), vocabulary), maxlen=1)
    found = [(canvas.run.tolist(), canvas.passes, canvas.positions) for canvas in end.canvases]
    assert found == [tuple(cost[:3]) for cost in costs(model)]


@pytest.mark.parametrize("name", NAMES)
def test_generate_trace_and_compare_read_the_options_of_a_scheduler(model: Transformer, name: str) -> None:
    scheduler = scheduler_of(name)
    (trace,) = lsp.trace(model, PROMPTS[0], max_new_tokens=8, scheduler=scheduler)
    (answer,) = lsp.generate(model, PROMPTS[0], max_new_tokens=8, scheduler=scheduler)
    assert lsp.Options(**trace.options) == answer.options == Setting.of("", scheduler).options == scheduler.options
    assert trace.name == scheduler.name
    assert trace.notes == [*scheduler.notes, *scheduler.options.notes]


def test_what_the_caller_gives_replaces_the_options_one_by_one(model: Transformer) -> None:
    preset = lsp.LongestStablePrefix().options
    assert preset == lsp.Options(lookahead=24, refresh_scattered=True)
    (answer,) = lsp.generate(model, PROMPTS[0], max_new_tokens=8, lookahead=None)
    assert answer.options == lsp.Options(refresh_scattered=True)
    (answer,) = lsp.generate(model, PROMPTS[0], max_new_tokens=8, cache="block", block_length=8)
    assert answer.options == lsp.Options(lookahead=24, cache="block", block_length=8)


def test_a_plain_function_has_a_name_and_options_and_can_be_given_others(model: Transformer) -> None:
    (trace,) = lsp.trace(model, PROMPTS[0], max_new_tokens=8, scheduler=outside_in)
    assert (trace.name, trace.notes, lsp.Options(**trace.options)) == ("Outside in", [], lsp.Options())
    other = lsp.Custom(outside_in, name="Ends", options=lsp.Options(block_length=4))
    (trace,) = lsp.trace(model, PROMPTS[0], max_new_tokens=8, scheduler=other)
    assert (trace.name, trace.notes) == ("Ends", ["block length 4"])
    assert scheduler_of(lambda step: []).name == "Custom"
    for wrong in (lsp.Full, 3):
        with pytest.raises(TypeError, match="Invalid scheduler: expected a scheduler, its name or a function"):
            lsp.Custom(wrong)
    with pytest.raises(TypeError, match=r"Invalid options of Outside in: expected lsp\.Options, got 3"):
        lsp.Custom(outside_in, options=3)


def test_an_object_may_describe_itself_without_a_base_class() -> None:
    class Mine:
        name, options = "My rule", lsp.Options(lookahead=8)

        def __call__(self, step: object) -> list:
            return outside_in(step)

    found = scheduler_of(Mine())
    assert (found.name, found.options) == ("My rule", lsp.Options(lookahead=8))


def test_a_class_with_a_key_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsp.Scheduler, "registered", dict(NAMES))

    class First(lsp.Scheduler):
        key = "first"

    assert lsp.Scheduler.registered["first"] is First


def test_the_defaults_are_one_set() -> None:
    default = lsp.LongestStablePrefix()
    assert scheduler_of(None) == scheduler_of("lsp") == default
    assert (default.rule, default.islands) == (replace(PrefixRule.guarded(), floor=3.0), 5.0)
    assert lsp.LongestStablePrefix(PrefixRule()) == scheduler_of("paper") == lsp.LongestStablePrefix.paper()
    assert lsp.LongestStablePrefix.paper().options == lsp.Options()
    assert lsp.LongestStablePrefix(PrefixRule(floor=3.0, beta=1.0)) == lsp.LongestStablePrefix(
        PrefixRule(floor=3.0, beta=1.0), 5.0, "best", fade=0.1
    )
    assert lsp.LongestStablePrefix(PrefixRule(floor=3.0, beta=0.5)).islands is None


def test_help_shows_the_arguments_that_generate_and_stream_pass_on() -> None:
    names = {"max_new_tokens", "scheduler", "tokenizer", "vocabulary", "delimiters", "stop", "seed"}
    assert names < set(inspect.signature(lsp.generate).parameters)
    assert names < set(inspect.signature(lsp.stream).parameters)


MARGINS = {1: 3.0, 2: 1.0, 3: 1.5, 4: 6.0, 5: 9.0}
FLOOR = PrefixRule(floor=2.0, beta=1.0, snap=False)


@pytest.mark.parametrize(
    ("scheduler", "reasons"),
    [
        (
            lsp.LongestStablePrefix(FLOOR, 5.0, "first", fade=0),
            [
                "The run of margins at or above the floor 2 has length 1 (L′).",
                "The first margin 1 is under the floor 2: 1 stable island with margins of at least 5 instead.",
                "The first margin 1 is under the floor 2: forced to commit the first token.",
            ],
        ),
        (
            lsp.LongestStablePrefix(PrefixRule(floor=4.0, beta=1.0, snap=False), islands=9.5, fade=0),
            ["The first margin 3 is under the floor 4: the largest margin instead, as there is no island."],
        ),
        (
            lsp.LongestStablePrefix(PrefixRule(floor=4.0, beta=1.0, min_length=3, snap=False), 9.5, fade=2.0),
            ["The first margin 3 is under the floor 4: forced to commit the first token."],
        ),
        (
            lsp.LongestStablePrefix(PrefixRule(0.2, 0.4, snap=False)),
            ["Between lo = 1 and hi = 2, the longest run above a threshold has length 1 (L′), with τ = 1."],
        ),
        (
            lsp.LongestStablePrefix(PrefixRule(0.2, 0.4, window=3)),
            [
                "Between lo = 1 and hi = 2, the longest run above a threshold has length 1 (L′), with τ = 1, "
                "no delimiter within 3."
            ],
        ),
        (lsp.FixedPrefix(2), ["The first 2 masks are taken."]),
        (lsp.Full(), ["The mask with the highest confidence is taken."]),
        (lsp.TopK(2), ["2 masks are taken, those with the highest confidence."]),
        (
            lsp.Threshold(0.99),
            ["The masks with a confidence of at least 0.99 are taken.", "No confidence reaches 0.99, so the best"],
        ),
        (lsp.Factor(0.5), ["The best 3 masks are taken: the last of them has a confidence of at least 0.875."]),
        (lsp.ScatteredMargin(), ["The masks with the largest margins are taken, as many as the candidate prefix"]),
        (lsp.Prophet((4.0, 4, 4)), ["The mean margin reaches the threshold, so everything is committed at once."]),
        (
            lsp.Frechet(),
            ["The best 4 masks are taken: they are right together with a probability that exceeds the risk"],
        ),
        (lsp.Frechet(0.9999), ["The best mask is taken."]),
        (lsp.EntropyBound(0.05), ["The 3 masks with the lowest entropies are taken: without the largest, their sum"]),
        (lsp.EntropyBound(0.0), ["The mask with the lowest entropy is taken."]),
        (
            lsp.LocalLeap(),
            ["The masks with a confidence of at least 0.9 are taken, and 1 more within 4 positions with"],
        ),
        (lsp.LocalLeap(0.99999), ["No confidence reaches 0.99999, so the best mask is taken."]),
        (lsp.SchED(4.0, 4.0), ["The mean margin reaches the threshold, so everything is committed at once."]),
        (
            lsp.Less(0.9),
            [
                "The best mask is taken: no other one is confident and unchanged.",
                "The masks with a confidence of at least 0.9 and the same token as before are taken.",
            ],
        ),
        (
            lsp.Klass(0.9, passes=1),
            [
                "The best mask is taken: no other one is confident and unchanged.",
                "The masks with a confidence of at least 0.9 whose distribution has hardly moved are taken.",
            ],
        ),
        (
            lsp.LongestStablePrefix(FLOOR, 5.0, "first", stable=2, fade=0),
            [
                "The first mask is taken: no prefix of tokens that were the best ones in 2 passes is longer.",
                "1 stable island of tokens that were the best ones in 2 passes, or a sure stop.",
            ],
        ),
        (
            lsp.LongestStablePrefix(FLOOR, 5.0, stable=2, fade=0),
            [
                "The largest margin is taken, as there is no island of tokens that were the best ones in 2 passes.",
                "The first mask is taken: no prefix of tokens that were the best ones in 2 passes is longer.",
                "1 stable island of tokens that were the best ones in 2 passes, a sure stop or, without one, the",
                "The largest margin is taken, as there is no island of tokens that were the best ones in 2 passes.",
            ],
        ),
        (
            lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=1.0, snap=False), None, stable=2, fade=0),
            ["The first mask is taken", "A prefix of 4 tokens that were the best ones in 2 passes."],
        ),
        (lsp.Prophet((9.0, 9, 9)), ["The mean margin is under the threshold, so the mask with the highest"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, lsp.Scheduler) else "",
)
def test_a_trace_says_why(scheduler: lsp.Scheduler, reasons: list[str]) -> None:
    import torch

    def forward(ids: torch.Tensor) -> torch.Tensor:
        z = torch.zeros(1, ids.size(1), 4)
        for p, margin in MARGINS.items():
            z[0, p, 1] = margin
        return z

    model = lsp.adapt(forward, vocab_size=4, mask_id=3)
    vocabulary = Vocabulary(4, delimiters=[2], suppress=[2, 3])
    (trace,) = lsp.trace(model, [0], max_new_tokens=5, scheduler=scheduler, vocabulary=vocabulary)
    for step, reason in zip(trace.steps, reasons, strict=False):
        assert step.reason.startswith(reason)
    assert len(trace.steps) >= len(reasons)

"""How the time of an answer grows with its length and with the prompt's: LLaDA's loop, Fast-dLLM's, and ours.

All but LLaDA's commit so many tokens a pass, from left to right. Passes of one kind differ little from one to the next,
so three of each kind are timed, the first, the middle and the last, and a parabola through them adds up all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.answers import FAST, LLADA, LSP, MODELS
from bench.flops import pass_flops
from bench.gpu.plain import PlainCache
from bench.ratios import Contender, Report, interleave
from bench.rival_loops import Kept, Plain
from bench.sizes import sized
from bench.support import RULE, random_model, softmax_confidence, vocabulary_of
from lsp.evaluation.growth import exponent
from lsp.models import Transformer
from lsp_kernels import linear_commit_prefix, linear_token_stats

STEP, BLOCK, LOOKAHEAD = sized((8, 32, 64), tiny=(4, 8, 8))
THRESHOLD = "Threshold, our loop"
WAYS = (LLADA, FAST, THRESHOLD, LSP)
ANSWERS = sized([64, 128, 256, 512, 1024], tiny=[8, 16])
PROMPTS = sized([64, 128, 256, 512, 1024], tiny=[8, 16])
ONE_PROMPT, ONE_ANSWER = sized((128, 128), tiny=(8, 8))


class Shape(NamedTuple):
    """A pass: its tokens, the frozen prefix before them, and the rows that are scored."""

    tokens: int
    prefix: int
    scored: int


Kind = list[tuple[Shape, int]]
"""Passes that differ little from one to the next, in their order, and how often each is made."""


def passes_of(way: str, prompt: int, new: int) -> list[Kind]:
    """Every pass of an answer."""
    whole = Shape(prompt + new, 0, prompt + new)
    if way == LLADA:
        return [[(whole, new)]]
    begins = range(0, new, BLOCK)
    if way == FAST:
        later = [(Shape(new - begin, prompt + begin, new - begin), BLOCK // STEP - 1) for begin in begins]
        return [[(whole, new // BLOCK)], later]
    if way == THRESHOLD:  # scattered in a block, so that nothing of it is frozen before the pass after its last one
        rest = []
        for begin in begins:
            left = [new - done for done in range(begin + STEP, min(begin + BLOCK, new - 1) + 1, STEP)]
            rest.append((Shape(new - begin, prompt + begin, sum(left) // len(left)), len(left)))
        return [[(Shape(prompt + new, 0, new), 1)], rest]
    seen = {done: min(LOOKAHEAD, new - done) for done in range(0, new, STEP)}  # masks past the lookahead stay out
    rest = [(Shape(STEP + seen[done], prompt + done - STEP, seen[done]), 1) for done in list(seen)[1:]]
    full = [(shape, count) for shape, count in rest if shape.scored == LOOKAHEAD]
    return [[(Shape(prompt + seen[0], 0, seen[0]), 1)], full, rest[len(full) :]]


def sampled(kind: Kind) -> list[tuple[Shape, float]]:
    """Three passes to time, and their weights: exact for a time that is a quadratic function of a pass's place."""
    if len(kind) < 3:
        return [(shape, float(count)) for shape, count in kind]
    places = [0, len(kind) // 2, len(kind) - 1]
    counts = np.array([count for _, count in kind])
    weights = counts @ np.vander(range(len(kind)), 3) @ np.linalg.inv(np.vander(places, 3))
    return [(kind[place][0], float(weight)) for place, weight in zip(places, weights, strict=True)]


class Passes:
    """Passes of one model, as rivals and as we compute them."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.plain, self.weight = model, Plain(model), model.lm_head.weight
        self.vocabulary = vocabulary_of(model.config.vocab_size)

    def ids(self, count: int) -> Tensor:
        return torch.randint(2, self.model.config.vocab_size, (count,))

    def rival(self, shape: Shape) -> Contender:
        held, ids = self.plain.empty(Kept, 1), self.ids(shape.tokens)[None]
        if shape.prefix:
            self.plain(self.ids(shape.prefix)[None], held)
        before = held.first(shape.prefix) if shape.prefix else self.plain.empty(PlainCache, 1)
        return lambda: softmax_confidence(self.plain.logits(self.plain(ids, before)))

    def ours(self, shape: Shape, score: Callable[[Tensor], object]) -> Contender:
        cache, ids = self.model.new_cache(1, shape.prefix + shape.tokens), self.ids(shape.prefix + shape.tokens)
        places = torch.arange(len(ids))
        if shape.prefix:
            border = torch.tensor([0, shape.prefix], dtype=torch.int32)
            self.model(ids[: shape.prefix], places[: shape.prefix], border, cache, [shape.prefix])
        ids, places, border = ids[shape.prefix :], places[shape.prefix :], torch.tensor([0, shape.tokens]).int()
        return lambda: score(self.model(ids, places, border, cache, [0])[-shape.scored :])

    def contender(self, way: str, shape: Shape) -> Contender:
        if way in (LLADA, FAST):
            return self.rival(shape)
        if way == THRESHOLD:
            return self.ours(shape, lambda hidden: linear_token_stats(hidden, self.weight))
        options = {"rule": RULE, "vocabulary": self.vocabulary}
        return self.ours(shape, lambda hidden: linear_commit_prefix(hidden, self.weight, **options))


@pytest.mark.parametrize("of", ["answer", "prompt"])
def bench_growth(benchmark, report: Report, of: str) -> None:
    torch.manual_seed(0)
    model = random_model(*MODELS["100 M"])
    lengths = ANSWERS if of == "answer" else PROMPTS
    sizes = [(ONE_PROMPT, n) if of == "answer" else (n, ONE_ANSWER) for n in lengths]
    passes = Passes(model)
    plans = {
        (way, size): [pair for kind in passes_of(way, *size) for pair in sampled(kind)]
        for way in WAYS
        for size in sizes
    }
    for (way, size), plan in plans.items():
        part, whole = (sum(pass_flops(model.config, *s) * n for s, n in each) for each in (plan, all_of(way, *size)))
        assert abs(part / whole - 1) < 0.01, (way, size, part / whole)  # what is timed stands for all
    wanted = {(way, shape) for (way, _), plan in plans.items() for shape, _ in plan}
    runs = {f"{way} {tuple(shape)}": passes.contender(way, shape) for way, shape in sorted(wanted)}
    times = interleave(runs, rounds=2)

    seconds = {
        way: [sum(times[f"{way} {tuple(s)}"] * n for s, n in plans[way, size]) for size in sizes] for way in WAYS
    }
    flops = {
        way: [sum(pass_flops(model.config, *s) * n for s, n in all_of(way, *size)) for size in sizes] for way in WAYS
    }
    given = f"a prompt of {ONE_PROMPT} tokens" if of == "answer" else f"an answer of {ONE_ANSWER} tokens"
    title = f"growth with the {of}: 100 M parameters, {given}, {STEP} tokens a pass"
    for place, length in enumerate(lengths):
        found = {way: seconds[way][place] for way in WAYS}
        facts = {"of": of, "length": length, "flops": {way: flops[way][place] for way in WAYS}}
        report.compare(title, f"{length} tokens", found, over=LSP, ours=WAYS[2:], **facts)
    for what, costs in (("seconds", seconds), ("operations", flops)):
        report.add(title, f"exponent of {what}", {way: fitted(lengths, costs[way]) for way in WAYS})
    benchmark.pedantic(lambda: None, rounds=1)


def all_of(way: str, prompt: int, new: int) -> Kind:
    return [pair for kind in passes_of(way, prompt, new) for pair in kind]


def fitted(lengths: list[int], costs: list[float]) -> str:
    slope, error = exponent([{"points": {"length": lengths, "cost": costs}}], "cost")
    return f"{slope:.2f} ± {error:.2f}"

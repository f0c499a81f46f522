"""Whole answers, decoded as LLaDA and Fast-dLLM do in loops of their own, and in ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import torch

import lsp
from bench.paths import Passes, Recorded, Replayed, dictated
from bench.rival_loops import above, best, rival_loop
from bench.sizes import sized
from bench.support import random_model
from lsp.decoding.clock import Clock
from lsp.generation import Run
from lsp.models import Transformer
from lsp.tiny.tasks import REGION, generate
from lsp.tiny.tasks.problem import Problem
from lsp_kernels import Vocabulary

NEW, BLOCK = sized((REGION, 32), tiny=(16, 8))
P = 0.9
LLADA, FAST, SAME, CACHED, LSP = (
    "LLaDA's loop", "Fast-dLLM's loop", "same Threshold, our loop", "Threshold, our cache", "LSP",
)  # fmt: skip
WAYS = (LLADA, FAST, SAME, CACHED, LSP)
OURS = (SAME, CACHED, LSP)
FAST_DLLM = lsp.Threshold(P).options.replaced_by({"block_length": BLOCK, "cache": "block", "stop_early": False})
SCHEDULERS = {
    SAME: (lsp.Threshold(P), FAST_DLLM),
    CACHED: (lsp.Threshold(P), lsp.Threshold(P).options),
    LSP: (lsp.LongestStablePrefix(), lsp.LongestStablePrefix().options),
}
MODELS = sized(
    {"100 M": (32000, 768, 8, 12, 2048), "300 M": (32000, 1024, 18, 16, 2816)},
    tiny={"100 M": (500, 64, 2, 2, 96), "300 M": (400, 64, 3, 2, 96)},
)  # vocabulary, width, layers, heads, MLP


@dataclass
class Outcome:
    """Of one or more decodes: seconds by part, passes of the model, and the tokens after each prompt."""

    parts: dict[str, float] = field(default_factory=dict)
    passes: int = 0
    tokens: list[list[int]] = field(default_factory=list)

    def add(self, clock: Clock, passes: int, tokens: list[list[int]]) -> None:
        self.parts = {part: self.parts.get(part, 0.0) + seconds for part, seconds in clock.seconds.items()}
        self.passes += passes
        self.tokens += tokens


@dataclass(frozen=True)
class Answers:
    """Prompts of one length and a model that answers them; with `paths` it commits what was recorded elsewhere."""

    model: Transformer
    prompts: list[list[int]]
    vocabulary: Vocabulary
    paths: Mapping[str, Mapping[int, Passes]] | None = None

    def run(self, way: str, groups: Sequence[Sequence[int]], limit: int | None = None) -> Outcome:
        """The prompts of each group are one batch; of each decode only the first `limit` passes, if given."""
        out = Outcome()
        for numbers in groups:
            decode = self._ours if way in SCHEDULERS else self._rival
            decode(way, numbers, limit, out)
        return out

    def _ours(self, way: str, numbers: Sequence[int], limit: int | None, out: Outcome) -> None:
        scheduler, options = SCHEDULERS[way]
        choose = Replayed(scheduler, self._paths(way, numbers)) if self.paths else scheduler
        prompts = [self.prompts[number] for number in numbers]
        states = lsp.decode(self.model, prompts, NEW, choose, self.vocabulary, options)
        state = last(states, limit and limit + 1)  # the first state is before any pass
        out.add(state.clock, state.passes, [each.tokens[each.prompt_length :].tolist() for each in state.canvases])

    def _rival(self, way: str, numbers: Sequence[int], limit: int | None, out: Outcome) -> None:
        prompts, clock = torch.tensor([self.prompts[number] for number in numbers]), Clock()
        choose = best if way == LLADA else above(P)
        if self.paths and way == FAST:
            choose = dictated(choose, list(self._paths(SAME, numbers).values()), NEW)
        passes = rival_loop(self.model, prompts, NEW, choose, clock, block=BLOCK, cached=way == FAST)
        count, tokens = list(enumerate(islice(passes, limit), 1))[-1]
        out.add(clock, count, tokens[:, prompts.size(1) :].tolist())

    def _paths(self, way: str, numbers: Sequence[int]) -> dict[int, Passes]:
        assert self.paths is not None
        return {place: self.paths[way][number] for place, number in enumerate(numbers)}


def last(states: Iterator, limit: int | None) -> lsp.Progress:
    return list(islice(states, limit))[-1]


def agreement(ours: Sequence[Sequence[int]], exact: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The shares of answers and of tokens that are the same; a token is compared with the one at its place.

    Examples
    --------
    >>> agreement([[1, 2, 3], [4]], [[1, 2, 3], [4, 5]])
    (0.5, 0.8)
    """
    places = sum(max(map(len, pair)) for pair in zip(ours, exact, strict=True))
    equal = sum(a == b for pair in zip(ours, exact, strict=True) for a, b in zip(*pair, strict=False))
    return sum(a == b for a, b in zip(ours, exact, strict=True)) / len(exact), equal / max(places, 1)


class Embedded:
    """The embedded model and problems of a task whose prompts are equally long."""

    def __init__(self, task: str, count: int) -> None:
        self.model, drawn = lsp.load("tiny"), list(generate(task, 60 * count, split="dev", seed=7))
        self.run = Run(self.model, [problem.prompt for problem in drawn], max_new_tokens=NEW)
        ids = [self.run.tokenizer(problem.prompt, add_special_tokens=False)["input_ids"] for problem in drawn]
        length, _ = Counter(map(len, ids)).most_common(1)[0]
        chosen = [number for number, each in enumerate(ids) if len(each) == length][:count]
        self.problems: list[Problem] = [drawn[number] for number in chosen]
        self.answers = Answers(self.model, [ids[number] for number in chosen], self.run.vocabulary)

    def texts(self, outcome: Outcome) -> list[str]:
        """Up to the first stop, as a loop without an early stop is read."""
        stops = self.model.config.stop_ids
        ends = [next((i for i, token in enumerate(each) if token in stops), None) for each in outcome.tokens]
        cut = (each[:end] for each, end in zip(outcome.tokens, ends, strict=True))
        return [self.run.tokenizer.decode(each, skip_special_tokens=True) for each in cut]

    @cached_property
    def paths(self) -> dict[str, dict[int, Passes]]:
        """What each of our schedulers commits in which pass."""
        out = {}
        for way, (scheduler, options) in SCHEDULERS.items():
            recorded = Recorded(scheduler)
            last(lsp.decode(self.model, self.answers.prompts, NEW, recorded, self.answers.vocabulary, options), None)
            out[way] = dict(recorded.paths)
        return out


def large(name: str, count: int) -> Answers:
    """A model of this size with random weights, which makes the same passes as the embedded model."""
    embedded, shape = Embedded("arithmetic", count), MODELS[name]
    torch.manual_seed(0)
    model = random_model(*shape)
    length = len(embedded.answers.prompts[0])
    prompts = torch.randint(2, shape[0], (count, length)).tolist()
    vocabulary = Vocabulary(shape[0], delimiters=range(10, 400), stops=[1], suppress=[0])
    return Answers(model, prompts, vocabulary, embedded.paths)

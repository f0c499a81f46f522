"""The decoding loop: its own cost, and what each scheduler's passes cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

import lsp
from bench.flops import pass_flops
from bench.ratios import Report, amount, interleave
from bench.sizes import sized
from bench.support import random_model
from lsp.decoding import Chosen, Step
from lsp.models import ModelConfig, Transformer
from lsp.tiny.tasks import REGION, generate, verify
from lsp_kernels import PrefixRule, Vocabulary

PROMPT, NEW = sized((128, 256), tiny=(12, 24))
MODEL = sized((32000, 768, 12, 12, 2048), tiny=(500, 64, 2, 2, 96))  # vocabulary, width, layers, heads, MLP
VOCABULARY, SHAPE = MODEL[0], f"{MODEL[2]} x {MODEL[1]}"
PASSES, REPEATED = sized((8, 5), tiny=(2, 1))
PROBLEMS = sized(12, tiny=1)
FAST_DLLM = {"block_length": 16, "cache": "block"}
CONTENDERS = {
    "Full": (lsp.Full(), {"block_length": 16}),
    "Full, uncached": (lsp.Full(), {"block_length": 16, "cache": "none"}),
    "fixed prefix 4": (lsp.FixedPrefix(4), {}),
    "LSP, paper": (lsp.LongestStablePrefix.paper(), {}),
    "LSP, guarded": (lsp.LongestStablePrefix(PrefixRule.guarded(), None, fade=0.0), {}),
    "LSP, the default": (lsp.LongestStablePrefix(), {}),
    "scattered margin": (lsp.ScatteredMargin(PrefixRule()), {}),
    "Threshold 0.9": (lsp.Threshold(0.9), {}),
    "Threshold 0.9, Fast-dLLM's cache": (lsp.Threshold(0.9), FAST_DLLM),
    "Factor 1": (lsp.Factor(1.0), {}),
    "Prophet": (lsp.Prophet(), {}),
}


@pytest.fixture(scope="module")
def model() -> Transformer:
    """LLaDA-shaped, random."""
    torch.manual_seed(0)
    return random_model(*MODEL)


class Counted:
    """A scheduler that counts the floating-point operations of its passes."""

    def __init__(self, scheduler: lsp.Scheduler, config: ModelConfig) -> None:
        self.scheduler, self.config, self.flops = scheduler, config, 0
        self.options = scheduler.options

    def __call__(self, step: Step) -> list[Chosen]:
        chosen = self.scheduler(step)
        for canvas in step.canvases:
            self.flops += pass_flops(self.config, canvas.pass_length, canvas.frozen, 0)
        self.flops += pass_flops(self.config, 0, 0, step.scored)
        return chosen


@pytest.mark.parametrize("batch", sized([1, 8], tiny=[1, 2]))
@pytest.mark.parametrize("name", ["lsp", "threshold"])
def bench_host_share(benchmark, report: Report, model: Transformer, name: str, batch: int) -> None:
    """Loop and scheduling are a small part of a step, here of the first passes after a prompt."""
    vocabulary = Vocabulary(VOCABULARY, delimiters=range(10, 400), stops=[1], suppress=[0])
    prompts = torch.randint(2, VOCABULARY, (batch, PROMPT)).tolist()
    scheduler = lsp.schedulers.NAMES[name]()

    def some_passes() -> dict[str, float]:
        states = lsp.decode(model, prompts, NEW, scheduler, vocabulary)
        state = list(islice(states, PASSES + 1))[-1]
        assert state.passes == PASSES
        return state.clock.seconds

    runs = [some_passes() for _ in range(1 + REPEATED)][1:]
    seconds = {part: median(run[part] for run in runs) / PASSES for part in runs[0]}
    share = median(run["host"] / sum(run.values()) for run in runs)
    times = {"model and head": seconds["model"] + seconds["head"], "loop and scheduling": seconds["host"]}
    cells = {part: amount(seconds[part]) for part in ("model", "head")} | {"share of the loop": f"{100 * share:.2f} %"}
    title, case = f"a step of the loop, {SHAPE}, prompt {PROMPT}, {NEW} masks", f"{name}, batch {batch}"
    report.compare(title, case, times, over="model and head", ours=["loop and scheduling"], cells=cells)
    report.target(f"loop and scheduling, {case}, share of a step in %", 100 * share, at_most=1)
    benchmark.pedantic(some_passes, rounds=1)


class Heard:
    """The passes that a model made, to be made again without the loop around them."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.passes, self.last = model, [], torch.empty(0)

    def hear(self, run: Callable[[], object]) -> None:
        """Runs something that makes passes on one cache."""
        hook = self.model.register_forward_hook(self._note)
        try:
            run()
        finally:
            hook.remove()
        cache = self.passes[0][3]
        self.cache = self.model.new_cache(cache.batch, cache.capacity)

    def _note(self, _: Transformer, given: tuple[Any, ...], out: Tensor) -> None:
        *tokens, cache, append = given
        held = [now - new for now, new in zip(cache.frozen, append, strict=True)]
        self.passes.append((*tokens, cache, append, held))
        self.last = out

    def again(self) -> Tensor:
        """The hidden states of the last pass."""
        out = self.last
        self.cache.refresh()
        for *tokens, _, append, held in self.passes:
            if less := {row: n for row, n in enumerate(held) if n < self.cache.frozen[row]}:
                self.cache.truncate(less)
            out = self.model(*tokens, self.cache, append)
        return out


@pytest.mark.parametrize("batch", sized([1, 8], tiny=[1, 2]))
@pytest.mark.parametrize("task", sized(["arithmetic", "code"], tiny=["arithmetic"]))
def bench_generate(benchmark, report: Report, task: str, batch: int) -> None:
    """`lsp.generate` from texts to texts, over the passes that it makes, made without loop, head and tokenizer."""
    tiny, prompts = lsp.load("tiny"), [problem.prompt for problem in generate(task, batch, split="dev", seed=7)]
    tokenizer = lsp.load_tokenizer(tiny)

    def whole() -> object:
        return lsp.generate(tiny, prompts, max_new_tokens=REGION, tokenizer=tokenizer)

    heard = Heard(tiny)
    heard.hear(whole)
    assert torch.equal(heard.again(), heard.last)
    times = interleave({"lsp.generate": whole, "its passes alone": heard.again}, rounds=31)
    case = f"embedded model, {task}, batch {batch}"
    cells = {"passes": str(len(heard.passes))}
    over, title = "its passes alone", "lsp.generate over its passes alone"
    report.compare(title, case, times, over=over, ours=["lsp.generate"], cells=cells)
    report.target(f"lsp.generate / its passes alone, {case}", times["lsp.generate"] / times[over], at_most=1.3)
    benchmark.pedantic(whole, rounds=3)


def bench_sampling(benchmark, report: Report, model: Transformer) -> None:
    """Sampled steps beside greedy ones on the same work: every mask is scored, the first eight are committed."""
    vocabulary = Vocabulary(VOCABULARY, delimiters=range(10, 400), suppress=[0])
    prompt, rule = torch.randint(2, VOCABULARY, (PROMPT,)).tolist(), PrefixRule.guarded()

    def eight(step: Step) -> list[Chosen]:
        found = zip(step.canvases, step.commit(rule), strict=True)
        return [(canvas.masks[:8], prefix.tokens[:8]) for canvas, prefix in found]

    def tokens(temperature: float, logprobs: bool = False) -> list[int]:
        options = lsp.Options(temperature=temperature)
        states = lsp.decode(model, [prompt], NEW, eight, vocabulary, options, logprobs=logprobs)
        return list(islice(states, PASSES + 1))[-1].canvases[0].run.tolist()

    assert tokens(0.0) == tokens(1e-9) == tokens(1e-9, logprobs=True)
    contenders = {
        "greedy": lambda: tokens(0.0),
        "greedy, log-probabilities": lambda: tokens(0.0, logprobs=True),
        "temperature 0.7": lambda: tokens(0.7),
        "temperature 0.7, log-probabilities": lambda: tokens(0.7, logprobs=True),
    }
    times = interleave(contenders)
    times = {name: seconds / PASSES for name, seconds in times.items()}
    case = f"{SHAPE}, prompt {PROMPT}, {NEW} masks, {VOCABULARY} ids"
    report.compare("a sampled step", case, times, over="greedy", ours=list(times))
    benchmark.pedantic(contenders["temperature 0.7"], rounds=1)


@pytest.mark.parametrize("task", ["arithmetic", "code"])
def bench_schedulers(benchmark, report: Report, task: str) -> None:
    """The embedded model answers problems: passes, positions and operations beside the measured time."""
    tiny = lsp.load("tiny")
    problems = list(generate(task, PROBLEMS, split="dev", seed=7))
    prompts = [problem.prompt for problem in problems]
    tokenizer = lsp.load_tokenizer(tiny)

    def run(name: str) -> list[lsp.Generation]:
        scheduler, options = CONTENDERS[name]
        return lsp.generate(tiny, prompts, max_new_tokens=REGION, scheduler=scheduler, tokenizer=tokenizer, **options)

    times = interleave({name: (lambda name=name: run(name)) for name in CONTENDERS}, rounds=3)
    times = {name: seconds / len(problems) for name, seconds in times.items()}
    title = f"{task}, embedded model, a problem on average"
    report.compare(f"{title}: time", f"{len(problems)} problems", times, over="Full", ours=list(times))
    for name, (scheduler, options) in CONTENDERS.items():
        counted = Counted(scheduler, tiny.config)
        answers = lsp.generate(tiny, prompts, max_new_tokens=REGION, scheduler=counted, tokenizer=tokenizer, **options)
        solved = sum(verify(problems, [answer.text for answer in answers]))
        n = len(problems)
        cells = {
            "solved": f"{solved}/{n}",
            "passes": f"{sum(a.passes for a in answers) / n:.1f}",
            "positions": f"{sum(a.positions for a in answers) / n:.0f}",
            "MFLOP": f"{counted.flops / n / 1e6:.0f}",
            "ms": f"{times[name] * 1e3:.1f}",
            "speed-up": f"{times['Full'] / times[name]:.1f}x",
        }
        report.add(title, name, cells)
    benchmark.pedantic(run, args=("LSP, guarded",), rounds=1)

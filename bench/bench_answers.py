"""End to end: an answer of the embedded model and of models with random weights, by every way, with its parts."""

from __future__ import annotations

import pytest
import torch

from bench.answers import FAST, LLADA, LSP, MODELS, NEW, OURS, SAME, WAYS, Answers, Embedded, Outcome, large
from bench.gpu.plain import PlainCache
from bench.memory import MEASURABLE, peak_of
from bench.ratios import Report, amount, interleave
from bench.rival_loops import Plain
from bench.sizes import sized
from lsp.tiny.tasks import verify

PROMPTS = sized(8, tiny=2)
FEW = sized(4, tiny=2)  # passes of LLaDA's loop on large models: all of its passes are alike
TITLE = "an answer, end to end"
SIZES = ("2 M", *MODELS)


def groups_of(batch: int, count: int) -> list[list[int]]:
    return [list(range(begin, min(begin + batch, count))) for begin in range(0, count, batch)]


def shares(outcome: Outcome) -> dict[str, float]:
    """Of the time: in the model, in the head with what is computed from logits, and in the loop around them."""
    whole = sum(outcome.parts.values())
    return {part: seconds / whole for part, seconds in outcome.parts.items()}


def measure(benchmark, report: Report, case: str, answers: Answers, groups: list[list[int]], few: int | None) -> None:
    """Times every way and shows its parts; of LLaDA's loop the first `few` passes stand for all."""
    outcomes: dict[str, Outcome] = {}
    answered = sum(map(len, groups))

    def run(way: str) -> None:
        outcomes[way] = answers.run(way, groups, few if way == LLADA else None)

    times = interleave({way: (lambda way=way: run(way)) for way in WAYS}, rounds=5, seconds=3.0)
    whole = NEW * len(groups) / outcomes[LLADA].passes  # one token in each of its passes
    for way in WAYS:
        scale = whole if way == LLADA else 1.0
        times[way] *= scale / answered
        passes = outcomes[way].passes * scale / len(groups)
        cells = {"time per answer": amount(times[way]), "passes": f"{passes:.1f}"}
        cells |= {part: f"{100 * share:.0f} %" for part, share in shares(outcomes[way]).items()}
        report.add(f"{TITLE}: passes of a batch, and time by part", f"{case}: {way}", cells)
    report.compare(TITLE, case, times, over=FAST, ours=OURS, parts={way: shares(o) for way, o in outcomes.items()})
    report.target(f"{case}: Fast-dLLM's loop / the same Threshold in our loop", times[FAST] / times[SAME], at_least=1)
    benchmark.pedantic(run, args=(LSP,), rounds=1)


@pytest.mark.parametrize("batch", [1, PROMPTS])
@pytest.mark.parametrize("task", sized(["arithmetic", "code"], tiny=["arithmetic"]))
def bench_embedded(benchmark, report: Report, task: str, batch: int) -> None:
    """The embedded model; Fast-dLLM's loop writes the same as its scheduler in ours."""
    embedded, groups = Embedded(task, PROMPTS), groups_of(batch, PROMPTS)
    outcomes = {way: embedded.answers.run(way, groups) for way in WAYS}
    assert outcomes[FAST].tokens == outcomes[SAME].tokens
    case = f"2 M, {task}, batch {batch}"
    solved = {way: sum(verify(embedded.problems, embedded.texts(outcomes[way]))) for way in WAYS}
    report.add(f"{TITLE}: solved", case, {way: f"{count}/{PROMPTS}" for way, count in solved.items()})
    measure(benchmark, report, case, embedded.answers, groups, None)


def check(answers: Answers) -> None:
    """The rivals' passes compute what ours do."""
    prompt = torch.tensor(answers.prompts[0])
    ours = answers.model(prompt, torch.arange(len(prompt)), torch.tensor([0, len(prompt)], dtype=torch.int32))
    plain = Plain(answers.model)
    theirs = plain(prompt[None], plain.empty(PlainCache, 1))
    assert (ours - theirs[0]).square().mean() < 1e-6 * ours.square().mean()


@pytest.mark.parametrize("batch", [1, PROMPTS])
@pytest.mark.parametrize("size", MODELS)
def bench_large(benchmark, report: Report, size: str, batch: int) -> None:
    """Random weights, and the passes that the embedded model made on stories."""
    answers, groups = large(size, PROMPTS), [list(range(batch))]
    check(answers)
    measure(benchmark, report, f"{size}, batch {batch}", answers, groups, FEW)


SETUP = """
from bench import sizes
size, way, batch, sizes.measuring = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "real"
from bench.answers import Embedded, large
answers = Embedded("arithmetic", batch).answers if size == "2 M" else large(size, batch)
answers.run("LSP", [[0]], 1)  # so that libraries and threads are there already
"""
CODE = 'answers.run(way, [range(batch)], 2 if way == "LLaDA\'s loop" else None)'


@pytest.mark.skipif(not MEASURABLE, reason="no /proc")
@pytest.mark.parametrize("batch", sized([1, PROMPTS], tiny=[1]))
@pytest.mark.parametrize("size", sized(SIZES, tiny=SIZES[:1]))
def bench_memory_of_answers(benchmark, report: Report, size: str, batch: int) -> None:
    """What decoding adds to the memory of a process at its peak: caches, logits and what passes need."""
    ways = sized((LLADA, FAST, LSP), tiny=(LSP,))
    mode = sized("real", tiny="tiny")
    peaks = {way: float(peak_of(SETUP, CODE, size, way, str(batch), mode)[0]) for way in ways}
    report.compare(f"{TITLE}: peak memory", f"{size}, batch {batch}", peaks, over=ways[-1], ours=[LSP], unit="bytes")
    benchmark.pedantic(lambda: None, rounds=1)

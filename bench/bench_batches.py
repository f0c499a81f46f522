"""More prompts than a batch holds: a batch that is kept full, against groups that wait for their slowest sequence."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from itertools import chain

import pytest

import lsp
from bench.memory import MEASURABLE, peak_of
from bench.ratios import Report, amount, interleave
from bench.sizes import sized
from lsp.generation import Run
from lsp.models import Transformer
from lsp.tiny.tasks import REGION, TASKS, generate, region

PROBLEMS, SEATS, NEW = sized((64, 8, REGION), tiny=(5, 2, 8))
SCHEDULERS = {"LSP, the default": "lsp", "Threshold 0.9": "threshold"}
KEPT_FULL, GROUPS, AT_ONCE, ONE_BY_ONE = "kept full", "group by group", "all at once", "one by one"


def mixed_prompts(n: int) -> list[str]:
    """Problems of the tasks whose answers fit, in a random order, so that long and short ones are in every group."""
    tasks = [task for task in TASKS if region(task) == REGION]
    each = -(-n // len(tasks))
    prompts = [problem.prompt for task in tasks for problem in generate(task, each, split="dev", seed=7)]
    random.Random(0).shuffle(prompts)
    return prompts[:n]


def calls(way: str, prompts: Sequence[str], seats: int) -> list[tuple[Sequence[str], int | None]]:
    """The prompts and the batch size of every call."""
    groups = [prompts[i : i + seats] for i in range(0, len(prompts), seats)]
    return {
        KEPT_FULL: [(prompts, seats)],
        GROUPS: [(group, None) for group in groups],
        AT_ONCE: [(prompts, None)],
        ONE_BY_ONE: [(prompts, 1)],
    }[way]


def decode(model: Transformer, way: str, prompts: Sequence[str], seats: int, **arguments: object) -> list[Run]:
    """The runs of all calls, at their end."""
    runs = []
    for chosen, batch_size in calls(way, prompts, seats):
        runs.append(Run(model, chosen, batch_size=batch_size, **arguments))
        deque(runs[-1], maxlen=0)
    return runs


def cells_of(runs: Sequence[Run], rows: int) -> dict[str, str]:
    """What a way costs, by counts: passes of the loop, positions, and how many of the rows of its passes are used."""
    answers = list(chain(*(run.generations() for run in runs)))
    passes, positions = sum(run.state.passes for run in runs), sum(answer.positions for answer in answers)
    used = sum(answer.passes for answer in answers) / (passes * rows)
    return {
        "passes": f"{passes}",
        "positions": f"{positions}",
        "positions a pass": f"{positions / passes:.0f}",
        "rows in use": f"{100 * used:.0f} %",
    }


@pytest.mark.parametrize("name", SCHEDULERS)
def bench_batches(benchmark, report: Report, name: str) -> None:
    """The same texts; then the time of each way, and how many passes of the loop it needs."""
    model, prompts = lsp.load("tiny"), mixed_prompts(PROBLEMS)
    first = Run(model, prompts[:1], scheduler=SCHEDULERS[name], max_new_tokens=NEW)
    shared = {"vocabulary": first.vocabulary, "tokenizer": first.tokenizer}  # made once, and not timed
    arguments = {"scheduler": SCHEDULERS[name], "max_new_tokens": NEW, **shared}
    rows = {KEPT_FULL: SEATS, GROUPS: SEATS, AT_ONCE: PROBLEMS, ONE_BY_ONE: 1}

    runs = {way: decode(model, way, prompts, SEATS, **arguments) for way in rows}
    texts = {way: [out.text for run in runs[way] for out in run.generations()] for way in rows}
    assert all(texts[way] == texts[ONE_BY_ONE] for way in rows)

    times = interleave(
        {way: (lambda way=way: decode(model, way, prompts, SEATS, **arguments)) for way in rows}, rounds=3
    )
    title = f"{name}: {PROBLEMS} mixed problems on the embedded model, batches of {SEATS}"
    report.compare(f"{title}: time", name, times, over=KEPT_FULL, ours=[KEPT_FULL])
    for way in times:
        report.add(title, way, cells_of(runs[way], rows[way]))
    report.target(f"{name}: time of {GROUPS} / {KEPT_FULL}", times[GROUPS] / times[KEPT_FULL], at_least=1)
    benchmark.pedantic(decode, args=(model, KEPT_FULL, prompts, SEATS), kwargs=arguments, rounds=1)


SETUP = """
import lsp
from bench.bench_batches import decode, mixed_prompts

def noting(batch, capacity):
    cache = new_cache(batch, capacity)
    sizes.append(cache.nbytes)
    return cache

way, n, seats, new = sys.argv[1], *map(int, sys.argv[2:])
sizes, model, prompts = [], lsp.load("tiny"), mixed_prompts(n)
new_cache, model.new_cache = model.new_cache, noting
decode(model, "one by one", prompts[:1], 1, max_new_tokens=new)  # so that libraries and kernels are in memory already
"""
CODE = """
decode(model, way, prompts, seats, max_new_tokens=new)
print(max(sizes[1:]))
"""


@pytest.mark.skipif(not MEASURABLE, reason="no /proc")
def bench_memory_of_batches(benchmark, report: Report) -> None:
    """What decoding adds to the memory of a process at its peak, and the K/V cache in it."""
    sizes = [str(size) for size in (PROBLEMS, SEATS, NEW)]
    found = {KEPT_FULL: benchmark.pedantic(peak_of, args=(SETUP, CODE, KEPT_FULL, *sizes), rounds=1)}
    found |= {way: peak_of(SETUP, CODE, way, *sizes) for way in (GROUPS, AT_ONCE)}
    title = f"memory of decoding {PROBLEMS} mixed problems, batches of {SEATS}"
    peaks = {way: float(peak) for way, (peak, _) in found.items()}
    caches = {f"cache, {way}": amount(int(cache), "bytes") for way, (_, (cache,)) in found.items()}
    report.compare(title, "peak", peaks, over=KEPT_FULL, ours=[KEPT_FULL], unit="bytes", cells=caches)

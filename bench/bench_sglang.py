"""A step of SGLang's algorithms beside the fused ones: time and peak memory. Needs SGLang; see docs/scale.md."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.limits import read_bytes
from bench.memory import MEASURABLE, peak_of
from bench.ratios import LIMIT, Report, interleave
from bench.sizes import measuring, sized

pytestmark = pytest.mark.sglang

SIZE, BLOCK = sized((157184, 32), tiny=(700, 8))  # LLaDA2.x
BATCHES = sized([1, 8], tiny=[2])
MASK = SIZE - 1
PAIRS = [("LowConfidence", "FusedLowConfidence"), ("JointThreshold", "FusedJointThreshold")]
TITLE = "a step of SGLang: times over reading the logits, peak memory"


def algorithm(name: str, block: int, mask: int) -> Any:
    from sglang.srt.dllm.algorithm import get_algorithm
    from sglang.srt.dllm.config import DllmConfig
    from sglang.srt.plugins import load_plugins

    load_plugins()
    return get_algorithm(DllmConfig(name, {}, block, mask, 8))


def pass_of(blocks: int, block: int, size: int, mask: int) -> tuple[SimpleNamespace, torch.Tensor]:
    """Blocks that are all masks, and logits of which about half are sure."""
    torch.manual_seed(0)
    logits = torch.randn(blocks * block, size)
    rows = torch.arange(len(logits))
    logits[rows, rows * 7 % mask] += 5 + 13 * (rows % 2)
    ids = torch.full((blocks * block,), mask)
    return SimpleNamespace(batch_size=blocks, input_ids=ids, dllm_prompt_mask=None), logits


def step(found: Any, forward: SimpleNamespace, logits: torch.Tensor, mask: int) -> torch.Tensor:
    """One step on blocks of masks."""
    forward.input_ids.fill_(mask)
    found.step(forward, logits, found.init_step_state(forward))
    return forward.input_ids.clone()


SETUP = """
import sys
from bench.bench_sglang import algorithm, pass_of, step
name, *numbers = sys.argv[1:]
blocks, block, size = map(int, numbers)
found = algorithm(name, block, size - 1)
forward, logits = pass_of(1, block, size, size - 1)
step(found, forward, logits, size - 1)  # what the first call sets up
forward, logits = pass_of(blocks, block, size, size - 1)
"""


@cache
def peak(name: str, blocks: int) -> str:
    """Peak memory of a step in a process of its own; SGLang takes half a minute to start, so of large batches alone."""
    if not (measuring and MEASURABLE) or blocks < max(BATCHES):
        return "-"
    numbers = map(str, (blocks, BLOCK, SIZE))
    found, _ = peak_of(SETUP, "step(found, forward, logits, size - 1)", name, *numbers)
    return f"{found / 2**20:.1f} MiB"


@pytest.mark.parametrize("blocks", BATCHES)
@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=[theirs for theirs, _ in PAIRS])
def bench_step(benchmark, report: Report, theirs: str, ours: str, blocks: int) -> None:
    forward, logits = pass_of(blocks, BLOCK, SIZE, MASK)
    found = {name: algorithm(name, BLOCK, MASK) for name in (theirs, ours, "LongestStablePrefix")}
    runs = {name: lambda one=one: step(one, forward, logits, MASK) for name, one in found.items()}
    assert torch.equal(runs[ours](), runs[theirs]())
    assert 0 < (runs[ours]() == MASK).sum() < blocks * BLOCK
    times = interleave({LIMIT: lambda: read_bytes(logits), **runs}, rounds=15)
    labels = {theirs: "theirs", ours: "fused"}
    cells = {f"{labels.get(name, name)}: peak": peak(name, blocks) for name in runs}
    times = {labels.get(name, name): seconds for name, seconds in times.items()}
    case = f"{theirs}, {blocks} x {BLOCK} x {SIZE}"
    report.compare(TITLE, case, times, over=LIMIT, ours=["fused", "LongestStablePrefix"], cells=cells)
    report.target(f"{case}, theirs / fused", times["theirs"] / times["fused"], at_least=4)
    benchmark.extra_info.update(times)
    benchmark.pedantic(runs[ours], rounds=3)

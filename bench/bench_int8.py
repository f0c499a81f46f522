"""Weights of the blocks in 8 bits: what they change in the answers, in the time of a pass and in memory."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

import lsp
from bench.answers import agreement
from bench.memory import MEASURABLE, peak_of
from bench.passes import LARGE, PREFIX, SHAPE, SUFFIXES, WIDE, a_pass, masked_ids
from bench.ratios import Report, interleave
from bench.sizes import sized
from bench.support import random_model
from lsp.models import Transformer
from lsp.models.linear import Int8Linear
from lsp.tiny.tasks import REGION, generate, verify

PROBLEMS = sized(60, tiny=2)
TASKS = sized(["arithmetic", "countdown", "sudoku", "code"], tiny=["arithmetic"])
HELD = EXACT, USUAL, EIGHT = "float32", "bfloat16", "int8"
SHAPES = {"model": SHAPE, "wide": WIDE}


@pytest.mark.parametrize("task", TASKS)
def bench_answers_in_int8(benchmark, report: Report, task: str) -> None:
    """The embedded model decodes problems with the default scheduler; what is not int8 there is float16."""
    problems = list(generate(task, PROBLEMS, split="dev", seed=7))
    prompts, found = [problem.prompt for problem in problems], {}
    for name in HELD:
        model = lsp.load("tiny", dtype=name)
        assert any(isinstance(module, Int8Linear) for module in model.modules()) == (name == EIGHT)
        found[name] = lsp.generate(model, prompts, max_new_tokens=REGION, batch_size=8)
    exact = [answer.tokens for answer in found[EXACT]]
    for name, answers in found.items():
        same, tokens = agreement([answer.tokens for answer in answers], exact)
        cells = {
            f"same answer as {EXACT}": f"{100 * same:.0f} %",
            "same token at a place": f"{100 * tokens:.1f} %",
            "solved": f"{sum(verify(problems, [answer.text for answer in answers]))}/{len(problems)}",
            "passes": f"{sum(answer.passes for answer in answers) / len(problems):.2f}",
        }
        report.add("answers of the embedded model by the dtype of its weights", f"{task}: {name}", cells)
    benchmark.pedantic(lambda: None, rounds=1)


def in_int8(model: Transformer) -> Transformer:
    """A copy whose blocks hold 8 bits."""
    out = copy.deepcopy(model)
    out.quantise()
    for name, module in out.named_modules():
        if isinstance(module, Int8Linear):
            module.fill(slice(None), model.get_parameter(f"{name}.weight"))
    return out


@pytest.mark.parametrize("shape", SHAPES)
def bench_pass_in_int8(benchmark, report: Report, shape: str) -> None:
    """The time of a pass, and how far its hidden states are from those of float32: random weights add up errors."""
    exact = random_model(*SHAPES[shape])
    usual = copy.deepcopy(exact).bfloat16()
    models = {EXACT: exact, USUAL: usual, EIGHT: in_int8(usual)}
    for suffix in SUFFIXES:
        ids = masked_ids(PREFIX + suffix, masks=suffix)
        runs = {name: a_pass(model, ids, PREFIX) for name, model in models.items()}
        truth = runs[EXACT]().double()
        errors = {name: (run().double() - truth).norm() / truth.norm() for name, run in runs.items()}
        assert errors[EIGHT] < min(6 * errors[USUAL], 0.7), errors  # no time is printed for a wrong result
        cells = {f"error of {name}": f"{100 * float(errors[name]):.2f} %" for name in (USUAL, EIGHT)}
        times = interleave(runs, rounds=7)
        case = f"{exact.config.n_layers} layers x {exact.config.d_model}, {suffix} tokens"
        title = f"a pass at prefix {PREFIX} by the dtype of its weights"
        report.compare(title, case, times, over=USUAL, ours=[EIGHT], cells=cells, tokens=suffix)
    benchmark.pedantic(runs[EIGHT], rounds=3)


SETUP = """
import lsp
lsp.load("tiny")  # so that the libraries are in memory already
"""
CODE = """
model = lsp.load(sys.argv[1], dtype=sys.argv[2])
print(sum(x.nbytes for x in (*model.parameters(), *model.buffers())))
"""


@pytest.mark.skipif(not MEASURABLE, reason="no /proc")
def bench_memory_in_int8(benchmark, report: Report, tmp_path: Path) -> None:
    """The peak of a process that loads a checkpoint of 1 GB, half of which is embedding and LM head."""
    lsp.save_pretrained(random_model(*LARGE).bfloat16(), tmp_path)
    peaks, held = {}, {}
    for dtype in (USUAL, EIGHT):
        peak, (size,) = peak_of(SETUP, CODE, str(tmp_path), dtype)
        peaks[dtype], held[f"held in {dtype}"] = float(peak), f"{int(size) / 2**20:.0f} MiB"
    title = "peak memory of loading by the dtype of the blocks' weights"
    report.compare(title, "1 GB in bfloat16", peaks, over=USUAL, ours=[EIGHT], unit="bytes", cells=held)
    benchmark.pedantic(lambda: None, rounds=1)

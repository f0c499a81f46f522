"""A pass of the transformer: where its time goes, how it grows, and what loading a checkpoint costs in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile, record_function

import lsp
from bench.memory import MEASURABLE, peak_of
from bench.ratios import Report, interleave
from bench.sizes import sized
from bench.support import random_model
from lsp.models import Transformer

PREFIX = sized(512, tiny=24)
SHAPE = sized((2048, 768, 12, 12, 2304), tiny=(500, 64, 2, 2, 96))  # vocabulary, width, layers, heads, MLP
LARGE = sized((126464, 1024, 20, 8, 3072), tiny=(1000, 64, 2, 2, 96))  # the same of the checkpoint that is loaded
SUFFIXES = sized([64, 256], tiny=[16])
GROWING_SUFFIXES = sized((16, 32, 64, 128, 256, 512), tiny=(4, 8))
GROWING_PREFIXES = sized((0, 256, 512, 1024, 2048), tiny=(0, 8))
LOADED_TO = sized(("bfloat16", "float32"), tiny=("bfloat16",))
KINDS = {
    "GEMM": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("lsp::suffix_attention",),
    "norm": ("aten::pow", "aten::sum", "aten::mean", "aten::rsqrt", "aten::div_", "aten::_fused_rms_norm"),
    "silu": ("aten::silu",),
    "rotation, products, sums": ("aten::mul", "aten::mul_", "aten::addcmul_", "aten::add", "aten::add_"),
    "embedding": ("aten::index_select", "aten::embedding"),
}
PASS = "one pass"
PASSES = sized(10, tiny=1)


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    return random_model(*SHAPE)


def masked_ids(length: int, masks: int) -> Tensor:
    """Random ids; the last `masks` are masked."""
    ids = torch.randint(2, SHAPE[0], (length,))
    ids[length - masks :] = 0
    return ids


def a_pass(model: Transformer, tokens: Tensor, prefix: int) -> Callable[[], Tensor]:
    """A pass over the tokens after a frozen prefix; the prefix was frozen by a pass over all tokens."""
    cache = model.new_cache(1, max(prefix, 1))
    positions = torch.arange(len(tokens))
    model(tokens, positions, torch.tensor([0, len(tokens)], dtype=torch.int32), cache, append=[prefix])
    border = torch.tensor([0, len(tokens) - prefix], dtype=torch.int32)
    tokens, positions = tokens[prefix:], positions[prefix:]
    return lambda: model(tokens, positions, border, cache, append=[0])


@pytest.mark.parametrize("suffix", SUFFIXES)
def bench_profile(benchmark, report: Report, model: Transformer, suffix: int) -> None:
    """Share of each kind of operation in the whole time of a pass, Python and the profiler's own cost included."""
    ids = masked_ids(PREFIX + suffix, masks=suffix)
    run = a_pass(model, ids, PREFIX)
    check(model, run(), ids)
    for _ in range(3):
        run()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(PASSES):
            with record_function(PASS):
                run()
    events = {event.key: event for event in found.key_averages()}
    shares = shares_of(events)
    title = f"a pass of {SHAPE[2]} layers x {SHAPE[1]} at prefix {PREFIX}, float32: share of its time"
    report.add(title, f"{suffix} tokens", {kind: f"{100 * share:.1f} %" for kind, share in shares.items()})
    spent = shares["GEMM"] + shares["attention"]
    report.target(f"share of GEMMs and attention in a pass of {suffix} tokens", spent, at_least=0.9)
    benchmark.pedantic(run, rounds=5)


def check(model: Transformer, hidden: Tensor, ids: Tensor) -> None:
    """No time is printed for a wrong result; the right one is that of an uncached pass in float64."""
    wide = copy.deepcopy(model).double()
    everything = wide(ids, torch.arange(len(ids)), torch.tensor([0, len(ids)], dtype=torch.int32))
    expected = wide.lm_head(everything[-len(hidden) :])
    assert len(set(expected.argmax(-1).tolist())) > len(expected) // 8
    error = (model.lm_head(hidden).double() - expected).square().mean().sqrt()
    assert error < 1e-3 * expected.std(), float(error)


def shares_of(events: dict[str, FunctionEventAvg]) -> dict[str, float]:
    whole = events[PASS].cpu_time_total
    times = {key: event.self_cpu_time_total for key, event in events.items()}
    shares = {kind: sum(times.get(key, 0.0) for key in keys) / whole for kind, keys in KINDS.items()}
    shares["Python"] = times[PASS] / whole
    return shares | {"other": 1 - sum(shares.values())}


def bench_growth(benchmark, report: Report, model: Transformer) -> None:
    """A pass grows with its suffix and hardly with the prefix."""
    for title, pairs in {
        f"growth with the suffix at prefix {PREFIX}": [(PREFIX, n) for n in GROWING_SUFFIXES],
        f"growth with the prefix at suffix {SUFFIXES[0]}": [(p, SUFFIXES[0]) for p in GROWING_PREFIXES],
    }.items():
        runs = {pair: a_pass(model, masked_ids(sum(pair), masks=pair[1]), pair[0]) for pair in pairs}
        times = interleave({str(pair): run for pair, run in runs.items()}, rounds=7)
        first = times[str(pairs[0])]
        cells = {f"{p} + {n}": f"{times[str((p, n))] / first:.2f}" for p, n in pairs}
        report.add(f"{title}: time as a multiple of the first", f"{first * 1e3:.1f} ms", cells)
    benchmark.pedantic(runs[pairs[0]], rounds=5)


SETUP = """
import lsp
from lsp.models.loading import parts
from safetensors.torch import load_file

how, folder, dtype = sys.argv[1:]
lsp.load("tiny")  # so that the libraries are in memory already
"""
CODE = """
if how == "ours":
    model = lsp.load(folder, dtype=dtype)
else:
    model = lsp.load(folder, dtype=dtype, device="meta").to_empty(device="cpu")
    held = load_file(f"{folder}/model.safetensors")
    for part in parts(model):
        model.get_parameter(part.parameter)[part.rows].copy_(held[part.name])
print(sum(parameter.nbytes for parameter in model.parameters()))
"""


@pytest.mark.skipif(not MEASURABLE, reason="no /proc")
def bench_load(benchmark, report: Report, tmp_path: Path) -> None:
    """Peak of a process that loads 1 GB, a quarter of it in one tensor, as a multiple of the weights it ends with."""
    lsp.save_pretrained(random_model(*LARGE).bfloat16(), tmp_path)
    title = "loading a random checkpoint: peak memory as a multiple of the weights"
    for dtype in LOADED_TO:
        peaks, weights = {}, 0
        for how in ("ours", "load_file and copy"):
            peak, (size,) = peak_of(SETUP, CODE, how, str(tmp_path), dtype)
            peaks[how], weights = peak / int(size), int(size)
        cells = {"weights": f"{weights / 1e9:.2f} GB"} | {how: f"{peak:.2f}" for how, peak in peaks.items()}
        report.add(title, f"bfloat16 files to {dtype}", cells)
        report.target(f"peak of loading to {dtype} / weights", peaks["ours"], at_most=1.15)
    benchmark.pedantic(lsp.load, args=(tmp_path,), kwargs={"dtype": "bfloat16"}, rounds=2)

"""A pass of the transformer: where its time goes, how it grows, and what loading a checkpoint costs in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile, record_function

import lsp
from bench.ratios import Report, interleave
from lsp.models import Transformer
from tests.lsp.checkpoints import Case, ids_of, llada

PREFIX = 512
SHAPE = {"d_model": 768, "n_layers": 12, "n_heads": 12, "n_kv_heads": 12, "mlp_hidden_size": 2304}
KINDS = {
    "GEMM": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("lsp::suffix_attention",),
    "norm": ("aten::pow", "aten::sum", "aten::mean", "aten::rsqrt", "aten::div_", "aten::_fused_rms_norm"),
    "silu": ("aten::silu",),
    "rotation, products, sums": ("aten::mul", "aten::mul_", "aten::addcmul_", "aten::add", "aten::add_"),
    "embedding": ("aten::index_select", "aten::embedding"),
}
PASS = "one pass"
PASSES = 10


@pytest.fixture(scope="module")
def case() -> Case:
    return llada(std=0.1, embedding_size=2048, vocab_size=2048, max_sequence_length=8192, **SHAPE)


@pytest.fixture(scope="module")
def model(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    return lsp.load(case.save(tmp_path_factory.mktemp("model")), dtype=torch.float32)


def a_pass(model: Transformer, ids: list[int], prefix: int) -> Callable[[], Tensor]:
    """A pass over what follows a frozen prefix, which was frozen in the same context."""
    cache = model.new_cache(1, max(prefix, 1))
    tokens, positions = torch.tensor(ids), torch.arange(len(ids))
    model(tokens, positions, torch.tensor([0, len(ids)], dtype=torch.int32), cache, append=[prefix])
    border = torch.tensor([0, len(ids) - prefix], dtype=torch.int32)
    tokens, positions = tokens[prefix:], positions[prefix:]
    return lambda: model(tokens, positions, border, cache, append=[0])


@pytest.mark.parametrize("suffix", [64, 256])
def bench_profile(benchmark, report: Report, case: Case, model: Transformer, suffix: int) -> None:
    """Share of each kind of operation in the whole time of a pass, Python and the profiler's own cost included."""
    ids = ids_of(case, PREFIX + suffix, masks=suffix)
    run = a_pass(model, ids, PREFIX)
    check(case, model, run(), ids)
    for _ in range(3):
        run()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(PASSES):
            with record_function(PASS):
                run()
    events = {event.key: event for event in found.key_averages()}
    shares = shares_of(events)
    title = f"a pass of 12 layers x 768 at prefix {PREFIX}, float32: share of its time"
    report.add(title, f"{suffix} tokens", {kind: f"{100 * share:.1f} %" for kind, share in shares.items()})
    spent = shares["GEMM"] + shares["attention"]
    report.target(f"share of GEMMs and attention in a pass of {suffix} tokens", spent, at_least=0.9)
    benchmark.pedantic(run, rounds=5)


def check(case: Case, model: Transformer, hidden: Tensor, ids: list[int]) -> None:
    """No time is printed for a result that is not right."""
    expected = case.logits(ids)[-len(hidden) :]
    assert len(set(expected.argmax(-1).tolist())) > len(expected) // 8
    error = (model.lm_head(hidden).double() - expected).square().mean().sqrt()
    assert error < 1e-3 * expected.std(), float(error)


def shares_of(events: dict[str, FunctionEventAvg]) -> dict[str, float]:
    whole = events[PASS].cpu_time_total
    times = {key: event.self_cpu_time_total for key, event in events.items()}
    shares = {kind: sum(times.get(key, 0.0) for key in keys) / whole for kind, keys in KINDS.items()}
    shares["Python"] = times[PASS] / whole
    return shares | {"other": 1 - sum(shares.values())}


def bench_growth(benchmark, report: Report, case: Case, model: Transformer) -> None:
    """A pass grows with its suffix and hardly with the prefix."""
    for title, pairs in {
        f"growth with the suffix at prefix {PREFIX}": [(PREFIX, n) for n in (16, 32, 64, 128, 256, 512)],
        "growth with the prefix at suffix 64": [(p, 64) for p in (0, 256, 512, 1024, 2048)],
    }.items():
        runs = {pair: a_pass(model, ids_of(case, sum(pair), masks=pair[1]), pair[0]) for pair in pairs}
        times = interleave({str(pair): run for pair, run in runs.items()}, rounds=7)
        first = times[str(pairs[0])]
        cells = {f"{p} + {n}": f"{times[str((p, n))] / first:.2f}" for p, n in pairs}
        report.add(f"{title}: time as a multiple of the first", f"{first * 1e3:.1f} ms", cells)
    benchmark.pedantic(runs[pairs[0]], rounds=5)


PEAK = """
import sys, lsp
from lsp.models.load import parts
from safetensors.torch import load_file

def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

how, folder, dtype = sys.argv[1:]
lsp.load("tiny")  # the libraries are in memory
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
if how == "ours":
    model = lsp.load(folder, dtype=dtype)
else:
    model = lsp.load(folder, dtype=dtype, device="meta").to_empty(device="cpu")
    held = load_file(f"{folder}/model.safetensors")
    for part in parts(model):
        model.get_parameter(part.parameter)[part.rows].copy_(held[part.name])
size = sum(parameter.nbytes for parameter in model.parameters())
print((status("VmHWM") - before) / size, size)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc")
def bench_load(benchmark, report: Report, tmp_path: Path) -> None:
    """Peak of a process that loads 1 GB, a quarter of it in one tensor, as a multiple of the weights it ends with."""
    size = {"embedding_size": 126464, "vocab_size": 126464, "d_model": 1024, "n_heads": 8, "n_kv_heads": 8}
    case = llada(std=0.1, **SHAPE | size | {"mlp_hidden_size": 3072, "n_layers": 20})
    case.tensors = {name: tensor.bfloat16() for name, tensor in case.tensors.items()}
    case.save(tmp_path)
    title = "loading a random checkpoint: peak memory as a multiple of the weights"
    for dtype in ("bfloat16", "float32"):
        peaks, weights = {}, 0
        for how in ("ours", "load_file and copy"):
            command = [sys.executable, "-c", PEAK, how, str(tmp_path), dtype]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            peaks[how], weights = float(out[0]), int(out[1])
        cells = {"weights": f"{weights / 1e9:.2f} GB"} | {how: f"{peak:.2f}" for how, peak in peaks.items()}
        report.add(title, f"bfloat16 files to {dtype}", cells)
        report.target(f"peak of loading to {dtype} / weights", peaks["ours"], at_most=1.15)
    benchmark.pedantic(lsp.load, args=(tmp_path,), kwargs={"dtype": "bfloat16"}, rounds=2)

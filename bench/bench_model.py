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
from bench.passes import LARGE, PREFIX, SHAPE, SUFFIXES, WIDE, a_pass, masked_ids
from bench.ratios import OURS, Report, interleave
from bench.sizes import sized
from bench.support import random_model
from lsp.models import Transformer
from lsp.models import linear as products

ASKED = {64: 0.93, 256: 0.95}  # share of products and attention, by the tokens of a pass
GROWING_SUFFIXES = sized((16, 32, 64, 128, 256, 512), tiny=(4, 8))
GROWING_PREFIXES = sized((0, 256, 512, 1024, 2048), tiny=(0, 8))
LOADED_TO = sized(("bfloat16", "float32"), tiny=("bfloat16",))
KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "lsp::linear"),
    "attention": ("lsp::suffix_attention",),
    "norm": ("lsp::add_norm",),
    "rotation": ("lsp::rotate_",),
    "gate": ("lsp::silu_mul",),
    "embedding": ("aten::index_select", "aten::embedding"),
}
PASS = "one pass"
PASSES = sized(10, tiny=1)


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    return random_model(*SHAPE)


@pytest.fixture(scope="module")
def wide() -> Transformer:
    torch.manual_seed(0)
    return random_model(*WIDE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shape", ["model", "wide"])
def bench_profile(benchmark, report: Report, request, shape: str, suffix: int, dtype: torch.dtype) -> None:
    """Share of each kind of operation in the whole time of a pass, Python and the profiler's own cost included."""
    model = request.getfixturevalue(shape)
    ids = masked_ids(PREFIX + suffix, masks=suffix)
    if dtype == torch.float32:  # bench_products compares the others
        check(model, a_pass(model, ids, PREFIX)(), ids)
    model = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    run = a_pass(model, ids, PREFIX)
    for _ in range(3):
        run()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(PASSES):
            with record_function(PASS):
                run()
    events = {event.key: event for event in found.key_averages()}
    shares = shares_of(events)
    config = model.config
    name = f"{config.n_layers} layers x {config.d_model}, {suffix} tokens, {str(dtype)[6:]}"
    title = f"a pass at prefix {PREFIX}: share of its time"
    spent, whole = shares["products"] + shares["attention"], events[PASS].cpu_time_total / 1e6 / PASSES
    times = {"products and attention": whole * spent, "the pass": whole}
    cells = {kind: f"{100 * share:.1f} %" for kind, share in shares.items()}
    report.compare(title, name, times, over="products and attention", ours=["the pass"], cells=cells)
    if suffix in ASKED:
        report.target(f"share of products and attention in a pass, {name}", spent, at_least=ASKED[suffix])
    benchmark.pedantic(run, rounds=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["model", "wide"])
def bench_products(benchmark, report: Report, request, monkeypatch, shape: str, dtype: torch.dtype) -> None:
    """A pass whose products are ours where that is faster, and one with torch's alone."""
    model = copy.deepcopy(request.getfixturevalue(shape)).to(dtype)

    def with_torchs(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def whole() -> Tensor:
            with monkeypatch.context() as patch:
                patch.setattr(products, "ours_is_faster", lambda x: False)
                return run()

        return whole

    for suffix in SUFFIXES:
        run = a_pass(model, masked_ids(PREFIX + suffix, masks=suffix), PREFIX)
        other = with_torchs(run)
        torch.testing.assert_close(run(), other(), rtol=0.1, atol=0.1 if dtype == torch.bfloat16 else 1e-2)
        times = interleave({OURS: run, "torch's products": other}, rounds=7)
        case = f"{model.config.n_layers} layers x {model.config.d_model}, {suffix} tokens, {str(dtype)[6:]}"
        facts = {"tokens": suffix, "dtype": str(dtype)[6:]}
        report.compare(f"a pass at prefix {PREFIX}", case, times, over="torch's products", **facts)
        if dtype == torch.float32 and suffix <= 64:  # where models use ours
            report.target(
                f"a pass, {case}, torch's products / ours", times["torch's products"] / times[OURS], at_least=1
            )
    benchmark.pedantic(run, rounds=3)


def check(model: Transformer, hidden: Tensor, ids: Tensor) -> None:
    """No time is printed for a wrong result; the right one is that of an uncached pass in float64."""
    exact = copy.deepcopy(model).double()
    everything = exact(ids, torch.arange(len(ids)), torch.tensor([0, len(ids)], dtype=torch.int32))
    expected = exact.lm_head(everything[-len(hidden) :])
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
        times = {f"{p} + {n}": times[str((p, n))] for p, n in pairs}
        case = f"{model.config.n_layers} layers x {model.config.d_model}"
        report.compare(f"{title}: prefix + suffix", case, times, over=next(iter(times)), ours=list(times))
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
        peaks = {}
        for how in (OURS, "load_file and copy"):
            peak, (size,) = peak_of(SETUP, CODE, how, str(tmp_path), dtype)
            peaks |= {"weights": float(size), how: float(peak)}
        report.compare(title, f"bfloat16 files to {dtype}", peaks, over="weights", unit="bytes")
        report.target(f"peak of loading to {dtype} / weights", peaks[OURS] / peaks["weights"], at_most=1.15)
    benchmark.pedantic(lsp.load, args=(tmp_path,), kwargs={"dtype": "bfloat16"}, rounds=2)

"""The LM head fused with the commit, against the head alone, which commits nothing, and what people do after it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bench.limits import read_bytes
from bench.memory import MEASURABLE, peak_of
from bench.ratios import Report, interleave
from bench.sizes import sized
from bench.support import DTYPES, RULE, all_scored, softmax_confidence, vocabulary_of
from lsp_kernels import Noise, commit_prefix, linear_commit_prefix, linear_token_stats, token_stats

SIZE, TILE = sized((126464, 2048), tiny=(700, 128))
ROWS = sized([1, 16, 64, 256, 1024], tiny=[1, 20])
HIDDEN = sized([1024, 4096], tiny=[64])
MOST = {torch.float32: {16: 0.45, 64: 0.65, 256: 0.85}, torch.bfloat16: {16: 1.0, 64: 1.0, 256: 0.95}}  # of F.linear


def tiled(hidden: Tensor, weight: Tensor) -> list[object]:
    """A plain loop: products of tiles of the vocabulary, and the statistics of each."""
    return [token_stats(hidden @ tile.T) for tile in weight.split(TILE)]


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("d", HIDDEN)
@pytest.mark.parametrize("rows", ROWS)
def bench_linear_commit_prefix(benchmark, report: Report, rows: int, d: int, dtype: torch.dtype) -> None:
    hidden, weight = torch.randn(rows, d).to(dtype), torch.randn(SIZE, d).to(dtype)
    arguments = {"n_active": all_scored(rows), "rule": RULE, "vocabulary": vocabulary_of(SIZE)}

    def ours() -> object:
        return linear_commit_prefix(hidden, weight, **arguments)

    logits = hidden.float() @ weight.float().T
    sure = commit_prefix(logits, **arguments).margins > 1e-3
    assert torch.equal(ours().tokens[sure], commit_prefix(logits, **arguments).tokens[sure])
    del logits
    noise = Noise(1.0, 5, torch.arange(rows))
    contenders = {
        "F.linear": lambda: F.linear(hidden, weight),
        "ours": ours,
        "with noise": lambda: linear_commit_prefix(hidden, weight, noise=noise, **arguments),
        "with log-odds": lambda: linear_token_stats(hidden, weight),
        "with entropy": lambda: linear_token_stats(hidden, weight, entropy=True),
        "+ commit_prefix": lambda: commit_prefix(F.linear(hidden, weight), **arguments),
        "+ topk(2)": lambda: torch.topk(F.linear(hidden, weight), 2, dim=-1),
        "tiles": lambda: tiled(hidden, weight),
        "read": lambda: read_bytes(weight),
    }
    if rows <= 64:
        contenders["+ float64 softmax"] = lambda: softmax_confidence(F.linear(hidden, weight))
    times = interleave(contenders, rounds=5)
    case = f"{rows} rows, d = {d}, {str(dtype)[6:]}"
    cells = {"F.linear": f"{times['F.linear'] * 1e3:.1f} ms"}
    cells |= {name: f"{seconds / times['F.linear']:.2f}" for name, seconds in times.items() if name != "F.linear"}
    report.add("linear_commit_prefix: time of each as a multiple of F.linear alone", case, cells)
    report.target(f"head {case}, noise / greedy", times["with noise"] / times["ours"], at_most=1.5)
    if rows == 1:
        report.target(f"head {case} / reading the weight", times["ours"] / times["read"], at_most=1.3)
    elif d == 1024 and (most := MOST[dtype].get(rows)):
        report.target(f"head {case} / F.linear", times["ours"] / times["F.linear"], at_most=most)
    benchmark.extra_info.update(times)
    benchmark.pedantic(ours, rounds=3)


SETUP = """
import torch
from lsp_kernels import PrefixRule, linear_commit_prefix
rows, d, size, dtype = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4])
hidden, weight = torch.randn(rows, d).to(dtype), torch.randn(size, d).to(dtype)
rule = PrefixRule(0.25, 1.0, snap=False)
linear_commit_prefix(hidden[:1], weight[:600], rule=rule)  # threads have started
"""
CODE = "linear_commit_prefix(hidden, weight, rule=rule)"


@pytest.mark.skipif(not MEASURABLE, reason="needs /proc/self/clear_refs")
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("d", HIDDEN)
def bench_peak_memory(benchmark, report: Report, d: int, dtype: torch.dtype) -> None:
    for rows in sized([64, 256, 1024], tiny=[64]):
        peak, _ = peak_of(SETUP, CODE, str(rows), str(d), str(SIZE), str(dtype)[6:])
        share = peak / (rows * SIZE * dtype.itemsize)
        case = f"{rows} rows, d = {d}, {str(dtype)[6:]}"
        report.add("linear_commit_prefix: peak memory", case, {"bytes": f"{peak}", "of the logits": f"{share:.1%}"})
        report.target(f"head {case}, peak memory / logits", share, at_most=0.03)
    benchmark.pedantic(lambda: None, rounds=1)

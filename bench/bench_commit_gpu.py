"""The commit operations on a GPU, timed by CUDA events, against the alternatives and the bandwidth limit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import pytest
import torch

from bench.bench_commit import DTYPES, RULE, all_scored, vocabulary_of
from bench.ratios import Contender, Report
from lsp_kernels import Workspace, commit_prefix, reference, token_stats, warmup_commit

pytestmark = pytest.mark.gpu
SHAPES = [pytest.param(r, v, id=f"{r}x{v}") for r, v in ((16, 126464), (64, 152064), (256, 126464))]


def time_on_device(contenders: Mapping[str, Contender], rounds: int = 50) -> dict[str, float]:
    """Median seconds of each, in turns, with the L2 cache flushed before every call."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) / 1e3 for name, pairs in events.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "size"), SHAPES)
def bench_commit_on_gpu(benchmark, report: Report, rows: int, size: int, dtype: torch.dtype) -> None:
    logits = torch.randn(rows, size, device="cuda").to(dtype)
    vocabulary, workspace = vocabulary_of(size).to("cuda"), Workspace()
    arguments = {"n_active": all_scored(rows).cuda(), "rule": RULE, "vocabulary": vocabulary}
    warmup_commit(logits, **arguments)
    compiled = torch.compile(reference.commit_prefix, fullgraph=True)

    def ours() -> object:
        return commit_prefix(logits, **arguments, workspace=workspace)

    for got, expected in zip(ours(), reference.commit_prefix(logits, **arguments), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    copy = torch.empty_like(logits)
    times = time_on_device(
        {
            "ours": ours,
            "token_stats": lambda: token_stats(logits, vocabulary=vocabulary, workspace=workspace),
            "topk(2)": lambda: torch.topk(logits, 2, dim=-1),
            "compiled reference": lambda: compiled(logits, **arguments),
            "reference": lambda: reference.commit_prefix(logits, **arguments),
            "copy": lambda: copy.copy_(logits),
        }
    )
    limit = times.pop("copy") / 2  # a copy reads the bytes and writes them
    cells = {"limit": f"{limit * 1e6:.1f} us"} | {name: f"{t / limit:.2f}" for name, t in times.items()}
    report.add("commit_prefix on a GPU: multiples of the limit", f"{rows}x{size} {str(dtype)[6:]}", cells)
    benchmark.pedantic(lambda: (ours(), torch.cuda.synchronize()), rounds=20)

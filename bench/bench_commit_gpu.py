"""The commit operations on a GPU, timed by CUDA events, against the alternatives and the bandwidth limit."""

from __future__ import annotations

import pytest
import torch

from bench.ratios import Report, time_on_device
from bench.sizes import sized
from bench.support import COMPILER, DTYPES, RULE, all_scored, vocabulary_of
from lsp_kernels import Workspace, commit_prefix, reference, token_stats, warmup_commit

pytestmark = [pytest.mark.gpu("sm_90"), pytest.mark.usefixtures("gpu")]
SHAPES = sized([(16, 126464), (64, 152064), (256, 126464)], tiny=[(8, 700)])
SHAPES = [pytest.param(rows, size, id=f"{rows}x{size}") for rows, size in SHAPES]


@pytest.mark.parametrize("dtype", sized(DTYPES, tiny=[torch.bfloat16]), ids=str)
@pytest.mark.parametrize(("rows", "size"), SHAPES)
def bench_commit_on_gpu(benchmark, report: Report, rows: int, size: int, dtype: torch.dtype) -> None:
    logits = torch.randn(rows, size, device="cuda").to(dtype)
    vocabulary, workspace = vocabulary_of(size).to("cuda"), Workspace()
    arguments = {"n_active": all_scored(rows).cuda(), "rule": RULE, "vocabulary": vocabulary}
    warmup_commit(logits, **arguments)
    compiled = torch.compile(reference.commit_prefix, fullgraph=True, backend=COMPILER)

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

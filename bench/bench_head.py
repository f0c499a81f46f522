"""The LM head fused with the commit, against the head alone, which commits nothing, and what people do after it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bench.limits import limits, read_bytes, taken_out
from bench.memory import MEASURABLE, peak_of
from bench.ratios import LIMIT, OURS, Contender, Report, interleave, repeated
from bench.sizes import sized
from bench.support import DTYPES, RULE, all_scored, compiled, softmax_confidence, vocabulary_of
from lsp_kernels import (
    Commit,
    Noise,
    TokenStats,
    commit_prefix,
    linear_commit_prefix,
    linear_token_stats,
    merge_token_stats,
    reference,
    token_stats,
)

SIZE, TILE = sized((126464, 2048), tiny=(700, 128))
HIDDEN = sized([1024, 4096], tiny=[64])
SHAPES = [(rows, 1024, SIZE) for rows in (1, 16, 64, 256, 1024)]
SHAPES += [(rows, 4096, SIZE) for rows in (1, 16, 64)] + [(64, 1024, size) for size in (32000, 152064)]
SHAPES = sized(SHAPES, tiny=[(1, 64, SIZE), (20, 64, SIZE)])
MERGED = sized(16384, tiny=64)  # ids whose shards are joined: what it takes does not depend on them
CALLS = sized(10, tiny=1)  # per turn, as these take microseconds
MANY = 256  # rows from which on a product takes seconds in 16 bits, so that fewer contenders take part
MOST = {torch.float32: {16: 0.45, 64: 0.65, 256: 0.85}, torch.bfloat16: {16: 1.0, 64: 1.0, 256: 0.95}}  # of F.linear


def tiled(hidden: Tensor, weight: Tensor) -> list[object]:
    """A plain loop: products of tiles of the vocabulary, and the statistics of each."""
    return [token_stats(hidden @ tile.T) for tile in weight.split(TILE)]


class Work:
    """Hidden states, the weight, and who makes a commit of them."""

    def __init__(self, rows: int, d: int, size: int, dtype: torch.dtype) -> None:
        self.rows, self.hidden, self.weight = rows, torch.randn(rows, d).to(dtype), torch.randn(size, d).to(dtype)
        self.arguments = {"n_active": all_scored(rows), "rule": RULE, "vocabulary": vocabulary_of(size)}

    def ours(self, **noise: Noise) -> Commit:
        return linear_commit_prefix(self.hidden, self.weight, **noise, **self.arguments)

    def check(self) -> None:
        """No speed is printed for a wrong result."""
        logits = self.hidden.float() @ self.weight.float().T
        expected = commit_prefix(logits, **self.arguments)
        sure = expected.margins > 1e-3
        assert torch.equal(self.ours().tokens[sure], expected.tokens[sure])

    def contenders(self) -> dict[str, Contender]:
        hidden, weight, arguments = self.hidden, self.weight, self.arguments
        contenders = {
            "F.linear": lambda: F.linear(hidden, weight),
            OURS: self.ours,
            "+ float64 softmax": lambda: softmax_confidence(F.linear(hidden, weight)),
            "reference": lambda: reference.linear_commit_prefix(hidden, weight, **arguments),
            "compiled reference": compiled(reference.linear_commit_prefix, hidden, weight, **arguments),
            **limits(weight.dtype, weight.numel()),
        }
        if self.rows > MANY:
            return contenders
        noise = Noise(1.0, 5, torch.arange(self.rows))
        return contenders | {
            "with noise": lambda: self.ours(noise=noise),
            "with log-odds": lambda: linear_token_stats(hidden, weight),
            "with entropy": lambda: linear_token_stats(hidden, weight, entropy=True),
            "+ commit_prefix": lambda: commit_prefix(F.linear(hidden, weight), **arguments),
            "+ topk(2)": lambda: torch.topk(F.linear(hidden, weight), 2, dim=-1),
            "tiles": lambda: tiled(hidden, weight),
        }


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize(("rows", "d", "size"), SHAPES)
def bench_linear_commit_prefix(benchmark, report: Report, rows: int, d: int, size: int, dtype: torch.dtype) -> None:
    work = Work(rows, d, size, dtype)
    work.check()
    times = interleave(work.contenders(), rounds=5, seconds=3.0)
    rate, read = taken_out(times)
    times[LIMIT] = max(2 * rows * d * size / rate, read)
    case = f"{rows} rows, d = {d}, {size} ids, {str(dtype)[6:]}"
    ours = [name for name in (OURS, "with noise", "with log-odds", "with entropy") if name in times]
    facts = {"rows": rows, "d": d, "vocabulary": size, "dtype": str(dtype)[6:]}
    report.compare("linear_commit_prefix", case, times, over="F.linear", ours=ours, **facts)
    if rows <= MANY:
        report.target(f"head {case}, noise / greedy", times["with noise"] / times[OURS], at_most=1.5)
    if rows == 1:
        report.target(f"head {case} / reading the weight", times[OURS] / read, at_most=1.3)
    elif (d, size) == (1024, SIZE) and (most := MOST[dtype].get(rows)):
        report.target(f"head {case} / F.linear", times[OURS] / times["F.linear"], at_most=most)
    benchmark.extra_info.update(times)
    benchmark.pedantic(work.ours, rounds=3)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("rows", sized([1, 64], tiny=[5]))
def bench_linear_token_stats(benchmark, report: Report, rows: int, dtype: torch.dtype) -> None:
    """What a scheduler by confidence needs of the head."""
    d, noise = HIDDEN[0], Noise(1.0, 5, torch.arange(rows))
    hidden, weight = torch.randn(rows, d).to(dtype), torch.randn(SIZE, d).to(dtype)

    def ours(**options: object) -> TokenStats:
        return linear_token_stats(hidden, weight, **options)

    check_stats(ours(), reference.linear_token_stats(hidden, weight))
    contenders = {
        "F.linear": lambda: F.linear(hidden, weight),
        OURS: ours,
        "with entropy": lambda: ours(entropy=True),
        "with noise": lambda: ours(noise=noise),
        "+ token_stats": lambda: token_stats(F.linear(hidden, weight)),
        "+ float64 softmax": lambda: softmax_confidence(F.linear(hidden, weight)),
        "reference": lambda: reference.linear_token_stats(hidden, weight),
        "compiled reference": compiled(reference.linear_token_stats, hidden, weight),
    }
    times = interleave(contenders | limits(dtype, weight.numel()), rounds=5, seconds=2.0)
    rate, read = taken_out(times)
    times[LIMIT] = max(2 * rows * weight.numel() / rate, read)
    case, ours_too = f"{rows} rows, d = {d}, {SIZE} ids, {str(dtype)[6:]}", (OURS, "with entropy", "with noise")
    facts = {"rows": rows, "d": d, "vocabulary": SIZE, "dtype": str(dtype)[6:]}
    report.compare("linear_token_stats", case, times, over="F.linear", ours=ours_too, **facts)
    benchmark.pedantic(ours, rounds=3)


def check_stats(stats: TokenStats, expected: TokenStats) -> None:
    """Sums of products are rounded in another order, so tokens are compared where the margin is clear."""
    sure = expected.top1 - expected.top2 > 1e-3
    assert torch.equal(stats.tokens[sure], expected.tokens[sure])
    torch.testing.assert_close(stats.log_odds, expected.log_odds, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shards", sized([2, 8], tiny=[2]))
@pytest.mark.parametrize("rows", sized([1, 64, 1024], tiny=[4]))
def bench_merge(benchmark, report: Report, rows: int, shards: int) -> None:
    """Statistics of the shards of a vocabulary, joined: over a read of them. It is the same code on every device."""
    logits = torch.randn(rows, MERGED)
    parts = [token_stats(part, id_offset=MERGED // shards * i) for i, part in enumerate(logits.chunk(shards, dim=-1))]
    parts = [TokenStats(*(None if x is None else x.contiguous() for x in part)) for part in parts]
    for got, wanted in zip(merge_token_stats(parts), token_stats(logits), strict=True):
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    held = torch.cat([x.view(torch.uint8).flatten() for part in parts for x in part if x is not None])
    fast = compiled(merge_token_stats, parts)
    contenders = {
        LIMIT: lambda: read_bytes(held),
        OURS: lambda: merge_token_stats(parts),
        "compiled": fast,
        "token_stats of a shard": lambda: token_stats(logits[:, : MERGED // shards]),
    }
    times = interleave({name: repeated(run, CALLS) for name, run in contenders.items()}, seconds=0.5)
    times = {name: seconds / CALLS for name, seconds in times.items()}
    case = f"{rows} rows, {shards} shards of {MERGED} ids"
    report.compare("merge_token_stats", case, times, over=OURS, rows=rows, shards=shards)
    benchmark.pedantic(contenders[OURS], rounds=3)


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
        whole = float(rows * SIZE * dtype.itemsize)
        share = peak / whole
        case = f"{rows} rows, d = {d}, {str(dtype)[6:]}"
        values, cells = {OURS: float(peak), "logits": whole}, {"of the logits": f"{share:.1%}"}
        report.compare("linear_commit_prefix: peak memory", case, values, over="logits", unit="bytes", cells=cells)
        report.target(f"head {case}, peak memory / logits", share, at_most=0.03)
    benchmark.pedantic(lambda: None, rounds=1)

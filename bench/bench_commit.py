"""The commit operations against what people do today and against the limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bench.limits import read_bytes
from bench.ratios import Report, interleave
from lsp_kernels import PrefixRule, TokenStats, Vocabulary, commit_prefix, reference, token_stats

SHAPES = [pytest.param(256, 126464, id="256x126464"), pytest.param(64, 152064, id="64x152064")]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
RULE = PrefixRule()
CALLS = 25  # per turn, where one call is too short to time


def vocabulary_of(size: int, suppressed: int = 0) -> Vocabulary:
    hidden = range(0, size, size // suppressed) if suppressed else ()
    return Vocabulary(size, delimiters=range(0, size, 50), stops=[1], suppress=list(hidden)[:suppressed])


def all_scored(rows: int) -> Tensor:
    """N of a sequence whose scored rows are exactly the rows given."""
    n = 2 * (rows - 1)
    assert RULE.scored_rows(n) == rows
    return torch.tensor([n], dtype=torch.int32)


def softmax_confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """LLaDA and Fast-dLLM: a softmax in float64, and the probability of the best token."""
    probabilities = torch.softmax(logits.to(torch.float64), dim=-1)
    tokens = logits.argmax(-1)
    return tokens, probabilities.gather(-1, tokens[:, None]).squeeze(-1)


def sorted_margin(logits: Tensor) -> Tensor:
    """Dream and d2Cache: a softmax, sorted, and the difference of the two largest."""
    ordered, _ = torch.softmax(logits.float(), dim=-1).sort(dim=-1, descending=True)
    return ordered[:, 0] - ordered[:, 1]


def check_stats(stats: TokenStats, logits: Tensor) -> None:
    """No speed is printed for a result that is not right."""
    expected = reference.token_stats(logits)
    for got, wanted in zip(stats[:3], expected[:3], strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    torch.testing.assert_close(stats.log_odds, expected.log_odds, rtol=0, atol=1e-5)
    _, confidence = softmax_confidence(logits)
    torch.testing.assert_close(stats.confidence.double(), confidence, rtol=1e-5, atol=1e-7)


def compare_commit(benchmark, report: Report, logits: Tensor, case: str) -> dict[str, float]:
    rows, size = logits.shape
    vocabulary = vocabulary_of(size)
    arguments = {"n_active": all_scored(rows), "rule": RULE, "vocabulary": vocabulary}
    compiled = torch.compile(reference.commit_prefix, fullgraph=True)

    def ours() -> object:
        return commit_prefix(logits, **arguments)

    commit = ours()
    assert (commit.tokens >= 0).all()  # every row is scored
    for run in (reference.commit_prefix, compiled):
        for got, expected in zip(commit, run(logits, **arguments), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
    top = torch.topk(logits.float(), 2, dim=-1).values
    torch.testing.assert_close(commit.margins, top[:, 0] - top[:, 1], rtol=0, atol=0)

    times = interleave({"limit": lambda: read_bytes(logits), "ours": ours}, rounds=61)
    times |= interleave(
        {
            "topk(2)": lambda: torch.topk(logits, 2, dim=-1),
            "compiled reference": lambda: compiled(logits, **arguments),
            "reference": lambda: reference.commit_prefix(logits, **arguments),
            "float64 softmax": lambda: softmax_confidence(logits),
            "sorted margin": lambda: sorted_margin(logits),
        }
    )
    show(report, "commit_prefix: time of each as a multiple of the limit", case, times)
    benchmark.extra_info.update(times)
    benchmark.pedantic(ours, rounds=5)
    return times


def show(report: Report, title: str, case: str, times: dict[str, float]) -> None:
    cells = {"limit": f"{times['limit'] * 1e3:.2f} ms"}
    cells |= {name: f"{seconds / times['limit']:.2f}" for name, seconds in times.items() if name != "limit"}
    report.add(title, case, cells)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "size"), SHAPES)
def bench_commit_prefix(benchmark, report: Report, rows: int, size: int, dtype: torch.dtype) -> None:
    case = f"{rows}x{size} {str(dtype)[6:]}"
    times = compare_commit(benchmark, report, torch.randn(rows, size).to(dtype), case)
    bound = 1.15 if dtype == torch.float32 else 1.25
    report.target(f"commit_prefix {case} / limit", times["ours"] / times["limit"], at_most=bound)
    report.target(f"commit_prefix {case}, topk / ours", times["topk(2)"] / times["ours"], at_least=5)
    report.target(
        f"commit_prefix {case}, softmax / ours",
        times["float64 softmax"] / times["ours"],
        at_least=15,
    )


def bench_demo(benchmark, report: Report) -> None:
    compare_commit(benchmark, report, torch.randn(64, 126464), "64x126464 float32")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "size"), SHAPES)
def bench_token_stats(benchmark, report: Report, rows: int, size: int, dtype: torch.dtype) -> None:
    logits = torch.randn(rows, size).to(dtype)
    check_stats(token_stats(logits), logits)
    times = interleave({"limit": lambda: read_bytes(logits), "ours": lambda: token_stats(logits)}, rounds=61)
    times |= interleave(
        {
            "float64 softmax": lambda: softmax_confidence(logits),
            "reference": lambda: reference.token_stats(logits),
        }
    )
    case = f"{rows}x{size} {str(dtype)[6:]}"
    show(report, "token_stats: time of each as a multiple of the limit", case, times)
    if dtype == torch.float32:
        report.target(f"token_stats {case} / limit", times["ours"] / times["limit"], at_most=1.4)
    benchmark.pedantic(token_stats, args=(logits,), rounds=5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def bench_suppressed(benchmark, report: Report, dtype: torch.dtype) -> None:
    logits = torch.randn(256, 126464).to(dtype)
    n_active = all_scored(256)

    def run(count: int) -> Callable[[], object]:
        vocabulary = vocabulary_of(126464, count)
        return lambda: commit_prefix(logits, n_active=n_active, rule=RULE, vocabulary=vocabulary)

    hidden = logits.index_fill(1, vocabulary_of(126464, 1000).suppressed.long(), -torch.inf)
    expected = commit_prefix(hidden, n_active=n_active, rule=RULE, vocabulary=vocabulary_of(126464))
    for got, wanted in zip(run(1000)(), expected, strict=True):
        assert torch.equal(got, wanted)
    times = interleave({"none": run(0), "1": run(1), "1000": run(1000)}, rounds=31)
    case = f"256x126464 {str(dtype)[6:]}"
    report.add(
        "suppressed ids: time as a multiple of that without",
        case,
        {name: f"{times[name] / times['none']:.3f}" for name in ("1", "1000")},
    )
    for name in ("1", "1000"):
        report.target(f"{name} suppressed, {case} / none", times[name] / times["none"], at_most=1.03)
    benchmark.pedantic(run(1000), rounds=5)


@pytest.mark.parametrize("rows", [1, 3])
def bench_few_rows(benchmark, report: Report, rows: int) -> None:
    """Both cores share a few rows. Every call takes other rows, so that they come from memory, as fresh logits may.

    Beside it, how much faster two threads read these rows: a machine whose cores share a memory port gains little.
    """
    if torch.get_num_threads() < 2:
        pytest.skip("one core")
    logits, vocabulary = torch.randn(256, 126464), vocabulary_of(126464)
    rule, place = PrefixRule(beta=1.0), [0]

    def some_rows() -> Tensor:
        place[0] = (place[0] + 7 * rows) % (256 - rows)
        return logits[place[0] : place[0] + rows]

    def commit() -> object:
        return commit_prefix(some_rows(), rule=rule, vocabulary=vocabulary)

    def on(threads: int, run: Callable[[], object]) -> Callable[[], object]:
        def several() -> None:
            torch.set_num_threads(threads)
            for _ in range(CALLS):
                run()

        return several

    runs = {"commit": commit, "read": lambda: read_bytes(some_rows())}
    times = interleave({f"{name} {n}": on(n, run) for name, run in runs.items() for n in (1, 2)}, rounds=31)
    gain = {name: times[f"{name} 1"] / times[f"{name} 2"] for name in runs}
    case = f"{rows}x126464 float32"
    cells = {"one thread": f"{times['commit 1'] / CALLS * 1e6:.0f} us", "two threads": f"{gain['commit']:.2f}x"}
    report.add("few rows: speed of two threads over one", case, cells | {"reading alone": f"{gain['read']:.2f}x"})
    if rows == 3:
        report.target(f"{case}, two threads over one", gain["commit"], at_least=1.6)
    benchmark.pedantic(commit, rounds=20)


def bench_call_overhead(benchmark, report: Report) -> None:
    logits, vocabulary = torch.randn(4, 512), vocabulary_of(512)
    borders = torch.tensor([0, 1, 4], dtype=torch.int32)

    def many(**arguments: object) -> Callable[[], object]:
        def run() -> None:
            for _ in range(200):
                commit_prefix(logits, rule=RULE, vocabulary=vocabulary, **arguments)

        return run

    times = interleave({"one sequence": many(), "borders": many(cu_rows=borders)}, rounds=31)
    cells = {name: f"{seconds / 200 * 1e6:.1f} us" for name, seconds in times.items()}
    report.add("call overhead", "4x512 float32", cells)
    for name, seconds in times.items():
        report.target(f"commit_prefix 4x512, {name}, microseconds", seconds / 200 * 1e6, at_most=30)
    benchmark(commit_prefix, logits, rule=RULE, vocabulary=vocabulary)

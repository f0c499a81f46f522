"""The commit operations against what people do today and against the limit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.limits import read_bytes
from bench.ratios import LIMIT, OURS, Contender, Report, interleave, on_threads, repeated
from bench.sizes import sized
from bench.support import DTYPES, RULE, all_scored, compiled, softmax_confidence, vocabulary_of
from lsp_kernels import Noise, PrefixRule, TokenStats, commit_prefix, reference, select_prefix, token_stats

FULL = [(rows, 126464) for rows in (1, 16, 64, 256, 1024)]
OTHERS = [(rows, size) for size in (32000, 152064) for rows in (1, 64, 1024)]
SHAPES = sized([(256, 126464), (64, 152064)], tiny=[(8, 700)])
ALL = sized(
    [(*shape, dtype) for shape in FULL + OTHERS for dtype in DTYPES[:2]] + [(*shape, DTYPES[2]) for shape in SHAPES],
    tiny=[(8, 700, dtype) for dtype in DTYPES] + [(40, 500, torch.float32)],
)
ALL = [pytest.param(rows, size, dtype, id=f"{rows}x{size}-{str(dtype)[6:]}") for rows, size, dtype in ALL]
SCORED = [(*shape, dtype) for shape in SHAPES for dtype in DTYPES]
SCORED += sized([(rows, 126464, dtype) for rows in (1, 64, 1024) for dtype in DTYPES[:2]], tiny=[])
SCORED = [pytest.param(*each, id=f"{each[0]}x{each[1]}-{str(each[2])[6:]}") for each in SCORED]
SEQUENCE = 32  # rows of one sequence, for those who go from sequence to sequence
ROWS, SIZE, MANY = sized((256, 126464, 1000), tiny=(8, 700, 100))  # MANY ids are suppressed
CALLS = sized(25, tiny=2)  # per turn, where one call is too short to time
OVERHEAD_CALLS = sized(200, tiny=2)


def sorted_margin(logits: Tensor) -> Tensor:
    """Dream and d2Cache: a softmax, sorted, and the difference of the two largest."""
    ordered, _ = torch.softmax(logits.float(), dim=-1).sort(dim=-1, descending=True)
    return ordered[:, 0] - ordered[:, 1]


def item_by_item(logits: Tensor) -> list[Tensor]:
    """Flash-dLLM: a softmax in float64; of every sequence a count is read by the host, and so many rows are taken."""
    confidence, _ = torch.softmax(logits.to(torch.float64), dim=-1).max(dim=-1)
    counts = [(one, max(1, int((one >= 0.9).sum().item()))) for one in confidence.split(SEQUENCE)]
    return [torch.topk(one, count).indices for one, count in counts]


def check_stats(stats: TokenStats, logits: Tensor) -> None:
    """No speed is printed for a wrong result."""
    expected = reference.token_stats(logits)
    for got, wanted in zip(stats[:3], expected[:3], strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    torch.testing.assert_close(stats.log_odds, expected.log_odds, rtol=0, atol=1e-5)
    _, confidence = softmax_confidence(logits)
    torch.testing.assert_close(stats.confidence.double(), confidence, rtol=1e-5, atol=1e-7)


def check_noise(stats: TokenStats, logits: Tensor, noise: Noise) -> None:
    """Against the definition, of some rows: it takes seconds for all."""
    expected = reference.token_stats(logits[:8], noise=Noise.of(noise.table[:8]), entropy=True)
    assert torch.equal(stats.tokens[:8], expected.tokens)
    torch.testing.assert_close(stats.entropy[:8], expected.entropy, rtol=0, atol=1e-4)


def compare_commit(benchmark, report: Report, logits: Tensor) -> dict[str, float]:
    rows, size = logits.shape
    arguments = {"n_active": all_scored(rows), "rule": RULE, "vocabulary": vocabulary_of(size)}

    def ours() -> object:
        return commit_prefix(logits, **arguments)

    commit = ours()
    assert (commit.tokens >= 0).all()  # every row is scored
    fast = compiled(reference.commit_prefix, logits, **arguments)
    for run in (lambda: reference.commit_prefix(logits, **arguments), fast):
        for got, expected in zip(commit, run(), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
    top = torch.topk(logits.float(), 2, dim=-1).values
    torch.testing.assert_close(commit.margins, top[:, 0] - top[:, 1], rtol=0, atol=0)

    calls = max(1, sized(2**22, tiny=1) // logits.numel())  # few rows are read in microseconds
    short = {LIMIT: lambda: read_bytes(logits), OURS: ours}
    times = interleave({name: repeated(run, calls) for name, run in short.items()}, rounds=61)
    times = {name: seconds / calls for name, seconds in times.items()}
    times |= interleave(
        {
            "topk(2)": lambda: torch.topk(logits, 2, dim=-1),
            "compiled reference": fast,
            "reference": lambda: reference.commit_prefix(logits, **arguments),
            "Fast-dLLM": lambda: softmax_confidence(logits),
            "Flash-dLLM": lambda: item_by_item(logits),
            "Dream": lambda: sorted_margin(logits),
        },
        seconds=2.0,
    )
    dtype = str(logits.dtype)[6:]
    facts = {"rows": rows, "vocabulary": size, "dtype": dtype}
    report.compare("commit_prefix", f"{rows} x {size} {dtype}", times, over=LIMIT, **facts)
    benchmark.extra_info.update(times)
    benchmark.pedantic(ours, rounds=5)
    return times


@pytest.mark.parametrize(("rows", "size", "dtype"), ALL)
def bench_commit_prefix(benchmark, report: Report, rows: int, size: int, dtype: torch.dtype) -> None:
    times = compare_commit(benchmark, report, torch.randn(rows, size).to(dtype))
    case = f"{rows} x {size} {str(dtype)[6:]}"
    if (rows, size) in ((256, 126464), (64, 152064)):
        bound = 1.15 if dtype == torch.float32 else 1.25
        report.target(f"commit_prefix {case} / limit", times[OURS] / times[LIMIT], at_most=bound)
    if rows >= 64:
        report.target(f"commit_prefix {case}, topk(2) / ours", times["topk(2)"] / times[OURS], at_least=5)
        report.target(f"commit_prefix {case}, Fast-dLLM / ours", times["Fast-dLLM"] / times[OURS], at_least=15)


@pytest.mark.parametrize(("rows", "size", "dtype"), SCORED)
def bench_token_stats(benchmark, report: Report, rows: int, size: int, dtype: torch.dtype) -> None:
    logits = torch.randn(rows, size).to(dtype)
    check_stats(token_stats(logits), logits)
    calls = max(1, sized(2**22, tiny=1) // logits.numel())  # few rows are read in microseconds
    short = {LIMIT: lambda: read_bytes(logits), OURS: lambda: token_stats(logits)}
    times = interleave({name: repeated(run, calls) for name, run in short.items()}, rounds=61)
    times = {name: seconds / calls for name, seconds in times.items()}
    fast = compiled(reference.token_stats, logits)
    check_stats(fast(), logits)
    rivals = {
        "compiled reference": fast,
        "reference": lambda: reference.token_stats(logits),
        "Fast-dLLM": lambda: softmax_confidence(logits),
    }
    times |= interleave(rivals, seconds=1.0)
    case = f"{rows} x {size} {str(dtype)[6:]}"
    report.compare("token_stats", case, times, over=LIMIT, rows=rows, vocabulary=size, dtype=str(dtype)[6:])
    if dtype == torch.float32 and (rows, size) in SHAPES:
        report.target(f"token_stats {case} / limit", times[OURS] / times[LIMIT], at_most=1.4)
    benchmark.pedantic(token_stats, args=(logits,), rounds=5)


@pytest.mark.parametrize("rows", sized([1, 64, 1024], tiny=[1, 8]))
def bench_select_prefix(benchmark, report: Report, rows: int) -> None:
    """The rule alone, on statistics that are there: over a read of the margins and tokens."""
    margins, tokens, n_active = torch.rand(rows), torch.randint(0, SIZE, (rows,)), all_scored(rows)
    arguments = {"n_active": n_active, "rule": RULE, "vocabulary": vocabulary_of(SIZE)}
    contenders = {
        LIMIT: lambda: (read_bytes(margins), read_bytes(tokens)),
        OURS: lambda: select_prefix(margins, tokens, **arguments),
        "compiled reference": compiled(reference.select_prefix, margins, tokens, **arguments),
        "reference": lambda: reference.select_prefix(margins, tokens, **arguments),
    }
    for name in ("reference", "compiled reference"):
        for got, expected in zip(contenders[OURS](), contenders[name](), strict=True):
            assert torch.equal(got, expected)
    times = interleave({name: repeated(run, CALLS) for name, run in contenders.items()}, seconds=1.0)
    times = {name: seconds / CALLS for name, seconds in times.items()}
    report.compare("select_prefix", f"{rows} rows", times, over=OURS, rows=rows)
    benchmark.pedantic(contenders[OURS], rounds=5)


@pytest.mark.parametrize("kind", ["flat", "peaked", "twice peaked"])
def bench_noise(benchmark, report: Report, kind: str) -> None:
    """Noise on given logits, where greedy is a bare read.

    Tiles are passed by that cannot reach the second best so far: with one peak that is low and few are, with two nearly
    all. The references compute noise and entropy.
    """
    logits = torch.randn(ROWS, SIZE)
    logits[:, : {"flat": 0, "peaked": 1, "twice peaked": 2}[kind]] = 40
    noise = Noise(1.0, 5, torch.arange(ROWS))
    contenders = {
        "greedy": lambda: token_stats(logits),
        "noise": lambda: token_stats(logits, noise=noise),
        "entropy": lambda: token_stats(logits, entropy=True),
        "noise and entropy": lambda: token_stats(logits, noise=noise, entropy=True),
    }
    check_noise(contenders["noise and entropy"](), logits, noise)
    times = interleave({LIMIT: lambda: read_bytes(logits), **contenders})
    definitions = {
        "reference": lambda: reference.token_stats(logits, noise=noise, entropy=True),
        "compiled reference": compiled(reference.token_stats, logits, noise=noise, entropy=True),
    }
    times |= interleave(definitions, seconds=1.0)
    case = f"{kind} rows, {ROWS} x {SIZE} float32"
    report.compare("token_stats with noise and entropy", case, times, over="greedy", ours=list(contenders))
    if kind == "twice peaked":  # tiles that cannot reach the second best cost no random number
        report.target(f"{case}, noise / entropy, which draws nothing", times["noise"] / times["entropy"], at_most=1.1)
    benchmark.pedantic(contenders["noise"], rounds=3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def bench_suppressed(benchmark, report: Report, dtype: torch.dtype) -> None:
    logits = torch.randn(ROWS, SIZE).to(dtype)
    n_active = all_scored(ROWS)

    def run(count: int) -> Contender:
        vocabulary = vocabulary_of(SIZE, count)
        return lambda: commit_prefix(logits, n_active=n_active, rule=RULE, vocabulary=vocabulary)

    hidden = logits.index_fill(1, vocabulary_of(SIZE, MANY).suppressed.long(), -torch.inf)
    expected = commit_prefix(hidden, n_active=n_active, rule=RULE, vocabulary=vocabulary_of(SIZE))
    for got, wanted in zip(run(MANY)()[:5], expected[:5], strict=True):
        assert torch.equal(got, wanted)
    times = interleave({"none": run(0), "1": run(1), str(MANY): run(MANY)}, rounds=31)
    case = f"{ROWS} x {SIZE} {str(dtype)[6:]}"
    report.compare("commit_prefix with suppressed ids", case, times, over="none", ours=["1", str(MANY)])
    for name in ("1", str(MANY)):
        report.target(f"{name} suppressed, {case} / none", times[name] / times["none"], at_most=1.03)
    benchmark.pedantic(run(MANY), rounds=5)


@pytest.mark.parametrize("rows", [1, 3])
def bench_few_rows(benchmark, report: Report, rows: int) -> None:
    """Two threads share a few rows. Every call takes other rows, so that they come from memory and not from a cache.

    Beside it, how much faster two threads read these rows: a machine whose cores share a memory port gains little.
    """
    if torch.get_num_threads() < 2:
        pytest.skip("one core")
    logits, vocabulary = torch.randn(ROWS, SIZE), vocabulary_of(SIZE)
    rule, place = PrefixRule(beta=1.0), [0]

    def some_rows() -> Tensor:
        place[0] = (place[0] + 7 * rows) % (ROWS - rows)
        return logits[place[0] : place[0] + rows]

    def commit() -> object:
        return commit_prefix(some_rows(), rule=rule, vocabulary=vocabulary)

    runs = {"commit": repeated(commit, CALLS), "read": repeated(lambda: read_bytes(some_rows()), CALLS)}
    times = interleave({f"{name} {n}": on_threads(n, run) for name, run in runs.items() for n in (1, 2)}, rounds=31)
    gain = {name: times[f"{name} 1"] / times[f"{name} 2"] for name in runs}
    case = f"{rows} x {SIZE} float32"
    cells = {"speed": f"{gain['commit']:.2f}x", "speed of reading alone": f"{gain['read']:.2f}x"}
    threads = {"one thread": times["commit 1"] / CALLS, "two threads": times["commit 2"] / CALLS}
    title = "few rows: two threads over one"
    report.compare(title, case, threads, over="one thread", ours=["two threads"], cells=cells)
    if rows == 3:
        report.target(f"{case}, two threads over one", gain["commit"], at_least=1.6)
    benchmark.pedantic(commit, rounds=20)


def bench_call_overhead(benchmark, report: Report) -> None:
    logits, vocabulary = torch.randn(4, 512), vocabulary_of(512)
    borders = torch.tensor([0, 1, 4], dtype=torch.int32)

    def commit(**arguments: object) -> Contender:
        return lambda: commit_prefix(logits, rule=RULE, vocabulary=vocabulary, **arguments)

    ours = {"one sequence": commit(), "borders": commit(cu_rows=borders)}
    contenders = ours | {"topk(2)": lambda: torch.topk(logits, 2, dim=-1)}
    times = interleave({name: repeated(run, OVERHEAD_CALLS) for name, run in contenders.items()}, rounds=31)
    times = {name: seconds / OVERHEAD_CALLS for name, seconds in times.items()}
    report.compare("call overhead", "4x512 float32", times, over="topk(2)", ours=[*ours])
    for name in ours:
        report.target(f"commit_prefix 4x512, {name}, microseconds", 1e6 * times[name], at_most=6)
    benchmark(commit_prefix, logits, rule=RULE, vocabulary=vocabulary)

"""Suffix attention against what people do today and against the rate of a matrix product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from bench.limits import limits, taken_out
from bench.ratios import LIMIT, OURS, Contender, Report, interleave, on_threads, repeated
from bench.sizes import sized
from bench.support import COMPILER, compiled
from lsp_kernels import PrefixCache, reference, suffix_attention

HEADS = sized([(32, 32), (28, 4)], tiny=[(2, 2), (7, 1)])
HEADS = [pytest.param(hq, hkv, id=f"{hq}/{hkv}") for hq, hkv in HEADS]
DTYPES = [torch.float32, torch.bfloat16]
SIZE = sized(128, tiny=32)
PREFIX, SUFFIX = sized((1024, 64), tiny=(40, 8))
RAGGED_PREFIXES = sized([64, 1024, 200, 700, 333, 512, 900, 128], tiny=[64, 0, 20])
RAGGED_SUFFIXES = sized([8, 64, 16, 48, 24, 56, 32, 40], tiny=[8, 3, 16])
LENGTHS = [(0, 256), (0, 32), (128, 32), (512, 32), (1024, 1), (1024, 32), (2048, 32), (4096, 32), (8192, 32)]
LENGTHS = sized(LENGTHS, tiny=[(40, 1), (0, 20), (24, 20), (40, 20)])
SMALL = sized([(128, 16), (1024, 1)], tiny=[(24, 3)])
LONG = sized(16384, tiny=100)
OVERHEAD_CALLS = sized(100, tiny=2)
SMALL_CALLS = sized(10, tiny=1)  # per turn, as these take microseconds


class Pass:
    """Ragged sequences of one pass: packed beside a prefix cache for us, padded with all their keys for torch."""

    def __init__(self, heads: tuple[int, int], dtype: torch.dtype, prefixes: list[int], suffixes: list[int]) -> None:
        self.heads, self.prefixes, self.suffixes = heads, prefixes, suffixes
        hq, hkv = heads
        longest = max(p + n for p, n in zip(prefixes, suffixes, strict=True))
        self.q = torch.randn(sum(suffixes), hq, SIZE).to(dtype)
        self.k, self.v = torch.randn(2, sum(suffixes), hkv, SIZE).to(dtype)
        self.k_cache, self.v_cache = torch.randn(2, len(prefixes), hkv, longest, SIZE).to(dtype)
        self.borders = torch.tensor([0, *torch.tensor(suffixes).cumsum(0)], dtype=torch.int32)
        self.lengths = torch.tensor([prefixes, suffixes], dtype=torch.int32).unbind()
        self.padded_q = torch.zeros(len(prefixes), hq, max(suffixes), SIZE, dtype=dtype)
        self.padded_k, self.padded_v = self.k_cache.clone(), self.v_cache.clone()
        self.mask = torch.zeros(len(prefixes), 1, 1, longest, dtype=torch.bool)
        for b, (p, n) in enumerate(zip(prefixes, suffixes, strict=True)):
            where = slice(int(self.borders[b]), int(self.borders[b + 1]))
            self.padded_q[b, :, :n] = self.q[where].transpose(0, 1)
            self.padded_k[b, :, p : p + n] = self.k[where].transpose(0, 1)
            self.padded_v[b, :, p : p + n] = self.v[where].transpose(0, 1)
            self.mask[b, ..., : p + n] = True

    @property
    def flops(self) -> int:
        pairs = sum(n * (p + n) for p, n in zip(self.prefixes, self.suffixes, strict=True))
        return 4 * self.heads[0] * SIZE * pairs

    @property
    def elements(self) -> int:
        """Of all keys and values."""
        return 2 * SIZE * self.heads[1] * (sum(self.prefixes) + sum(self.suffixes))

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.q, self.k, self.v, self.k_cache, self.v_cache, self.borders, *self.lengths)

    def ours(self) -> Tensor:
        return suffix_attention(*self.operands)

    def reference(self) -> Tensor:
        out: Tensor = reference.suffix_attention(*self.operands)
        return out

    def compiled(self) -> Contender:
        """What torch.compile makes of the reference."""
        fast = compiled(reference.suffix_attention, *self.operands)
        torch.testing.assert_close(fast(), self.ours(), rtol=0.05, atol=0.05)
        return fast

    def padded(self) -> Tensor:
        return self.sdpa(self.padded_k, self.padded_v, self.mask)

    def view(self) -> Tensor:
        return self.sdpa(self.padded_k, self.padded_v)

    def concatenated(self) -> Tensor:
        """One sequence: torch.cat puts the new keys behind the prefix, as most code does today."""
        k, v = (
            torch.cat([cache[:, :, : self.prefixes[0]], new.transpose(0, 1)[None]], dim=2)
            for cache, new in ((self.k_cache, self.k), (self.v_cache, self.v))
        )
        return self.sdpa(k, v)

    def sdpa(self, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        grouped = self.heads[0] != self.heads[1]
        return F.scaled_dot_product_attention(self.padded_q, k, v, attn_mask=mask, enable_gqa=grouped)

    def check(self) -> None:
        """No speed is printed for a wrong result."""
        wide = (x.double() for x in (self.q, self.k, self.v, self.k_cache, self.v_cache))
        truth = reference.suffix_attention(*wide, self.borders, *self.lengths)
        padded = self.padded()
        torchs = torch.cat([padded[b, :, :n].transpose(0, 1) for b, n in enumerate(self.suffixes)])
        allowed = (torchs.double() - truth).abs().max() + 1e-5
        assert (self.ours().double() - truth).abs().max() <= allowed


def compiled_flex(work: Pass) -> Contender | None:
    """FlexAttention on the contiguous view, if it runs here."""
    compiled = torch.compile(flex_attention, backend=COMPILER)

    def run() -> Tensor:
        grouped = work.heads[0] != work.heads[1]
        out: Tensor = compiled(work.padded_q, work.padded_k, work.padded_v, enable_gqa=grouped)
        return out

    try:
        torch.testing.assert_close(run(), work.view(), rtol=0.05, atol=0.05)
    except Exception as error:  # what it supports differs between releases and machines
        print(f"FlexAttention does not run here: {error}")
        return None
    return run


def show(report: Report, title: str, case: str, times: dict[str, float], work: Pass, **facts: object) -> float:
    """Writes everyone's time as a multiple of ours, and our rate; returns its share of the rate of a product."""
    best, read = taken_out(times)
    rate, times[LIMIT] = work.flops / times[OURS], max(work.flops / best, read)
    cells = {"GF/s": f"{rate / 1e9:.0f}", "of the GEMM rate": f"{100 * rate / best:.0f} %"}
    report.compare(title, case, times, over=OURS, cells=cells, **facts)
    return rate / best


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("hq", "hkv"), HEADS)
def bench_suffix_attention(benchmark, report: Report, hq: int, hkv: int, dtype: torch.dtype) -> None:
    work = Pass((hq, hkv), dtype, [PREFIX], [SUFFIX])
    work.check()
    contenders = {
        OURS: work.ours,
        "SDPA on a view": work.view,
        "cat + SDPA": work.concatenated,
        "reference": work.reference,
        "compiled reference": work.compiled(),
        **limits(dtype, work.elements),
    }
    if flex := compiled_flex(work):
        contenders["FlexAttention on a view"] = flex
    times = interleave(contenders, rounds=41)
    case, facts = f"{hq}/{hkv} heads, {str(dtype)[6:]}", {"heads": [hq, hkv], "dtype": str(dtype)[6:]}
    share = show(report, f"suffix_attention, {SUFFIX} queries on a prefix of {PREFIX}", case, times, work, **facts)
    report.target(f"attention {case}, SDPA on a view / ours", times["SDPA on a view"] / times[OURS], at_least=1.0)
    bound = 1.35 if hq == hkv else 1.15
    report.target(f"attention {case}, cat + SDPA / ours", times["cat + SDPA"] / times[OURS], at_least=bound)
    report.target(f"attention {case}, share of the GEMM rate", share, at_least=0.8)
    benchmark.pedantic(work.ours, rounds=5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("hq", "hkv"), HEADS)
def bench_ragged_batch(benchmark, report: Report, hq: int, hkv: int, dtype: torch.dtype) -> None:
    work = Pass((hq, hkv), dtype, RAGGED_PREFIXES, RAGGED_SUFFIXES)
    work.check()
    contenders = {
        OURS: work.ours,
        "padded SDPA": work.padded,
        "reference": work.reference,
        "compiled reference": work.compiled(),
    }
    times = interleave(contenders | limits(dtype, work.elements), rounds=21)
    case, facts = f"{hq}/{hkv} heads, {str(dtype)[6:]}", {"heads": [hq, hkv], "dtype": str(dtype)[6:]}
    show(report, f"suffix_attention, ragged batch of {len(RAGGED_SUFFIXES)}", case, times, work, **facts)
    report.target(f"ragged {case}, padded SDPA / ours", times["padded SDPA"] / times[OURS], at_least=2.0)
    benchmark.pedantic(work.ours, rounds=5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["even", "ragged"])
@pytest.mark.parametrize(("prefix", "suffix"), LENGTHS)
def bench_lengths(benchmark, report: Report, prefix: int, suffix: int, kind: str, dtype: torch.dtype) -> None:
    """Other lengths with 8/2 heads, without targets: one sequence, or four of which three are shorter.

    Compiling takes many seconds, so only some of them have a compiled reference.
    """
    parts = [1] if kind == "even" else [1, 2, 4, 8]
    work = Pass((8, 2), dtype, [prefix // part for part in parts], [-(-suffix // part) for part in parts])
    work.check()
    rivals = {"SDPA on a view": work.view, "cat + SDPA": work.concatenated}
    if kind == "ragged":
        rivals = {"padded SDPA": work.padded}
    contenders = {OURS: work.ours, **rivals, "reference": work.reference}
    if (kind, dtype) == ("even", torch.float32):
        contenders["compiled reference"] = work.compiled()
    times = interleave(contenders | limits(dtype, work.elements), rounds=15, seconds=1.0)
    of = "" if kind == "even" else ", and of a half, a quarter and an eighth"
    title, case = f"suffix_attention, {kind} lengths, 8/2 heads", f"prefix {prefix}, {suffix} queries{of}"
    facts = {"prefix": prefix, "queries": suffix, "dtype": str(dtype)[6:]}
    show(report, title, f"{case}, {str(dtype)[6:]}", times, work, **facts)
    benchmark.pedantic(work.ours, rounds=5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("hq", "hkv"), HEADS)
@pytest.mark.parametrize(("prefix", "suffix"), SMALL)
def bench_small(benchmark, report: Report, prefix: int, suffix: int, hq: int, hkv: int, dtype: torch.dtype) -> None:
    """Few queries or keys, where what a call costs by itself counts."""
    work = Pass((hq, hkv), dtype, [prefix], [suffix])
    work.check()
    contenders = {
        OURS: work.ours,
        "SDPA on a view": work.view,
        "cat + SDPA": work.concatenated,
        "reference": work.reference,
        "compiled reference": work.compiled(),
    }
    several = {name: repeated(run, SMALL_CALLS) for name, run in contenders.items()}
    times = interleave(several | limits(dtype, work.elements), rounds=41, seconds=1.0)
    times |= {name: times[name] / SMALL_CALLS for name in contenders}
    case = f"prefix {prefix}, {suffix} queries, {hq}/{hkv} heads, {str(dtype)[6:]}"
    facts = {"prefix": prefix, "heads": [hq, hkv], "dtype": str(dtype)[6:]}
    show(report, "suffix_attention, small passes", case, times, work, **facts)
    report.target(f"attention {case}, SDPA on a view / ours", times["SDPA on a view"] / times[OURS], at_least=1.0)
    benchmark.pedantic(work.ours, rounds=5)


def bench_few_heads(benchmark, report: Report) -> None:
    """One head and a long prefix: the keys are split between the cores."""
    work = Pass((1, 1), torch.float32, [LONG], [16])
    work.check()

    times = interleave({"one thread": on_threads(1, work.ours), "two threads": on_threads(2, work.ours)}, rounds=31)
    gain = times["one thread"] / times["two threads"]
    cells = {"two threads over one": f"{gain:.2f}x"}
    report.compare(f"one head, prefix {LONG}", "float32", times, over="one thread", ours=["two threads"], cells=cells)
    benchmark.pedantic(work.ours, rounds=5)


def bench_call_overhead_attention(benchmark, report: Report) -> None:
    cache = PrefixCache(1, 1, 1, 64, 32)
    q, k, v = torch.randn(3, 2, 1, 32)
    borders = torch.tensor([0, 2], dtype=torch.int32)

    def whole_pass() -> None:
        cache.begin(borders, [2])
        cache.attend(0, q, k, v)
        cache.advance()
        cache.refresh()

    def attention() -> Tensor:
        return suffix_attention(q, k, v, cache.k[0], cache.v[0], borders, cache.lengths)

    def torchs() -> Tensor:
        return F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)))

    contenders = {"suffix_attention": attention, "a pass of one layer": whole_pass, "SDPA": torchs}
    times = interleave({name: repeated(run, OVERHEAD_CALLS) for name, run in contenders.items()}, rounds=21)
    times = {name: seconds / OVERHEAD_CALLS for name, seconds in times.items()}
    ours = ["suffix_attention", "a pass of one layer"]
    report.compare("call overhead, attention", "2 queries, D 32", times, over="SDPA", ours=ours)
    report.target("suffix_attention 2 queries, microseconds", 1e6 * times["suffix_attention"], at_most=6)
    benchmark(repeated(attention, OVERHEAD_CALLS))

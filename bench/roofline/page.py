"""The text of docs/roofline.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import functional as F

from bench.gpu.plain import PlainCache
from bench.roofline import words
from bench.roofline.counting import count
from bench.roofline.gpus import GPUS, LAUNCH, Gpu
from bench.roofline.kernels import attention_work, commit_work, head_work, meta
from bench.roofline.passes import our_pass, uncached_pass, usual_pass
from bench.roofline.work import Work, least
from bench.support import softmax_confidence
from lsp.models.costs import SHAPES, in_words

LLADA, DREAM = SHAPES["LLaDA-8B"], SHAPES["Dream-7B"]
PREFIX, SUFFIX, BATCHES = 1024, 64, (1, 32)
H100 = GPUS[1]
Works = Callable[[Gpu], Sequence[Work]]
Heads = tuple[int, int, int]  # of queries, of K/V, and their size


def text() -> str:
    return "\n".join(lines()).rstrip() + "\n"


def lines() -> Iterator[str]:
    yield words.HEAD.format(launch=LAUNCH * 1e6)
    yield from table(
        ("GPU", "architecture", "processors", "memory", "bfloat16 products"),
        [(g.name, g.architecture, g.processors, f"{rate(g.bandwidth)}B/s", f"{rate(g.products)}FLOP/s") for g in GPUS],
    )
    yield words.FORMULAS
    yield from kernels()
    yield from passes()


def kernels() -> Iterator[str]:
    yield words.KERNELS
    for title, cases in {
        "From logits to tokens, LLaDA-8B's 126464 ids": logits_cases(),
        "The head of LLaDA-8B, hidden size 4096": head_cases(),
        f"Attention of one layer, {SUFFIX} new tokens in each sequence": attention_cases(),
    }.items():
        yield f"### {title}\n"
        yield from table(
            ("", "bytes", "loads", "products", *(gpu.name for gpu in GPUS)), [row(name, works) for name, works in cases]
        )
        yield ""


def row(name: str, works: Works) -> list[str]:
    """One line: what is moved on an H100, and the times on all GPUs."""
    here = works(H100)
    loads = sum(work.loaded for work in here)
    moved, products = sum(work.moved for work in here), sum(work.products for work in here)
    times = []
    for gpu in GPUS:
        time = least(works(gpu), gpu, launch=0)
        times.append(f"{figure(time.seconds * 1e6)} {time.bound[0]}")
    return [
        name,
        in_words(moved),
        in_words(loads) if loads else "",
        f"{rate(products)}FLOP" if products else "",
        *times,
    ]


def logits_cases() -> Iterator[tuple[str, Works]]:
    for rows in (SUFFIX, SUFFIX * BATCHES[-1]):
        logits = meta(rows, LLADA.vocab_size, dtype=torch.bfloat16)
        yield f"`commit_prefix`, {rows} rows", lambda gpu, n=rows: [commit_work(gpu, n, LLADA.vocab_size)]
        yield f"`topk(2)`, {rows} rows", lambda gpu, x=logits: count(lambda: torch.topk(x, 2, dim=-1))
        yield f"float64 softmax, {rows} rows", lambda gpu, x=logits: count(lambda: softmax_confidence(x))


def head_cases() -> Iterator[tuple[str, Works]]:
    weight = meta(LLADA.vocab_size, LLADA.d_model, dtype=torch.bfloat16)
    for rows in (16, SUFFIX, SUFFIX * BATCHES[-1]):
        hidden = meta(rows, LLADA.d_model, dtype=torch.bfloat16)

        def fused(gpu: Gpu, rows: int = rows) -> list[Work]:
            return [head_work(gpu, rows, LLADA.d_model, LLADA.vocab_size)]

        def usual(gpu: Gpu, hidden: torch.Tensor = hidden) -> list[Work]:
            return count(lambda: softmax_confidence(F.linear(hidden, weight)))

        yield f"`linear_commit_prefix`, {rows} rows", fused
        yield f"`F.linear` + float64 softmax, {rows} rows", usual


def attention_cases() -> Iterator[tuple[str, Works]]:
    for name, config in (("LLaDA-8B", LLADA), ("Dream-7B", DREAM)):
        heads = (config.n_heads, config.n_kv_heads, config.head_dim)
        for batch, prefix in ((1, PREFIX), (1, 8192), (32, PREFIX)):

            def ours(gpu: Gpu, heads: Heads = heads, batch: int = batch, prefix: int = prefix) -> list[Work]:
                lengths = [prefix] * batch, [SUFFIX] * batch, [0] * batch
                return [attention_work(gpu, heads, *lengths, capacity=prefix + SUFFIX)]

            def usual(gpu: Gpu, heads: Heads = heads, batch: int = batch, prefix: int = prefix) -> list[Work]:
                return concatenated(heads, batch, prefix)

            case = f"{name}, batch {batch}, prefix {prefix}"
            yield f"`suffix_attention`, {case}", ours
            yield f"`cat` + SDPA, {case}", usual


def concatenated(heads: Heads, batch: int, prefix: int) -> list[Work]:
    """Without what lays the result out anew: the copy that follows belongs to the model's code."""
    queries, kv, size = heads
    held = meta(batch, kv, prefix, size, dtype=torch.bfloat16)
    q, k = (meta(batch * SUFFIX, n, size, dtype=torch.bfloat16) for n in (queries, kv))
    cache = PlainCache([held], [torch.empty_like(held)])
    return [work for work in count(lambda: cache.attend(0, q, k, torch.empty_like(k))) if work.name != "clone"]


def passes() -> Iterator[str]:
    yield words.PASS.format(prefix=PREFIX, suffix=SUFFIX)
    for batch in BATCHES:
        yield f"### Batch {batch}\n"
        cases: dict[str, Works] = {
            "ours": lambda gpu, batch=batch: our_pass(gpu, LLADA, batch, PREFIX, SUFFIX),
            "usual": lambda gpu, batch=batch: usual_pass(LLADA, batch, PREFIX, SUFFIX),
            "uncached": lambda gpu, batch=batch: uncached_pass(LLADA, batch, PREFIX, SUFFIX),
        }
        yield from table(
            ("", "launches", "bytes", "products", *(gpu.name for gpu in GPUS)),
            [pass_row(name, works) for name, works in cases.items()],
        )
        yield ""
        yield f"Where the bytes of our pass go: {shares(our_pass(H100, LLADA, batch, PREFIX, SUFFIX))}.\n"


def pass_row(name: str, works: Works) -> list[str]:
    here = works(H100)
    moved, products = sum(work.moved for work in here), sum(work.products for work in here)
    times = []
    for gpu in GPUS:
        each = works(gpu)
        launched, replayed = least(each, gpu), least(each, gpu, launch=0)
        captured = f" ({figure(replayed.seconds * 1e3)} {replayed.bound})" if launched != replayed else ""
        times.append(f"{figure(launched.seconds * 1e3)} {launched.bound}{captured}")
    return [name, str(len(here)), in_words(moved), f"{rate(products)}FLOP", *times]


def shares(works: Sequence[Work]) -> str:
    """The share of each kind of kernel in all bytes."""
    kinds = {"mm": "products with weights", "suffix_attention": "attention", "linear_commit_prefix": "the head"}
    found: dict[str, int] = {}
    for work in works:
        kind = kinds.get(work.name, "everything else")
        found[kind] = found.get(kind, 0) + work.moved
    total = sum(found.values())
    return ", ".join(f"{kind} {100 * moved / total:.1f} %" for kind, moved in found.items())


def figure(value: float) -> str:
    """Three digits, or all those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def rate(value: float) -> str:
    """A number with a prefix: 3.35e12 as "3.35 T"."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for cells in rows:
        yield "| " + " | ".join(map(str, cells)) + " |"

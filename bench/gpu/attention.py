"""Suffix attention against torch's attention, FlexAttention and flash-attn, on even and on ragged passes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from bench.gpu import rivals
from bench.gpu.case import OURS, Case, Contender, Plan, Run
from bench.gpu.checks import different, farther, first
from bench.gpu.shapes import NAMES, Heads, Lengths, Shapes
from lsp_kernels import Workspace, reference, suffix_attention


def plans(shapes: Shapes) -> Iterator[Plan]:
    for dtype in shapes.dtypes:
        for heads in shapes.heads:
            for lengths in shapes.lengths:
                facts = {"heads": heads.queries, "K/V heads": heads.kv, "head size": heads.size, "dtype": NAMES[dtype]}
                facts |= {"prefixes": list(lengths.prefixes), "suffixes": list(lengths.suffixes)}
                name = f"{heads.queries}/{heads.kv} heads, {lengths.name}, {NAMES[dtype]}"
                yield Plan("suffix_attention", name, facts, partial(attention_case, heads, lengths, dtype))


class Work:
    """A pass on the GPU. All its tokens are appended, so after our first run the cache holds every key.

    Tokens lie in a batch [B, N, H, D] where all sequences have as many of them, else end to end.
    """

    def __init__(self, heads: Heads, lengths: Lengths, dtype: torch.dtype) -> None:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, heads.size, device="cuda").to(dtype)

        self.heads, self.lengths, self.dtype = heads, lengths, dtype
        self.batch, self.borders = len(lengths.prefixes), [0, *accumulate(lengths.suffixes)]
        even = (self.batch, lengths.suffixes[0]) if lengths.one_suffix else (self.borders[-1],)
        self.q, self.k, self.v = normal(*even, heads.queries), normal(*even, heads.kv), normal(*even, heads.kv)
        self.capacity = max(p + n for p, n in zip(lengths.prefixes, lengths.suffixes, strict=True))
        cache = (self.batch, heads.kv, self.capacity)
        self.k_cache, self.v_cache, self.workspace = normal(*cache), normal(*cache), Workspace()
        self.prefixes, self.suffixes = (integers(x) for x in (lengths.prefixes, lengths.suffixes))
        self.cu_seqlens = None if lengths.one_suffix else integers(self.borders)

    def ours(self) -> Tensor:
        lengths = (self.cu_seqlens, self.prefixes, self.suffixes)
        return suffix_attention(self.q, self.k, self.v, self.k_cache, self.v_cache, *lengths, workspace=self.workspace)

    def packed(self, x: Tensor) -> Tensor:
        """Tokens end to end."""
        return x.flatten(0, 1) if self.lengths.one_suffix else x

    def each(self) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Frozen prefix, new q, k, v and the row of both caches of each sequence."""
        tokens = [self.packed(x) for x in (self.q, self.k, self.v)]
        for b, ((begin, end), prefix) in enumerate(zip(pairwise(self.borders), self.lengths.prefixes, strict=True)):
            yield prefix, *(x[begin:end] for x in tokens), self.k_cache[b], self.v_cache[b]

    def truth(self) -> Tensor:
        """The definition in float64, one sequence after the other so that it fits into memory."""
        out = []
        for prefix, q, k, v, *caches in self.each():
            rows = [cache[None, :, :prefix].double() for cache in caches]
            wide = (x[None].double() for x in (q, k, v))
            out.append(reference.suffix_attention(*wide, *rows, None, integers([prefix]))[0])
        return torch.cat(out)

    def limits(self) -> dict[str, tuple[Run, int]]:
        """As many bytes as the keys and values have, by a copy of half of them, and as many products, by cuBLAS."""
        pairs = list(zip(self.lengths.prefixes, self.lengths.suffixes, strict=True))
        keys = sum(p + n for p, n in pairs) * self.heads.kv * self.heads.size
        source, target = torch.empty(2, keys, dtype=self.dtype, device="cuda")  # K is as large as V
        scores = sum(n * (p + n) for p, n in pairs) * self.heads.queries
        rows = max(self.borders[-1] * self.heads.queries, 1)
        left, right = (
            torch.randn(*shape, device="cuda").to(self.dtype)
            for shape in ((rows, self.heads.size), (self.heads.size, max(2 * scores // rows, 1)))
        )
        return {"read": (lambda: target.copy_(source), 1), "matmul": (lambda: left @ right, 1)}


def integers(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def attention_case(heads: Heads, lengths: Lengths, dtype: torch.dtype) -> Case:
    work = Work(heads, lengths, dtype)
    truth = work.truth()
    one_by_one = rivals.one_by_one(work)
    allowed = 2 * float((one_by_one().double() - truth).abs().max()) + 1e-5  # twice the error of torch's attention

    def near(out: Tensor) -> str | None:
        return farther("output", work.packed(out) if out.dim() == 4 else out, truth, allowed)

    def ours(out: Tensor) -> str | None:
        return first(near(out), appended(work))

    missing: dict[str, str] = {}
    others = [
        *rivals.of_one_prefix(work, near, missing),
        *rivals.of_one_suffix(work, near, missing),
        *rivals.of_ragged(work, near),
    ]
    if work.batch > 1:
        others.append(Contender("cat + SDPA, one by one", one_by_one, near))
    return Case([Contender(OURS, work.ours, ours), *others], work.limits(), missing)


def appended(work: Work) -> str | None:
    """Whether the cache holds the new keys and values, to the bit."""
    for prefix, q, k, v, k_cache, v_cache in work.each():
        there = [cache[:, prefix : prefix + len(q)] for cache in (k_cache, v_cache)]
        if found := different(("k_cache", "v_cache"), there, [x.transpose(0, 1) for x in (k, v)]):
            return found
    return None

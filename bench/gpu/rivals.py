"""What people use instead of suffix attention, each on the layout that suits it. Ours has filled the cache before."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from bench.gpu.case import Check, Contender, Run

if TYPE_CHECKING:
    from bench.gpu.attention import Work

FLASH = "flash_attn_with_kvcache"


def one_by_one(work: Work) -> Run:
    """Keys are concatenated, then torch attends; one sequence after the other, so it serves ragged passes too."""
    grouped = work.heads.queries != work.heads.kv

    def run() -> Tensor:
        out = []
        for prefix, q, k, v, k_cache, v_cache in work.each():
            pairs = ((k_cache, k), (v_cache, v))
            keys = (torch.cat([cache[:, :prefix], new.transpose(0, 1)], dim=1)[None] for cache, new in pairs)
            found = F.scaled_dot_product_attention(q.transpose(0, 1)[None], *keys, enable_gqa=grouped)
            out.append(found[0].transpose(0, 1))
        return torch.cat(out)

    return run


def of_one_prefix(work: Work, near: Check, missing: dict[str, str]) -> Iterator[Contender]:
    """Contenders that need sequences of equal length in cache and pass."""
    lengths, grouped = work.lengths, work.heads.queries != work.heads.kv
    names = ("cat + SDPA", "SDPA on a view", "FlexAttention on a view")
    if not (lengths.one_prefix and lengths.one_suffix):
        missing.update(dict.fromkeys(names, "needs sequences of one length"))
        return
    prefix = lengths.prefixes[0]
    torch.compiler.reset()  # or it would give up after so many shapes
    compiled = torch.compile(flex_attention, dynamic=False)

    def checked(name: str, run: Run) -> Contender:
        return Contender(name, run, lambda out: near(out.transpose(1, 2)))  # torch has heads before tokens

    def concatenated() -> Tensor:
        pairs = ((work.k_cache, work.k), (work.v_cache, work.v))
        keys = (torch.cat([cache[:, :, :prefix], new.transpose(1, 2)], dim=2) for cache, new in pairs)
        return F.scaled_dot_product_attention(work.q.transpose(1, 2), *keys, enable_gqa=grouped)

    def view() -> Tensor:
        keys = (work.k_cache, work.v_cache)
        return F.scaled_dot_product_attention(work.q.transpose(1, 2), *keys, enable_gqa=grouped)

    def flex() -> Tensor:
        return compiled(work.q.transpose(1, 2), work.k_cache, work.v_cache, enable_gqa=grouped)

    yield from (checked(*each) for each in zip(names, (concatenated, view, flex), strict=True))


def of_one_suffix(work: Work, near: Check, missing: dict[str, str]) -> Iterator[Contender]:
    """flash-attn's decoding kernel, where it is installed: it appends as well, and prefixes may differ."""
    if not work.lengths.one_suffix:
        missing[FLASH] = "needs as many new tokens in every sequence"
    elif work.dtype == torch.float32:
        missing[FLASH] = "has no float32"
    else:
        try:
            flash = getattr(importlib.import_module("flash_attn"), FLASH)
        except (ImportError, AttributeError) as error:
            missing[FLASH] = f"not installed: {error}"
        else:
            k_cache, v_cache = (x.transpose(1, 2).contiguous() for x in (work.k_cache, work.v_cache))
            operands = (work.q, k_cache, v_cache, work.k, work.v)
            yield Contender(FLASH, lambda: flash(*operands, cache_seqlens=work.prefixes, causal=False), near)


def of_ragged(work: Work, near: Check) -> Iterator[Contender]:
    """One call of torch's attention for a ragged pass: everything is padded, and a mask hides what is not there.

    Padded queries and the mask are made beforehand, and the cache holds all keys already.
    """
    if work.lengths.one_prefix and work.lengths.one_suffix:
        return
    longest, grouped = max(work.lengths.suffixes), work.heads.queries != work.heads.kv
    q = work.q.new_zeros(work.batch, longest, work.heads.queries, work.heads.size)
    there = torch.zeros(work.batch, longest, dtype=torch.bool, device="cuda")
    for b, (_, new, *_) in enumerate(work.each()):
        q[b, : len(new)], there[b, : len(new)] = new, True
    keys = (work.prefixes + work.suffixes)[:, None] > torch.arange(work.capacity, device="cuda")
    mask = keys[:, None, None, :]

    def padded() -> Tensor:
        operands = (q.transpose(1, 2), work.k_cache, work.v_cache)
        return F.scaled_dot_product_attention(*operands, attn_mask=mask, enable_gqa=grouped)

    yield Contender("padded SDPA with a mask", padded, lambda out: near(out.transpose(1, 2)[there]))

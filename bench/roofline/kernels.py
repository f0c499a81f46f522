"""The work of our kernels, from the launches that are planned for a GPU. Lengths, flags and tickets are not counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bench.roofline.gpus import Gpu
from bench.roofline.work import Work
from lsp_kernels import PrefixRule
from lsp_kernels.triton.configs import attention, commit, head

RULE = PrefixRule()
FLOAT, TOKEN = 4, 8  # bytes
STATISTICS = TOKEN + 2 * FLOAT  # of a scored row: token, margin and largest logit
STEP = 16  # ranges of ids begin at multiples of this


def meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def chunks(n: int, size: int) -> int:
    return -(-n // size)


def commit_work(gpu: Gpu, rows: int, ids: int, dtype: torch.dtype = torch.bfloat16, batch: int = 1) -> Work:
    """`commit_prefix` of packed rows that are all scored: logits once, and the best two of every split twice.

    The rule reads tokens and margins again.
    """
    logits = meta(rows, ids, dtype=dtype)
    with gpu.planned():
        slots = commit.commit_slots(logits, meta(batch + 1), meta(batch), RULE)
        splits = commit.splits_of(slots.likely, ids, gpu.processors)
    shared = FLOAT * commit.room_of(slots.count, splits, commit.planes(False, False, False))[0]
    again, outputs = rows * (TOKEN + FLOAT), rows * STATISTICS
    loads, stores = logits.nbytes + shared + again, shared + outputs
    return Work("commit_prefix", logits.nbytes, outputs, loaded=loads, stored=stores)


def head_work(gpu: Gpu, rows: int, size: int, ids: int, dtype: torch.dtype = torch.bfloat16, batch: int = 1) -> Work:
    """`linear_commit_prefix` of packed rows that are all scored.

    Every tile of rows reads all weights, and its rows once for every tile of ids. No logits are written.
    """
    hidden, weight = meta(rows, size, dtype=dtype), meta(ids, size, dtype=dtype)
    with gpu.planned():
        plan = head.commit_launch(hidden, weight, meta(batch + 1), meta(batch), RULE, False)
    tile = plan.config
    tiles = chunks(rows, tile.rows)
    counts = list(ranges(plan.programs // tiles, ids, tile.ids))
    blocks = sum(chunks(count, tile.ids) for count in counts)  # tiles of ids
    shared = FLOAT * commit.planes(False, False, False) * tiles * tile.rows * len(counts)
    again, outputs = rows * (TOKEN + FLOAT), rows * STATISTICS  # the rule reads tokens and margins
    products = 2 * tiles * tile.rows * blocks * tile.ids * chunks(size, tile.depth) * tile.depth
    loads = tiles * weight.nbytes + blocks * hidden.nbytes + shared + again
    return Work("linear_commit_prefix", weight.nbytes + hidden.nbytes, outputs, products, loads, shared + outputs)


def ranges(programs: int, ids: int, least: int) -> Iterator[int]:
    """How many ids each program of a tile of rows has, as the kernel divides them."""
    share = ids if programs == 1 else max((ids - 1) // programs // STEP * STEP + STEP, least)
    for begin in range(0, ids, share):
        yield min(share, ids - begin)


def attention_work(
    gpu: Gpu,
    heads: tuple[int, int, int],
    prefixes: Sequence[int],
    suffixes: Sequence[int],
    appended: Sequence[int],
    capacity: int,
    dtype: torch.dtype = torch.bfloat16,
) -> Work:
    """`suffix_attention` of packed sequences. `heads`: of queries, of K/V, and their size.

    Every tile of rows reads all keys and values of its sequence; a row is one query head of one token. Tiles whose keys
    several programs share write their sums, and one program reads them.
    """
    queries, kv, size = heads
    tokens, batch = sum(suffixes), len(prefixes)
    q, cache = meta(tokens, queries, size, dtype=dtype), meta(batch, kv, capacity, size, dtype=dtype)
    with gpu.planned():
        plan = attention.launch_of(q, cache, batch)
    tile, row = plan.config, size * dtype.itemsize
    keys = asked = shared = blocks = 0
    for (p, n), splits in zip(zip(prefixes, suffixes, strict=True), splits_of(plan, prefixes, suffixes), strict=True):
        tiles, both = chunks(n * plan.group, tile.rows), chunks(p, tile.keys) + chunks(n, tile.keys)
        active = chunks(both, chunks(both, splits)) if both else 0
        keys += 2 * (p + n) * row
        asked += tiles * 2 * (p + n) * row + active * n * plan.group * row
        shared += tiles * active * tile.rows * (plan.padded + 2) * FLOAT if active > 1 else 0
        blocks += tiles * both
    new = 2 * sum(appended) * row * kv
    products = 4 * blocks * tile.rows * tile.keys * plan.padded * kv
    read, written = q.nbytes + kv * keys, q.nbytes + new
    loads, stores = kv * (asked + shared) + new, written + kv * shared
    return Work("suffix_attention", read, written, products, loads, stores)


def splits_of(plan: attention.AttentionLaunch, prefixes: Sequence[int], suffixes: Sequence[int]) -> list[int]:
    """How many programs share the keys of a tile of each sequence: the most for which there are programs."""
    if not plan.extra:
        return [1] * len(prefixes)
    tile = plan.config
    pairs = list(zip(prefixes, suffixes, strict=True))
    shortest = [chunks(chunks(p, tile.keys) + chunks(n, tile.keys), plan.least) for p, n in pairs]
    tiles = [chunks(n * plan.group, tile.rows) for n in suffixes]
    doublings = 0
    while True:
        splits = [min(chunks(each, 1 << doublings), plan.splits) for each in shortest]
        if sum(t * (s - 1) for t, s in zip(tiles, splits, strict=True)) <= plan.extra:
            return [max(s, 1) for s in splits]
        doublings += 1

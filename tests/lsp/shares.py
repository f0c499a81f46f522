"""What the ranks of the tests of tensor parallel do, and the defects that these tests must notice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import lsp
from lsp.decoding import loop
from lsp.decoding.led import Led
from lsp.models import Transformer, checkpoint, parallel
from lsp.models.sharding import Cut, Share
from lsp.ranks import Ranks
from lsp_kernels import Vocabulary


def a_pass(model: Transformer, ids: Sequence[Sequence[int]], fronts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits of a ragged pass, and of the next one over what the first has left out of the cache."""
    frozen = model.new_cache(len(ids), max(map(len, ids)))
    first = model(*packed(ids, [0] * len(ids)), frozen, fronts)
    second = model(*packed(ids, fronts), frozen)
    return model.lm_head(first), model.lm_head(second)


def packed(ids: Sequence[Sequence[int]], begins: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and borders of a pass over what begins there."""
    rest = [list(each[begin:]) for each, begin in zip(ids, begins, strict=True)]
    positions = [torch.arange(begin, len(each)) for each, begin in zip(ids, begins, strict=True)]
    borders = torch.tensor(np.cumsum([0, *map(len, rest)]), dtype=torch.int32)
    return torch.tensor([token for each in rest for token in each]), torch.cat(positions), borders


@cache
def loaded(folder: Path, dtype: str | None = None) -> Transformer:
    """The share of this rank, loaded once."""
    return lsp.load(folder, dtype=dtype, tensor_parallel=True)


def logits(folder: Path, ids: Sequence[Sequence[int]], fronts: Sequence[int], defect: str | None = None) -> Any:
    with broken(defect):
        return a_pass(lsp.load(folder, tensor_parallel=True), ids, fronts)


def fused_as_it_is(folder: Path, ids: Sequence[Sequence[int]], fronts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits where each rank has consecutive rows of the whole fused matrices, as a general splitter takes them."""
    model, whole = lsp.load(folder, tensor_parallel=True), lsp.load(folder)
    for block, other in zip(model.blocks, whole.blocks, strict=True):
        for name in ("qkv", "gate_up"):
            weight = getattr(other, name).weight.chunk(model.ranks.size)[model.ranks.rank]
            getattr(block, name).weight.copy_(weight)
    return a_pass(model, ids, fronts)


def answers(model: Transformer, prompts: Sequence[Sequence[int]], options: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What decoding gives: tokens, when they were committed, passes, positions, log-probabilities."""
    found = lsp.generate(model, prompts, **options)
    return [(g.tokens, g.committed_in, g.passes, g.positions, g.logprobs) for g in found]


def decoded(
    folder: Path, prompts: Sequence[Sequence[int]], options: dict[str, Any], dtype: str | None, defect: str | None
) -> Any:
    with broken(defect):
        return answers(loaded(folder, dtype), prompts, options)


def counted(folder: Path, sizes: Sequence[tuple[int, int]], temperature: float) -> list[tuple[Any, ...]]:
    """For passes over so many tokens, of which so many are scored: calls, payload and sent bytes of each."""
    model, out = loaded(folder), []
    for tokens, rows in sizes:
        ranks = model.ranks
        ranks.calls.clear()
        ranks.payload.clear()
        options = {"scheduler": lsp.FixedPrefix(rows), "temperature": temperature, "max_new_tokens": rows}
        lsp.generate(model, [[9] * (tokens - rows)], **options)
        out.append((dict(ranks.calls), dict(ranks.payload), ranks.sent))
    return out


def held(folder: Path) -> tuple[int, int]:
    """Bytes of this rank's weights, and of the slices that it has read from the files."""
    read = []

    def counting(target: Tensor, *arguments: Any) -> None:
        read.append(target.nbytes)
        original(target, *arguments)

    original = checkpoint.read_into
    with patch.object(checkpoint, "read_into", counting):
        model = lsp.load(folder, tensor_parallel=True)
    return sum(parameter.nbytes for parameter in model.parameters()), sum(read)


def peak(folder: Path) -> int:
    """How many bytes loading adds at its peak to what the process had before."""
    lsp.load("tiny")  # so that the libraries are in memory
    with patch.object(checkpoint, "SLICE_BYTES", 2**20):
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        model = lsp.load(folder, tensor_parallel=True)
        out = status("VmHWM") - before
    assert model.config.n_layers
    return out


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def at_random(folder: Path, defect: str | None = None) -> list[list[int]]:
    """Tokens by a scheduler that draws them anew in every process; where, is the same in all of them."""
    rng = np.random.default_rng(os.getpid())

    def choose(step: lsp.decoding.Step) -> list[lsp.decoding.Chosen]:
        where = [canvas.masks[:3] for canvas in step.canvases]
        return [(at, rng.integers(8, 100, size=len(at))) for at in where]

    with broken(defect):
        found = lsp.generate(loaded(folder), [[9, 10], [11, 12, 13]], max_new_tokens=8, scheduler=choose)
    return [g.tokens for g in found]


def asks_at_random(folder: Path) -> list[list[int]]:
    """The same, by a scheduler that also asks for other positions, and as often as it likes, in every process."""
    rng = np.random.default_rng(os.getpid())

    def choose(step: lsp.decoding.Step) -> list[lsp.decoding.Chosen]:
        for _ in range(rng.integers(0, 4)):
            step.stats([rng.permutation(canvas.masks)[: rng.integers(0, 4)] for canvas in step.canvases])
        where = [rng.permutation(canvas.masks)[: rng.integers(1, 4)] for canvas in step.canvases]
        return [(at, stats.tokens) for at, stats in zip(where, step.stats(where), strict=True)]

    return [g.tokens for g in lsp.generate(loaded(folder), [[9, 10], [11, 12, 13]], max_new_tokens=8, scheduler=choose)]


def decoded_with(folder: Path, given: str) -> str:
    """The error of a call in which one argument differs between the ranks, or in which the scheduler raises."""
    model = loaded(folder)
    here = model.ranks.rank
    arguments: dict[str, Any] = {"max_new_tokens": 8 + here if given == "max_new_tokens" else 8}
    if given == "options":
        arguments["block_length"] = 4 + here
    if given == "seeds":
        arguments["seed"] = here
    if given == "vocabulary":
        arguments["vocabulary"] = Vocabulary(model.config.vocab_size, suppress=[20 + here])
    if given == "scheduler":
        arguments["scheduler"] = failing
    try:
        lsp.generate(model, [[9, 10 + here if given == "prompts" else 10]], **arguments)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def looks_at_nan(folder: Path) -> list[int]:
    """Tokens by a scheduler that looks at unusable rows, after it has chosen, as a trace does."""
    model = lsp.load(folder, tensor_parallel=True)

    def choose(step: lsp.decoding.Step) -> list[lsp.decoding.Chosen]:
        first = [canvas.masks[:1] for canvas in step.canvases]
        chosen = [(at, stats.tokens) for at, stats in zip(first, step.stats(first), strict=True)]
        with step.unnoticed():
            step.stats([canvas.masks[-1:] for canvas in step.canvases])
        return chosen

    def last_is_nan(hidden: Tensor, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return right_stats(hidden * torch.nan if calls % 2 == 0 else hidden, *arguments, **options)

    calls = 0
    with patch.object(parallel, "linear_token_stats", last_is_nan):
        (out,) = lsp.generate(model, [[9, 10]], max_new_tokens=4, scheduler=choose, stop_early=False)
    return out.tokens


def failing(step: lsp.decoding.Step) -> list[lsp.decoding.Chosen]:
    raise ArithmeticError("the scheduler has a defect")


def suppressed(folder: Path, ids: Sequence[int]) -> list[list[int]]:
    """Tokens where these ids, which may be all of a shard, are suppressed."""
    model = loaded(folder)
    return [tokens for tokens, *_ in answers(model, [[9, 10]], suppressing(model, ids))]


def suppressing(model: Transformer, ids: Sequence[int]) -> dict[str, Any]:
    return {"max_new_tokens": 8, "vocabulary": Vocabulary(model.config.vocab_size, suppress=ids)}


def saved(folder: Path, to: Path) -> str:
    try:
        lsp.save_pretrained(loaded(folder), to)
    except ValueError as error:
        return str(error)
    return "no error"


def decode_for_ever(folder: Path, told: Path) -> str:
    """Decodes one text after another until an error comes, and returns that; `told` says that it has begun."""
    model = lsp.load(folder, tensor_parallel=True)
    try:
        while True:
            lsp.generate(model, [[9, 10]], max_new_tokens=32, scheduler=lsp.FixedPrefix(1))
            told.write_text("decoding")
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


# Defects: each is what the name says, and the tests of logits or tokens must see the difference.


def other_rows(self: Share, parameter: str) -> tuple[Cut, ...]:
    """Everyone has the rows of K and V that belong to rank 0."""
    cuts = right_cuts(self, parameter)
    if ".qkv." not in parameter:
        return cuts
    q, k, v = cuts
    return (q, k._replace(start=0), v._replace(start=0))


def swapped_mlp(self: Share, parameter: str) -> tuple[Cut, ...]:
    """The columns of `down` that belong to the other rank."""
    cuts = right_cuts(self, parameter)
    if ".down." not in parameter:
        return cuts
    (cut,) = cuts
    return (cut._replace(start=(cut.start + cut.total // 2) % cut.total),)


def identity(self: Ranks, tensor: Tensor) -> Tensor:
    return tensor


def no_offset(*arguments: Any, id_offset: int = 0, **options: Any) -> Any:
    return right_stats(*arguments, **options)


def only_out(self: parallel.Joined, x: Tensor) -> Tensor:
    """Sums after `out`, and not after `down`."""
    out = torch.nn.functional.linear(x, self.weight)
    return self.ranks.all_reduce(out) if self.in_features != 48 else out


def own_part(self: parallel.ShardedEmbedding, tokens: Tensor) -> Tensor:
    return torch.nn.functional.embedding(tokens % self.num_embeddings, self.weight)


right_cuts, right_stats = Share.cuts, parallel.linear_token_stats


def everyone_chooses(scheduler: Callable[..., Any], ranks: Ranks) -> Callable[..., Any]:
    return scheduler


DEFECTS: dict[str, tuple[Any, str, Any]] = {
    "rows of k and v from another rank": (Share, "cuts", other_rows),
    "columns of down from another rank": (Share, "cuts", swapped_mlp),
    "no sums": (Ranks, "all_reduce", identity),
    "no sum after down": (parallel.Joined, "forward", only_out),
    "embedding without its offset": (parallel.ShardedEmbedding, "forward", own_part),
    "vocabulary without its offset": (parallel, "linear_token_stats", no_offset),
    "nobody leads": (loop, "Led", everyone_chooses),
}
LOGITS = [name for name in DEFECTS if name not in ("vocabulary without its offset", "nobody leads")]


@contextmanager
def broken(defect: str | None) -> Iterator[None]:
    """The library with one of the defects."""
    if defect is None:
        yield
        return
    owner, name, wrong = DEFECTS[defect]
    with patch.object(owner, name, wrong):
        yield


assert loop.Led is Led

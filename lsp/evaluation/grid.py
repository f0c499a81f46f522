"""Every scheduler on the same grid of loop options.

A grid is run on development problems; what is good there is run again on fresh ones (`lsp.evaluation.verdict`). Results
go to a file (`lsp.evaluation.results`), so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from lsp.decoding import Options
from lsp.evaluation.comparison import Result, Setting, compare
from lsp.evaluation.problems import Problems
from lsp.evaluation.results import append, read, writing
from lsp.evaluation.workers import Workers
from lsp.schedulers import (
    AdaBlock,
    EntropyBound,
    Factor,
    Frechet,
    Full,
    Klass,
    Less,
    LocalLeap,
    LongestStablePrefix,
    Prophet,
    SchED,
    SlidingBlock,
    Threshold,
    TopK,
)
from lsp.schedulers.timed import DreamOrder
from lsp_kernels import PrefixRule

UNSAID = {"template": 0}
"""What rows of earlier versions do not say."""


OF_FAST_DLLM: tuple[Literal["none", "block", "dual"], ...] = ("none", "block", "dual")
"""The caches that Fast-dLLM's code has, by our names."""


@dataclass(frozen=True)
class Candidate:
    """A setting of a family of schedulers."""

    family: str
    setting: Setting

    @property
    def name(self) -> str:
        return self.setting.name


def loops(*, all_at_once: bool = False) -> list[Options]:
    """The grid of loop options, for every scheduler the same; few for those that commit `all_at_once`, late.

    Without `refresh_scattered`: where nearly every pass scatters, that is ``cache="none"``.
    """
    whole, blocks = Options(), Options(block_length=16)
    out = [whole, replace(whole, cache="none"), blocks]
    if all_at_once:
        return out
    out += [replace(blocks, block_length=length, cache=c) for c in OF_FAST_DLLM for length in (16, 32)]
    return [*out, *(Options(lookahead=ahead) for ahead in (24, 32)), Options(lookahead=64, cache="none")]


def prefixes() -> list[LongestStablePrefix]:
    """The longest stable prefix with every loop: the default's with and without islands."""
    return [LongestStablePrefix(islands=None), LongestStablePrefix()]


def variants(preset: LongestStablePrefix) -> list[tuple[LongestStablePrefix, Options]]:
    """A preset and its neighbours: in every parameter of the rule and of islands, and in the loop."""
    rule, loop = preset.rule, preset.options
    rules = [
        *(replace(rule, floor=floor) for floor in (2.0, 2.5, 3.5, 4.0, 5.0)),
        *(replace(rule, snap=True, no_delimiter="keep", window=window) for window in (1, 16)),
        replace(rule, snap=True, no_delimiter="minimum"),
    ]
    careful = replace(rule, floor=4.0)
    schedulers = [
        *(replace(preset, rule=each) for each in rules),
        *(replace(preset, islands=level) for level in (3.0, 4.0, 6.0, 8.0)),
        *(replace(preset, fade=fade) for fade in (0.0, 0.05, 0.15, 0.2)),
        *(LongestStablePrefix(careful, islands, "first", fade=0.0) for islands in (None, 4.0)),
        LongestStablePrefix(replace(rule, beta=0.5), islands=None, fade=preset.fade),
        replace(preset, stuck="first"),
        replace(preset, stable=2),
    ]
    once = replace(loop, refresh_scattered=False)
    around = [
        *(replace(loop, lookahead=ahead) for ahead in (None, 16, 20, 32, 48, 64)),
        *(replace(loop, recompute=last) for last in (8, 16)),
        *(replace(once, recompute=last) for last in (0, 8, 24)),
    ]
    paper = LongestStablePrefix.paper()
    return [
        (paper, paper.options),
        *((scheduler, loop) for scheduler in (preset, *schedulers)),
        *((preset, each) for each in around),
    ]


def rivals() -> dict[str, Sequence[Any]]:
    """The rivals that are run with every loop: their authors' parameters, and stricter ones."""
    return {
        "Threshold": [Threshold(p) for p in (0.9, 0.95, 0.98, 0.99, 0.995)],
        "Factor": [Factor(f) for f in (0.1, 0.25, 0.5, 1.0)],
        "Frechet": [Frechet(delta) for delta in (0.25, 0.75, 0.85, 0.95)],
        "EntropyBound": [EntropyBound(gamma) for gamma in (0.001, 0.01, 0.03, 0.1, 1.0)],
        "LocalLeap": [LocalLeap(*each) for each in ((0.9, 0.75), (0.95, 0.85), (0.98, 0.9), (0.99, 0.95))],
        "Less": [Less(*each) for each in ((0.75, 2), (0.9, 2), (0.95, 2), (0.98, 2))],
        "Klass": [Klass(*each) for each in ((0.9, 0.01), (0.6, 0.015), (0.95, 0.01), (0.9, 0.1), (0.98, 0.1))],
    }


def token_by_token() -> list[tuple[Full, Options]]:
    """Full, which is slow, with the loops that change what it answers: the length of the blocks and the cache."""
    options = [Options(length, cache=cache) for length in (None, 16, 8) for cache in ("prefix", "none")]
    return [(Full(), each) for each in (*options, *(Options(16, cache=cache) for cache in ("block", "dual")))]


def of_fixed_speed() -> list[tuple[str, Any, Options]]:
    """What commits a given share in each pass: LLaDA with fewer steps, in its blocks, and Dream's orders."""
    uncached = Options(cache="none")
    return [
        *(("TopK", TopK(k), replace(uncached, block_length=length)) for k in (2, 4) for length in (16, 32)),
        *(("Dream", DreamOrder(alg, steps), uncached) for alg in ("entropy", "topk_margin") for steps in (16, 32, 64)),
    ]


def early_exits() -> dict[str, Sequence[Any]]:
    """The rivals that commit everything at once."""
    levels = [(7.5 * k, 2.5 * k) for k in (1.0, 2.0, 3.0)]
    return {
        "Prophet": [Prophet((high, (high + low) / 2, low)) for high, low in levels],
        "SchED": [
            *(SchED(high, low) for high, low in levels),
            *(SchED(15.0, 5.0, shape) for shape in ("linear", "cosine")),
            SchED(7.5, 0.0, k=16.0),
        ],
    }


def with_own_blocks() -> list[Candidate]:
    """The rivals whose idea is the block, with loops of their own: first those of their authors, then others."""
    levels, lengths = (0.9, 0.95, 0.98, 0.99), (32, 16)
    caches: tuple[Literal["block", "dual", "none", "prefix"], ...] = ("block", "dual", "none", "prefix")
    delimited = [(Options(length, "delimiter", cache=cache), "line") for length in lengths for cache in caches]
    delimited += [(Options(length, "delimiter", cache=cache), "text") for length in lengths for cache in caches[:2]]
    return [
        *(_candidate("AdaBlock", AdaBlock(p), *each) for p, each in product(levels, delimited)),
        *(_candidate("SlidingBlock", SlidingBlock(p), each) for p, each in product(levels, sliding_blocks())),
    ]


def sliding_blocks() -> list[Options]:
    """As DSB's authors have them, both variants with their cache and without any; then on a cache of prefixes."""
    kinds: tuple[Literal["sliding", "growing"], ...] = ("sliding", "growing")
    own = SlidingBlock().options
    theirs = [replace(own, block_length=length, blocks=kind) for length in (32, 16) for kind in kinds]
    theirs += [Options(32, kind, cache="none") for kind in kinds]
    ours = [Options(length, "sliding", recompute=own.recompute) for length in (32, 16)]
    ours += [replace(each, lookahead=64, recompute=last) for each in ours for last in (0, own.recompute)]
    return theirs + ours


def _candidate(family: str, scheduler: Any, options: Options, delimiters: str = "text") -> Candidate:
    """Named by what differs from the defaults, of which text is one."""
    kind = None if delimiters == "text" else delimiters
    name = describe(scheduler, options) + ("" if kind is None else f" delimiters={kind}")
    return Candidate(family, Setting(name, scheduler, options, kind))


def as_fast_dllm() -> list[tuple[Threshold | Factor, Options]]:
    """Fast-dLLM's own loop: both its rules and caches, and a stop ends nothing, so that the tail is decoded."""
    own = [Options(length, cache=cache, stop_early=False) for length in (16, 32) for cache in OF_FAST_DLLM]
    rules: tuple[Threshold | Factor, ...] = (Threshold(), Factor())
    return [*product(rules, own)]


def grid() -> list[Candidate]:
    """Every family, at most 60 settings of each, and the default with its neighbours."""
    pairs = [
        (family, scheduler, options)
        for families, all_at_once in (({"LSP": prefixes()} | rivals(), False), (early_exits(), True))
        for family, schedulers in families.items()
        for scheduler, options in product(schedulers, loops(all_at_once=all_at_once))
    ]
    pairs += [("Full", scheduler, loop) for scheduler, loop in token_by_token()]
    pairs += of_fixed_speed()
    pairs += [("LSP", scheduler, loop) for scheduler, loop in variants(LongestStablePrefix())]
    pairs += [("Fast-dLLM", scheduler, loop) for scheduler, loop in as_fast_dllm()]
    out = [*(_candidate(*each) for each in pairs), *with_own_blocks()]
    return list({candidate.name: candidate for candidate in out}.values())


def describe(scheduler: Any, options: Options) -> str:
    """A name for a setting: what differs from the defaults."""
    words = [type(scheduler).__name__]
    words += _changes(scheduler)
    words += _changes(options)
    return " ".join(words)


def _changes(thing: Any) -> Iterator[str]:
    for f in fields(thing):
        value = getattr(thing, f.name)
        if isinstance(value, PrefixRule):
            yield from _changes(value)
        elif value is not None and value != f.default and f.init:
            yield f"{f.name}={value}"


def run(
    model: Any,
    problems: Problems,
    candidates: Iterable[Candidate],
    path: Path,
    *,
    max_new_tokens: int,
    batch: int = 50,
    about: dict[str, Any],
    advance: Callable[[], None] = lambda: None,
    workers: Workers | None = None,
    **arguments: Any,
) -> None:
    """Adds a row for every candidate that the file does not have yet; `about` says what else the results depend on.

    The `workers` share the problems of every candidate, at most `batch` at a time; the first one writes.
    """
    workers = Workers() if workers is None else workers
    given: dict[str, Any] = {"max_new_tokens": max_new_tokens, "batch": min(batch, -(-len(problems) // workers.size))}
    with writing(path) if workers.rank == 0 else nullcontext():
        rows = results(path, about, problems, max_new_tokens) if workers.rank == 0 else []
        done = workers.share({row["name"] for row in rows if (row["task"], row["n"]) == (problems.name, len(problems))})
        for candidate in candidates:
            if candidate.name not in done:
                found = compare(model, problems, [candidate.setting], workers=workers, **given, **arguments)
                for result in found:
                    append(path, about | {"max_new_tokens": max_new_tokens} | _row(problems, candidate, result))
            advance()


def _row(problems: Problems, candidate: Candidate, result: Result) -> dict[str, Any]:
    return {
        "task": problems.name,
        "problems": problems.fingerprint,
        "n": len(problems),
        "family": candidate.family,
        "name": candidate.name,
        "passes": mean(result.passes),
        "positions": mean(result.positions),
        "right": "".join(str(int(right)) for right in result.right),
    }


def results(
    path: Path, about: dict[str, Any], problems: Problems | None = None, max_new_tokens: int | None = None
) -> list[dict[str, Any]]:
    """What a file holds already. One with results of other settings, weights or problems is refused.

    The length of the answers is that of the task.
    """
    rows = read(path) if path.exists() else []
    for row in rows:
        wanted = dict(about)
        if problems is not None and row["task"] == problems.name:
            wanted["max_new_tokens"] = max_new_tokens
        same = problems is not None and (row["task"], row["n"]) == (problems.name, len(problems))
        if problems is not None and same and "problems" in row:  # rows of version 0.1 do not say
            wanted["problems"] = problems.fingerprint
        row = UNSAID | row
        if other := {key: row.get(key) for key, value in wanted.items() if row.get(key) != value}:
            expected = {key: wanted[key] for key in other}
            raise ValueError(f"Invalid {path}: expected results with {expected}, got some with {other}")
    return rows

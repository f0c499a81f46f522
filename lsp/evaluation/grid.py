"""Every scheduler on the same grid of loop options.

A grid is run on development problems; what is good there is run again on fresh ones (`lsp.evaluation.verdict`). Results
go to a file (`lsp.evaluation.results`), so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from lsp.decoding import Options
from lsp.evaluation.comparison import Result, Setting, compare
from lsp.evaluation.problems import Problems
from lsp.evaluation.results import append, read, writing
from lsp.schedulers import Factor, Full, LongestStablePrefix, Prophet, Threshold
from lsp_kernels import PrefixRule


@dataclass(frozen=True)
class Candidate:
    """A setting of a family of schedulers."""

    family: str
    setting: Setting

    @property
    def name(self) -> str:
        return self.setting.name


def loops(*, lookahead: bool = True) -> list[Options]:
    """The grid of loop options, for every scheduler the same; Prophet knows no lookahead."""
    out = [Options(stop_early=False)]
    for ahead in (None, 64, 32) if lookahead else (None,):
        whole = Options(lookahead=ahead)
        out += [whole, replace(whole, refresh_scattered=True), replace(whole, cache="none")]
    for block_length, ahead in product((16, 32), (None, 32) if lookahead else (None,)):
        blocks = Options(block_length=block_length, lookahead=ahead)
        out += [blocks, replace(blocks, cache="block")]
    return [*out, Options(block_length=16, cache="none"), Options(refresh_every=4)]


def prefixes() -> list[LongestStablePrefix]:
    """The grid of the longest stable prefix that is run with every loop: floors, with and without islands."""
    rules = [replace(PrefixRule.guarded(), floor=floor) for floor in (3.0, 4.0, 5.0)]
    return [LongestStablePrefix(rule, islands) for rule in rules for islands in (None, rule.floor)]


def variants(preset: LongestStablePrefix) -> list[LongestStablePrefix]:
    """The neighbours of a preset, in every parameter of the rule and of islands."""
    rule = preset.rule
    rules = [
        *(replace(rule, floor=floor) for floor in (1.0, 2.0, 2.5, 3.5, 4.5, 6.0, 8.0)),
        *(replace(rule, snap=True, no_delimiter="keep", window=window) for window in (1, 2, 4, 8, 16)),
        replace(rule, snap=True, no_delimiter="minimum"),
    ]
    capped = [replace(rule, beta=beta) for beta in (0.25, 0.5, 0.75)]
    levels = [replace(preset, islands=level) for level in (2.0, 3.0, 5.0, 6.0, 8.0)]
    return [
        *(replace(preset, rule=each) for each in rules),
        *(LongestStablePrefix(each, islands=None) for each in capped),
        *levels,
        *(replace(level, stuck="best") for level in (preset, *levels)),
    ]


def grid() -> list[Candidate]:
    """Every family on every loop, and the default with its neighbours."""
    families: dict[str, Sequence[Any]] = {
        "LSP": prefixes(),
        "Threshold": [Threshold(p) for p in (0.9, 0.95, 0.98, 0.99, 0.995)],
        "Factor": [Factor(f) for f in (0.1, 0.25, 0.5, 1.0)],
        "Prophet": [Prophet((7.5 * k, 5.0 * k, 2.5 * k)) for k in (1.0, 2.0, 3.0)],
        "Full": [Full()],
    }
    pairs = [
        (family, scheduler, options)
        for family, schedulers in families.items()
        for scheduler, options in product(schedulers, loops(lookahead=family != "Prophet"))
    ]
    pairs += [("Full", Full(), Options(block_length=8, cache=cache)) for cache in ("prefix", "none")]
    preset = LongestStablePrefix()
    pairs += [("LSP", scheduler, preset.options) for scheduler in variants(preset)]
    out = [Candidate(family, Setting(describe(scheduler, loop), scheduler, loop)) for family, scheduler, loop in pairs]
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
    **arguments: Any,
) -> None:
    """Adds a row for every candidate that the file does not have yet; `about` says what else the results depend on."""
    with writing(path):
        rows = results(path, about, problems)
        done = {(row["task"], row["name"], row["n"]) for row in rows}
        for candidate in candidates:
            if (problems.name, candidate.name, len(problems)) not in done:
                (result,) = compare(
                    model, problems, [candidate.setting], max_new_tokens=max_new_tokens, batch=batch, **arguments
                )
                append(path, about | _row(problems, candidate, result))
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


def results(path: Path, about: dict[str, Any], problems: Problems | None = None) -> list[dict[str, Any]]:
    """What a file holds already. One with results of other settings, weights or problems is refused."""
    rows = read(path) if path.exists() else []
    for row in rows:
        wanted = dict(about)
        same = problems is not None and (row["task"], row["n"]) == (problems.name, len(problems))
        if problems is not None and same and "problems" in row:  # rows of version 0.1 do not say
            wanted["problems"] = problems.fingerprint
        if other := {key: row.get(key) for key, value in wanted.items() if row.get(key) != value}:
            expected = {key: wanted[key] for key in other}
            raise ValueError(f"Invalid {path}: expected results with {expected}, got some with {other}")
    return rows

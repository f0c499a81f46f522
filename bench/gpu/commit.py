"""The commit operations against their definition, `topk`, the softmax of others, and a copy of the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.gpu.case import OURS, Case, Contender, Plan, Run
from bench.gpu.checks import different, farther, first
from bench.gpu.shapes import NAMES, Shapes
from bench.support import RULE, all_scored, softmax_confidence, vocabulary_of
from lsp_kernels import Commit, TokenStats, Workspace, commit_prefix, reference, token_stats

EXACT = 1e-5  # what log-odds may be wrong by, and their rounding


def plans(shapes: Shapes) -> Iterator[Plan]:
    for make, group in NAMED.items():
        for rows, ids, dtype in shapes.logits:
            facts = {"rows": rows, "ids": ids, "dtype": NAMES[dtype]}
            name = f"{rows} x {ids}, {NAMES[dtype]}"
            yield Plan(group, name, facts, partial(make, rows, ids, dtype))


def commit_case(rows: int, ids: int, dtype: torch.dtype) -> Case:
    """One sequence of which every row is scored."""
    logits, workspace = torch.randn(rows, ids, device="cuda").to(dtype), Workspace()
    options = {"n_active": all_scored(rows).cuda(), "rule": RULE, "vocabulary": vocabulary_of(ids).to("cuda")}
    expected = reference.commit_prefix(logits, **options)
    compiled = torch.compile(reference.commit_prefix, fullgraph=True)

    def as_defined(commit: Commit) -> str | None:
        return different(Commit._fields, commit, expected)

    contenders = [
        Contender(OURS, lambda: commit_prefix(logits, **options, workspace=workspace), as_defined),
        Contender("compiled reference", lambda: compiled(logits, **options), as_defined),
        Contender("reference", lambda: reference.commit_prefix(logits, **options), as_defined),
        *others(logits, expected.tokens, expected.margins),
    ]
    return Case(contenders, limits={"read": read(logits)})


def stats_case(rows: int, ids: int, dtype: torch.dtype) -> Case:
    logits, workspace = torch.randn(rows, ids, device="cuda").to(dtype), Workspace()
    vocabulary = vocabulary_of(ids).to("cuda")
    expected = reference.token_stats(logits, vocabulary=vocabulary)
    odds = log_odds(logits, expected.tokens)
    compiled = torch.compile(reference.token_stats, fullgraph=True)

    def as_defined(stats: TokenStats) -> str | None:
        names = ("tokens", "top1", "top2")
        exact = different(names, *([getattr(each, name) for name in names] for each in (stats, expected)))
        return first(exact, farther("log_odds", stats.log_odds, odds, EXACT * (1 + 0.1 * float(odds.abs().max()))))

    contenders = [
        Contender(OURS, lambda: token_stats(logits, vocabulary=vocabulary, workspace=workspace), as_defined),
        Contender("compiled reference", lambda: compiled(logits, vocabulary=vocabulary), as_defined),
        *others(logits, expected.tokens, expected.margins),
    ]
    return Case(contenders, limits={"read": read(logits)})


def log_odds(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of the best token against all others, in float64."""
    wide = logits.double()
    best = wide.gather(-1, tokens[:, None])
    return best[:, 0] - wide.scatter(-1, tokens[:, None], -torch.inf).logsumexp(-1)


NAMED: dict[Callable[..., Case], str] = {commit_case: "commit_prefix", stats_case: "token_stats"}


def others(logits: Tensor, tokens: Tensor, margins: Tensor) -> list[Contender]:
    """What people do instead: it finds the best tokens, and commits nothing. Where two are equal, either is right."""

    def as_good(found: Tensor) -> str | None:
        wrong = int(((found != tokens) & (margins > 0)).sum())
        return f"tokens: {wrong} of {tokens.numel()} differ from the reference" if wrong else None

    def best(found: Any) -> str | None:
        return as_good(found.indices[..., 0])

    return [
        Contender("topk(2)", lambda: torch.topk(logits, 2, dim=-1), best),
        Contender("float64 softmax", lambda: softmax_confidence(logits), lambda found: as_good(found[0])),
    ]


def read(tensor: Tensor) -> tuple[Run, int]:
    """A copy reads the bytes and writes them: half of its time is the time to read them."""
    copy = torch.empty_like(tensor)
    return lambda: copy.copy_(tensor), 2

"""The LM head fused with commit and statistics, against `F.linear` and what people do after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.gpu.case import OURS, Case, Contender, Plan
from bench.gpu.checks import different, first
from bench.gpu.commit import read
from bench.gpu.shapes import NAMES, Shapes
from bench.support import RULE, all_scored, softmax_confidence, vocabulary_of
from lsp_kernels import (
    Commit,
    TokenStats,
    Workspace,
    commit_prefix,
    linear_commit_prefix,
    linear_token_stats,
    reference,
)

TILE = 8192  # ids whose products are made in float64 at once


def plans(shapes: Shapes) -> Iterator[Plan]:
    for make, group in NAMED.items():
        for rows, size, ids, dtype in shapes.products:
            facts = {"rows": rows, "hidden size": size, "ids": ids, "dtype": NAMES[dtype]}
            name = f"{rows} x {size} by {ids}, {NAMES[dtype]}"
            yield Plan(group, name, facts, partial(make, rows, size, ids, dtype))


class Truth:
    """Logits in float64, and how far those of others may be from them."""

    def __init__(self, hidden: Tensor, weight: Tensor) -> None:
        wide = hidden.double()
        self.logits = torch.cat([wide @ tile.double().T for tile in weight.split(TILE)], dim=-1)
        self.best = self.logits.amax(-1)
        longest = max(float(tile.double().norm(dim=-1).max()) for tile in weight.split(TILE))
        self.sums = hidden.size(-1) * 2.0**-23 * float(wide.norm(dim=-1).max()) * longest  # of float32
        rounding = torch.finfo(hidden.dtype).eps * float(self.best.abs().max())  # of logits in the dtype
        self.rounded = self.sums + rounding

    def worse(self, tokens: Tensor, allowed: float) -> str | None:
        """Whether a token is not the best one: its logit is lower by more than two logits may be wrong."""
        lost = float((self.best - self.logits.gather(-1, tokens[:, None])[:, 0]).max())
        return None if lost <= 2 * allowed else f"tokens: worse than the best by {lost:.3g}, at most {2 * allowed:.3g}"

    def off(self, top1: Tensor) -> str | None:
        """Whether a largest logit is wrong by more than sums in float32 are."""
        lost = float((top1.double() - self.best).abs().max())
        return None if lost <= self.sums else f"top1: wrong by {lost:.3g}, expected at most {self.sums:.3g}"


class Work:
    """Operands on the GPU."""

    def __init__(self, rows: int, size: int, ids: int, dtype: torch.dtype) -> None:
        self.hidden, self.weight = (torch.randn(n, size, device="cuda").to(dtype) for n in (rows, ids))
        self.vocabulary, self.workspace = vocabulary_of(ids).to("cuda"), Workspace()
        self.sequences = {"n_active": all_scored(rows).cuda(), "rule": RULE, "vocabulary": self.vocabulary}
        self.truth = Truth(self.hidden, self.weight)

    def others(self) -> list[Contender]:
        """The products alone, which decide nothing, and what people do with them."""
        hidden, weight = self.hidden, self.weight

        def good(tokens_of: Callable[[Any], Tensor]) -> Callable[[Any], str | None]:
            return lambda found: self.truth.worse(tokens_of(found), self.truth.rounded)

        return [
            Contender("F.linear", lambda: F.linear(hidden, weight), good(lambda logits: logits.argmax(-1))),
            Contender(
                "F.linear + commit_prefix",
                lambda: commit_prefix(F.linear(hidden, weight), **self.sequences, workspace=self.workspace),
                good(lambda commit: commit.tokens),
            ),
            Contender(
                "F.linear + topk(2)",
                lambda: torch.topk(F.linear(hidden, weight), 2, dim=-1),
                good(lambda found: found.indices[:, 0]),
            ),
            Contender(
                "F.linear + float64 softmax",
                lambda: softmax_confidence(F.linear(hidden, weight)),
                good(lambda found: found[0]),
            ),
        ]

    def case(self, ours: Contender) -> Case:
        return Case([ours, *self.others()], limits={"read": read(self.weight)})


def commit_case(rows: int, size: int, ids: int, dtype: torch.dtype) -> Case:
    work = Work(rows, size, ids, dtype)

    def check(commit: Commit) -> str | None:
        """Logits within the bound, and of these exactly the commit that the rule makes."""
        chosen = reference.select_prefix(commit.margins, commit.tokens, **work.sequences)
        rule = different(("lengths", "finished"), (commit.lengths, commit.finished), chosen)
        return first(work.truth.worse(commit.tokens, work.truth.sums), work.truth.off(commit.top1), rule)

    run = partial(linear_commit_prefix, work.hidden, work.weight, **work.sequences, workspace=work.workspace)
    return work.case(Contender(OURS, run, check))


def stats_case(rows: int, size: int, ids: int, dtype: torch.dtype) -> Case:
    work = Work(rows, size, ids, dtype)

    def check(stats: TokenStats) -> str | None:
        return first(work.truth.worse(stats.tokens, work.truth.sums), work.truth.off(stats.top1))

    options = {"vocabulary": work.vocabulary, "workspace": work.workspace}
    return work.case(Contender(OURS, partial(linear_token_stats, work.hidden, work.weight, **options), check))


NAMED: dict[Callable[..., Case], str] = {commit_case: "linear_commit_prefix", stats_case: "linear_token_stats"}

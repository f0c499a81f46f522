"""Traces of the embedded model, and hostile text that a page must show as text."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

import lsp
from lsp_kernels import PrefixRule

HOSTILE = "</script><script>alert(1)</script><!--<script><img src=x onerror=alert(2)>\u2028{{script}}&lt;"
PROMPT = "John has 13 stamps. He loses 2 stamps. He gives away 7. How many stamps does John have now?\n"
FLOOR = PrefixRule(floor=2.0, beta=1.0, no_delimiter="keep")
SCHEDULERS = {
    "lsp": lsp.LongestStablePrefix(FLOOR, islands=None, fade=0),
    "islands": lsp.LongestStablePrefix(FLOOR, 3.0, "first", fade=0),
    "fading": lsp.LongestStablePrefix(FLOOR, fade=0.25),
    "paper": lsp.LongestStablePrefix(PrefixRule()),
    "threshold": lsp.Threshold(0.9),
    "scattered": lsp.ScatteredMargin(),
    "prophet": lsp.Prophet(),
    "fixed": lsp.FixedPrefix(4),
    "full": lsp.Full(),
}


@cache
def of(name: str, **options: object) -> lsp.Trace:
    """The trace of one of SCHEDULERS, always for the same prompt."""
    (out,) = lsp.trace(lsp.load("tiny"), PROMPT, max_new_tokens=64, scheduler=SCHEDULERS[name], **options)
    return out


def hostile(trace: lsp.Trace) -> lsp.Trace:
    """The same with text that tries to be markup, wherever there is text."""
    return replace(trace, scheduler=HOSTILE, text=HOSTILE, pieces=dict.fromkeys(trace.pieces, HOSTILE))


def stopped(trace: lsp.Trace, passes: int) -> lsp.Trace:
    """The trace of a run that was stopped after so many passes, as `lsp play` saves it."""
    steps, first = trace.steps[:passes], len(trace.prompt)
    written = {
        p - first: (step.index, token) for step in steps for p, token in zip(step.chosen, step.written, strict=True)
    }
    end = min([trace.max_new_tokens, *(at + 1 for at, (_, token) in written.items() if token in trace.stops)])
    known = [written.get(at, (passes, -1)) for at in range(end)]
    seen = {*trace.prompt}.union(*(step.tokens for step in steps))
    return replace(
        trace,
        tokens=[token for _, token in known],
        committed_in=[number for number, _ in known],
        text=None,
        finished=False,
        passes=passes,
        positions=sum(step.end - step.begin for step in steps),
        pieces={token: text for token, text in trace.pieces.items() if token in seen},
        delimiters=[token for token in trace.delimiters if token in seen],
        stops=[token for token in trace.stops if token in seen],
        steps=steps,
    )


def broken_ahead(scheduler: lsp.Scheduler) -> lsp.Trace:
    """A trace in which the last position has no number until it is the only mask; no scheduler looks at it before."""

    def forward(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(1, ids.size(1), 7)
        logits[0, :, 2] = 1.0
        if int((ids == 6).sum()) > 1:
            logits[0, -1] = torch.nan
        return logits

    model = lsp.adapt(forward, vocab_size=7, mask_id=6)
    (out,) = lsp.trace(model, [1], max_new_tokens=3, scheduler=scheduler, block_length=1)
    return out

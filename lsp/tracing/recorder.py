"""Records what a scheduler sees and chooses, pass by pass.

A trace scores every mask of a pass, also those that the scheduler does not look at, and does so after the scheduler has
chosen: the commits are those of a run without it. Its seconds are not, so nothing is timed with a trace.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from lsp.decoding.canvas import Canvas
from lsp.decoding.options import Options
from lsp.decoding.scheduler import Chosen, Scheduler
from lsp.decoding.step import Stats, Step
from lsp.generation import Generation, Run
from lsp.schedulers import scheduler_of
from lsp.tracing import rounding
from lsp.tracing.records import PassRecord, RuleRecord, Trace
from lsp_kernels import PrefixRule, Vocabulary
from lsp_kernels.rule import DELIMITER, STOP, has_flag


def trace(model: Any, prompts: Any, *, scheduler: Any = None, **arguments: Any) -> list[Trace]:
    """Decodes as `lsp.generate`, and returns what happened, one trace per prompt.

    Takes no streamer, no progress and no logprobs: a trace has the confidence of every mask in every pass.

    Examples
    --------
    >>> import lsp
    >>> (trace,) = lsp.trace(lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\\n", max_new_tokens=32)
    >>> step = trace.steps[0]
    >>> step.rule.candidate, step.rule.length, [trace.pieces[token] for token in step.written[:2]]
    (10, 10, ['First', ' 7'])
    >>> step.reason
    'The run of margins at or above the floor 3 has length 10 (L′), and a sure stop further right.'
    """
    if "logprobs" in arguments:
        raise TypeError("Invalid logprobs: not supported in a trace, which has the confidence of every mask")
    recorder = Recorder(scheduler_of(scheduler))
    run = Run(model, prompts, scheduler=recorder, **arguments)
    for _ in run:
        pass
    return [traced(run, recorder, b, out) for b, out in enumerate(run.generations())]


class Recorder(Scheduler):
    """A scheduler that chooses as another one does, and writes down what that saw.

    `steps` are the records of each sequence by its number, `seconds` what the writing took.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.steps: dict[int, list[PassRecord]] = {}
        self.seconds = 0.0

    @property
    def options(self) -> Options:
        return self.scheduler.options

    def check(self, options: Options) -> None:
        self.scheduler.check(options)

    def check_vocabulary(self, size: int) -> None:
        self.scheduler.check_vocabulary(size)

    def __call__(self, step: Step) -> list[Chosen]:
        chosen = self.scheduler(step)
        begin = time.perf_counter()
        with step.unnoticed():  # a NaN that the scheduler has not looked at does not concern it
            every_mask = step.stats([canvas.masks_in_pass for canvas in step.canvases])
        for number, canvas, stats, what in zip(step.numbers, step.canvases, every_mask, chosen, strict=True):
            stats = stats._replace(margins=self.scheduler.counted(stats.margins))
            record = _record(canvas, stats, what, self.scheduler.shown_rule, step.vocabulary)
            record = replace(record, reason=self.scheduler.reason(record))  # of the exact numbers
            self.steps.setdefault(number, []).append(_rounded(record))
        self.seconds += time.perf_counter() - begin
        return chosen


def rule_record(rule: PrefixRule, margins: np.ndarray, tokens: np.ndarray, vocabulary: Vocabulary) -> RuleRecord:
    """The rule on all N masks of a sequence, step by step."""
    n, scored = len(margins), rule.scored_rows(len(margins))
    seen = torch.full((1, n + 1), math.inf)
    seen[0, :scored] = torch.from_numpy(margins[:scored].astype(np.float32))
    ids = torch.zeros(1, n + 1, dtype=torch.int64)
    ids[0, :n] = torch.from_numpy(tokens)
    lengths, count, flags = torch.arange(1, n + 2), torch.tensor([n]), vocabulary.flags.cpu()

    prefix_min = seen[0].cummin(0).values.tolist()
    candidate = rule.stable_length(seen, lengths, count)
    snap = rule.last_delimiter(has_flag(flags, ids, DELIMITER), lengths, candidate) if rule.snap else 0
    length, stopped = rule.select(seen, ids, count, flags)
    tau, at = rule.floor, int(candidate)
    if tau is None and at < n and prefix_min[at] < prefix_min[at - 1]:
        tau = prefix_min[at]
    return RuleRecord(
        n=n,
        lo=int(rule.lowest(n)),
        hi=int(rule.highest(n)),
        prefix_min=[_finite(minimum) for minimum in prefix_min[:scored]],
        tau=None if tau is None else _finite(tau),
        candidate=at,
        window=rule.window if rule.snap else None,
        snap=int(snap) or None,
        length=int(length),
        stopped=bool(stopped),
    )


def _record(
    canvas: Canvas, stats: Stats, chosen: Chosen, rule: PrefixRule | None, vocabulary: Vocabulary
) -> PassRecord:
    masks = canvas.masks
    margins, tokens = stats.margins[: len(masks)], stats.tokens[: len(masks)]
    return PassRecord(
        index=canvas.passes,
        frozen=min(canvas.frozen, canvas.pass_begin),  # without the suffix of a dual cache
        begin=canvas.pass_begin,
        end=canvas.pass_end,
        masks=masks.tolist(),
        masks_in_pass=canvas.masks_in_pass.tolist(),
        tokens=stats.tokens.tolist(),
        margins=[_finite(margin) for margin in stats.margins.tolist()],
        confidence=[_finite(confidence) for confidence in stats.confidence.tolist()],
        chosen=chosen[0].tolist(),
        written=chosen[1].tolist(),
        reason="",
        rule=None if rule is None else rule_record(rule, margins, tokens, vocabulary),
    )


def _rounded(record: PassRecord) -> PassRecord:
    """The record as it is kept."""
    rule = record.rule and replace(record.rule, prefix_min=rounding.margins(record.rule.prefix_min))
    return replace(
        record,
        margins=rounding.margins(record.margins),
        confidence=rounding.confidences(record.confidence),
        rule=rule,
    )


def traced(run: Run, recorder: Recorder, number: int, out: Generation) -> Trace:
    """The trace of one sequence of a run, as far as it has come."""
    scheduler, steps, canvas = recorder.scheduler, recorder.steps.get(number, []), run.state.canvases[number]
    prompt = run.prompts[number][: canvas.start]
    ids = sorted({*prompt, *out.tokens}.union(*(step.tokens for step in steps)))
    return Trace(
        scheduler=repr(scheduler),
        options=asdict(out.options),
        name=scheduler.name,
        notes=[*scheduler.notes, *out.options.notes],
        measure=scheduler.measure,
        level=scheduler.level,
        islands=scheduler.islands,
        prompt=prompt,
        tokens=out.tokens,
        text=out.text,
        finished=out.finished,
        passes=out.passes,
        positions=out.positions,
        committed_in=out.committed_in,
        max_new_tokens=len(canvas.tokens) - canvas.start,
        steps=steps,
        seed=int(run.seeds[number]),
        fade=float(scheduler.fade),
        **words_of(run, ids),
    )


def words_of(run: Run, ids: list[int]) -> dict[str, Any]:
    """What a trace says of the tokens that appear: `pieces`, `delimiters` and `stops`."""
    flags = run.vocabulary.flags.cpu()
    return {
        "pieces": {} if run.tokenizer is None else {token: run.tokenizer.decode([token]) for token in ids},
        "delimiters": [token for token in ids if int(flags[token]) & DELIMITER],
        "stops": [token for token in ids if int(flags[token]) & STOP],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

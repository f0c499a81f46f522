"""What every step of decoding saw and did: margins, the steps of the rule by name, the commit.

A trace scores every mask of a pass, also those that the scheduler does not look at, and does so after the scheduler has
chosen: the commits are those of a run without it. Its seconds are not, so nothing is timed with a trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lsp.canvas import Canvas
from lsp.decode import Chosen, Scheduler
from lsp.generate import Generation, Run
from lsp.schedulers import LongestStablePrefix
from lsp.scoring import Scores, Stats
from lsp_kernels import PrefixRule, Vocabulary
from lsp_kernels.rule import DELIMITER, STOP, has_flag

FORMAT = "lsp trace 1"


@dataclass(frozen=True)
class RuleStep:
    """The selection rule on one step, by the names of the paper. Lengths count masks from the first one.

    Attributes
    ----------
    n : int
        N, the masks that may be committed now; `margins` and `tokens` of the step begin with theirs.
    lo, hi : int
        The target range of the candidate.
    prefix_min : list of float
        The prefix minimum of the margins, of the `scored` rows.
    tau : float or None
        The threshold whose run the candidate is: the floor, or the minimum that follows; without a floor None where the
        run is cut at `hi`.
    candidate : int
        L', before snapping.
    window : int or None
        W, how far back from the candidate's end a delimiter may lie; None if the rule does not snap.
    snap : int or None
        Where the last delimiter in the window ends; None without one.
    length : int
        L.
    """

    n: int
    lo: int
    hi: int
    prefix_min: list[float | None]
    tau: float | None
    candidate: int
    window: int | None
    snap: int | None
    length: int


@dataclass(frozen=True)
class Step:
    """One pass over one sequence. Positions count from the first token of the prompt.

    Attributes
    ----------
    index : int
        The number of passes before.
    frozen, begin, end : int
        Tokens that the cache held, and the positions that the pass covered.
    masks : list of int
        The positions that might be committed: those of the current block.
    positions, tokens, margins, confidence : lists
        Every mask of the pass: its best token, the margin to the next one (None if infinite), its probability.
    chosen, written : lists of int
        The positions that were committed, and the tokens written there.
    rule : RuleStep or None
        For `LongestStablePrefix`.
    """

    index: int
    frozen: int
    begin: int
    end: int
    masks: list[int]
    positions: list[int]
    tokens: list[int]
    margins: list[float | None]
    confidence: list[float]
    chosen: list[int]
    written: list[int]
    rule: RuleStep | None


@dataclass(frozen=True)
class Trace:
    """All steps of one sequence, and what is needed to show them.

    Attributes
    ----------
    scheduler, options
        What decoded it, in words.
    measure, level : str, float or None
        What the scheduler goes by, ``"margin"`` or ``"confidence"``, and the value that it asks for, if it is constant.
    islands : float or None
        The margin of stable islands.
    prompt, tokens : lists of int
        The ids before and after; `tokens` ends with a stop or where the masks ended.
    text : str or None
        As in `lsp.Generation`, as are `finished`, `passes`, `positions` and `committed_in` (its `steps`).
    max_new_tokens : int
        How many masks there were.
    pieces : dict
        The text of every id that appears; empty without a tokenizer.
    delimiters, stops : lists of int
        Those of the ids that appear.
    steps : list of Step
    """

    scheduler: str
    options: dict[str, Any]
    measure: str
    level: float | None
    islands: float | None
    prompt: list[int]
    tokens: list[int]
    text: str | None
    finished: bool
    passes: int
    positions: int
    committed_in: list[int]
    max_new_tokens: int
    pieces: dict[int, str]
    delimiters: list[int]
    stops: list[int]
    steps: list[Step]

    def save(self, path: str | Path) -> None:
        """Writes JSON lines: what concerns the whole first, then one line a step."""
        head = {"format": FORMAT} | {f.name: getattr(self, f.name) for f in fields(self) if f.name != "steps"}
        lines = [head, *(asdict(step) for step in self.steps)]
        Path(path).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Reads what `save` wrote."""
        try:
            head, *steps = map(json.loads, Path(path).read_text("utf-8").strip("\n").split("\n"))
            if head.pop("format") != FORMAT:
                raise ValueError("another format")
            head["pieces"] = {int(token): text for token, text in head["pieces"].items()}
            for step in steps:
                step["rule"] = step["rule"] and RuleStep(**step["rule"])
            return cls(**head, steps=[Step(**step) for step in steps])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"Invalid {path}: expected JSON lines of {FORMAT!r}, got {error}") from error


def trace(model: Any, prompts: Any, **arguments: Any) -> list[Trace]:
    """Decodes as `lsp.generate`, and returns what happened, one trace per prompt. Takes no streamer and no progress.

    Examples
    --------
    >>> import lsp
    >>> prompt, scheduler = "Use 3, 5 and 7 to make 15.\\n", lsp.LongestStablePrefix()
    >>> (trace,) = lsp.trace(lsp.load("tiny"), prompt, scheduler=scheduler, max_new_tokens=32)
    >>> step = trace.steps[-1]
    >>> step.rule.candidate, step.rule.length, [trace.pieces[token] for token in step.written]
    (21, 4, [' =', ' 15', '.', '<eos>'])
    """
    run = Run(model, prompts, watch=Watch, **arguments)
    for _ in run:
        pass
    watch: Watch = run.loop_scheduler  # type: ignore[assignment]
    return [_trace(run, b, watch.steps.get(b, []), out) for b, out in enumerate(run.generations())]


class Watch:
    """A scheduler that chooses as another one does, and writes down what that saw."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.steps: dict[int, list[Step]] = {}  # by the number of the sequence

    def __call__(self, scores: Scores) -> list[Chosen]:
        chosen = self.scheduler(scores)
        with scores.not_noted():  # a NaN that the scheduler has not looked at is none of its business
            every_mask = scores.stats([canvas.masks_in_pass for canvas in scores.canvases])
        rule = self.scheduler.rule if isinstance(self.scheduler, LongestStablePrefix) else None
        for number, canvas, stats, what in zip(scores.numbers, scores.canvases, every_mask, chosen, strict=True):
            self.steps.setdefault(number, []).append(_step(scores, canvas, stats, what, rule))
        return chosen


def rule_step(rule: PrefixRule, margins: np.ndarray, tokens: np.ndarray, vocabulary: Vocabulary) -> RuleStep:
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
    length, _ = rule.select(seen, ids, count, flags)
    tau, at = rule.floor, int(candidate)
    if tau is None and at < n and prefix_min[at] < prefix_min[at - 1]:
        tau = prefix_min[at]
    return RuleStep(
        n=n,
        lo=int(rule.lowest(n)),
        hi=int(rule.highest(n)),
        prefix_min=[_finite(minimum) for minimum in prefix_min[:scored]],
        tau=None if tau is None else _finite(tau),
        candidate=at,
        window=rule.window if rule.snap else None,
        snap=int(snap) or None,
        length=int(length),
    )


def flip_rate(traces: Iterable[Trace], *, tail: bool = True, between: tuple[float, float] = (0.25, 0.75)) -> float:
    """The share of open masks whose best token is another one than in the pass before, in the middle of decoding.

    `between` is the share of the tokens that are committed. Without the `tail`, only positions up to the end of the
    answer count: what follows it predicts the stop in every pass and hides what happens before.
    """
    flips = compared = 0
    for trace in traces:
        begin = len(trace.prompt)
        end = begin + (trace.max_new_tokens if tail else len(trace.tokens))
        committed: set[int] = set()
        for before, after in pairwise(trace.steps):
            committed.update(before.chosen)
            done = sum(begin <= position < end for position in committed) / max(1, end - begin)
            if between[0] <= done <= between[1]:
                earlier = dict(zip(before.positions, before.tokens, strict=True))
                for position, token in zip(after.positions, after.tokens, strict=True):
                    if position < end and position in earlier:
                        compared += 1
                        flips += token != earlier[position]
    return flips / compared if compared else math.nan


def _step(scores: Scores, canvas: Canvas, stats: Stats, chosen: Chosen, rule: PrefixRule | None) -> Step:
    masks = canvas.masks
    margins, tokens = stats.margins[: len(masks)], stats.tokens[: len(masks)]
    return Step(
        index=scores.index,
        frozen=canvas.frozen,
        begin=canvas.window.start,
        end=canvas.window.stop,
        masks=masks.tolist(),
        positions=canvas.masks_in_pass.tolist(),
        tokens=stats.tokens.tolist(),
        margins=[_finite(margin) for margin in stats.margins.tolist()],
        confidence=stats.confidence.tolist(),
        chosen=chosen[0].tolist(),
        written=chosen[1].tolist(),
        rule=None if rule is None else rule_step(rule, margins, tokens, scores.vocabulary),
    )


def _trace(run: Run, number: int, steps: list[Step], out: Generation) -> Trace:
    scheduler, prompt = out.scheduler, run.prompts[number]
    ids = sorted({*prompt, *out.tokens}.union(*(step.tokens for step in steps)))
    flags = run.vocabulary.flags.cpu()
    return Trace(
        scheduler=repr(scheduler),
        options=asdict(out.options),
        measure="margin" if hasattr(scheduler, "rule") else "confidence",
        level=scheduler.rule.floor if isinstance(scheduler, LongestStablePrefix) else getattr(scheduler, "p", None),
        islands=getattr(scheduler, "islands", None),
        prompt=prompt,
        tokens=out.tokens,
        text=out.text,
        finished=out.finished,
        passes=out.passes,
        positions=out.positions,
        committed_in=out.steps,
        max_new_tokens=run.total // len(run.prompts),
        pieces={} if run.tokenizer is None else {token: run.tokenizer.decode([token]) for token in ids},
        delimiters=[token for token in ids if int(flags[token]) & DELIMITER],
        stops=[token for token in ids if int(flags[token]) & STOP],
        steps=steps,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

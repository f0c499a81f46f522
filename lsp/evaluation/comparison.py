"""Schedulers on the same problems in the same run: accuracy, passes, positions, time against Full, flip rate.

The problems are decoded in chunks, every setting on a chunk before the next chunk, in an order that changes: what
disturbs the machine for a while disturbs all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lsp.decoding import Options, Scheduler
from lsp.evaluation.intervals import wilson
from lsp.evaluation.problems import Problems
from lsp.evaluation.workers import Chunk, Workers
from lsp.generation import Generation, Run, generate
from lsp.schedulers import (
    AdaBlock,
    EntropyBound,
    Factor,
    FixedPrefix,
    Frechet,
    Full,
    Klass,
    Less,
    LocalLeap,
    LongestStablePrefix,
    Prophet,
    ScatteredMargin,
    SchED,
    SlidingBlock,
    Threshold,
)
from lsp.tiny.tasks import CouldNotJudge
from lsp.tokens import delimiter_ids, vocabulary
from lsp.tracing import Trace, flip_rate, trace
from lsp_kernels import PrefixRule, Vocabulary

KEYS = ("seconds", "passes", "positions", "tokens", "texts")
"""What is kept of a chunk under a setting."""


@dataclass(frozen=True)
class Setting:
    """A scheduler with the options of the loop, under a name.

    `delimiters` is the kind of tokens at which a prefix or a block may end, as in `lsp.tokens.delimiter_ids`; by
    default what a comparison has for all settings.
    """

    name: str
    scheduler: Scheduler
    options: Options
    delimiters: str | None = None

    @classmethod
    def of(cls, name: str, scheduler: Scheduler, *, delimiters: str | None = None, **options: Any) -> Setting:
        """With the options that the scheduler brings along, but for those that are given."""
        return cls(name, scheduler, scheduler.options.replaced_by(options), delimiters)

    def possible(self, vocab_size: int) -> bool:
        """Whether it can work with a vocabulary of this size."""
        try:
            self.scheduler.check_vocabulary(vocab_size)
        except ValueError:
            return False
        return True

    @property
    def arguments(self) -> dict[str, Any]:
        """The keywords of `lsp.generate` for it."""
        own = {} if self.delimiters is None else {"delimiters": self.delimiters}
        return {"scheduler": self.scheduler, **vars(self.options), **own}


@dataclass
class Result:
    """One setting on all problems; lists have one item per problem, in their order.

    Attributes
    ----------
    right, passes, positions, tokens : lists
        Whether it is solved, and what it cost; `tokens` that were committed, a stop included. `right` is empty if the
        answers could not be judged.
    seconds : list of float
        Time of each chunk of problems.
    flips : float or None
        `lsp.tracing.flip_rate` on the first problems, if it was asked for.
    """

    setting: Setting
    right: list[bool] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    flips: float | None = None

    @property
    def accuracy(self) -> float | None:
        return sum(self.right) / len(self.right) if self.right else None

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        return wilson(sum(self.right), len(self.right)) if self.right else (None, None)

    def speed_up(self, baseline: Result) -> float:
        """How much faster than the baseline: the median over the chunks."""
        return statistics.median(theirs / ours for theirs, ours in zip(baseline.seconds, self.seconds, strict=True))


class NotJudgedError(RuntimeError):
    """Some answers could not be judged; `results` hold what was measured."""

    def __init__(self, reason: object, results: list[Result]) -> None:
        super().__init__(str(reason))
        self.results = results


def paper_settings(block_length: int = 16) -> list[Setting]:
    """The rows of the paper's tables and what else is known to be good, each with an early stop. Full comes first."""
    paper, guarded, prophet = PrefixRule(), PrefixRule.guarded(), Prophet()
    blocks: dict[str, Any] = {"block_length": block_length}
    return [
        Setting.of("Full", Full()),
        Setting.of(f"Full, blocks of {block_length}", Full(), **blocks),
        *(Setting.of(f"Fixed prefix {k}", FixedPrefix(k)) for k in (1, 2, 4, 8)),
        Setting.of("LSP, the paper's rule", LongestStablePrefix(paper)),
        Setting.of("LSP, the paper's rule, no snapping", LongestStablePrefix(replace(paper, snap=False))),
        Setting.of("Scattered-Margin", ScatteredMargin(paper)),
        Setting.of(f"LSP, floor {guarded.floor:g}", LongestStablePrefix(replace(guarded, snap=True), None, fade=0)),
        Setting.of(f"LSP, floor {guarded.floor:g}, no snapping", LongestStablePrefix(guarded, None, fade=0)),
        Setting.of("LSP, floor and islands (the default)", LongestStablePrefix()),
        Setting.of("Threshold 0.9", Threshold(0.9)),
        Setting.of(f"Threshold 0.9, blocks of {block_length}", Threshold(0.9), **blocks),
        Setting.of("Threshold 0.9, Fast-dLLM's cache", Threshold(0.9), cache="block", **blocks),
        Setting.of("Threshold 0.9, Fast-dLLM's dual cache", Threshold(0.9), cache="dual", **blocks),
        Setting.of("Factor 1.0", Factor(1.0)),
        Setting.of("Fréchet 0.25", Frechet(0.25)),
        Setting.of("Fréchet 0.85", Frechet(0.85)),
        Setting.of("Entropy bound 0.1", EntropyBound(0.1)),
        Setting.of("LocalLeap", LocalLeap()),
        Setting.of("LESS", Less()),
        Setting.of("KLASS", Klass()),
        Setting.of(f"AdaBlock, blocks of {block_length}", AdaBlock(), delimiters="line", **blocks),
        Setting.of(
            f"AdaBlock, blocks of {block_length}, dual cache", AdaBlock(), delimiters="line", cache="dual", **blocks
        ),
        Setting.of(f"Sliding block of {block_length}", SlidingBlock(), **blocks),
        Setting.of(f"Growing block of {block_length}", SlidingBlock(), blocks="growing", **blocks),
        Setting.of("Prophet", prophet),
        Setting.of(f"Prophet, blocks of {block_length}", prophet, **blocks),
        Setting.of("SchED", SchED()),
    ]


def possible(settings: Sequence[Setting], vocab_size: int, tokenizer: Any) -> list[Setting]:
    """Those that can work with a vocabulary of this size, and whose delimiters the tokenizer has."""
    kinds = {setting.delimiters for setting in settings if setting.delimiters is not None}
    lacking = {kind for kind in kinds if not delimiter_ids(tokenizer, kind)}
    return [each for each in settings if each.possible(vocab_size) and each.delimiters not in lacking]


def with_tail(setting: Setting) -> Setting:
    """The same without an early stop, as LLaDA and Fast-dLLM publish it: the tail of stops is decoded too."""
    return replace(setting, options=replace(setting.options, stop_early=False))


def compare(
    model: Any,
    problems: Problems,
    settings: Sequence[Setting],
    *,
    max_new_tokens: int,
    batch: int = 25,
    flips: int = 0,
    advance: Callable[[], None] = lambda: None,
    workers: Workers | None = None,
    **arguments: Any,
) -> list[Result]:
    """Decodes all problems under every setting.

    Parameters
    ----------
    model
        As in `lsp.generate`, which also takes the `arguments`.
    problems : Problems
    settings : sequence of Setting
    max_new_tokens : int
    batch : int
        How many problems are decoded, and timed, in one call of `lsp.generate`. Passes and positions do not depend on
        it, seconds do.
    flips : int
        On how many problems the flip rate is measured, in runs of their own that are not timed.
    advance : callable
        Called `total_of(problems, settings, batch, flips)` times.
    workers : Workers, optional
        The processes that share the chunks, and the journal of what is done. By default this one alone, without one.
        Only the first of them returns results; the others return none.

    Raises
    ------
    NotJudgedError
        If answers could not be judged, with all that was measured.
    """
    run = Run(model, problems.prompts[:1], max_new_tokens=max_new_tokens, **arguments)
    arguments = {"tokenizer": run.tokenizer} | arguments
    given = [{"max_new_tokens": max_new_tokens, **each} for each in _arguments(run, settings, arguments)]
    workers = Workers() if workers is None else workers
    parts = list(chunks(problems.prompts, batch))
    begun = workers.begin(len(parts), problems.fingerprint, repr(settings), max_new_tokens, batch)
    generate(model, problems.prompts[:1], **given[0])
    for number in begun.mine:
        chunk: Chunk = [{} for _ in settings]
        for i in _rotated(range(len(settings)), number):
            begin = time.perf_counter()
            out = generate(model, parts[number], **given[i])
            chunk[i] = {"seconds": [time.perf_counter() - begin], **_counts(out)}
            advance()
        begun.done(number, chunk)
    measured = {}
    for i in range(workers.rank, len(settings) if flips else 0, workers.size):
        measured[i] = measure_flips(model, problems.prompts[:flips], batch, given[i])
        advance()
    gathered, flipped = begun.gather(measured)
    return _results(problems, settings, gathered, flipped) if workers.rank == 0 else []


def _arguments(run: Run, settings: Sequence[Setting], arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The keywords of `generate` for each setting. Vocabularies are made here, once, so that they are not timed."""
    made: dict[str | None, Vocabulary] = {None: run.vocabulary}
    for kind in {setting.delimiters for setting in settings if setting.delimiters is not None}:
        made[kind] = vocabulary(run.tokenizer, run.model.config, delimiters=kind, device=run.model.device)
    return [arguments | {"vocabulary": made[each.delimiters]} | each.arguments for each in settings]


def _results(
    problems: Problems, settings: Sequence[Setting], parts: Sequence[Chunk], flips: dict[int, float]
) -> list[Result]:
    """The chunks one after the other, and the judgement of all texts."""
    joined = [{key: [x for part in parts for x in part[i][key]] for key in KEYS} for i in range(len(settings))]
    texts = [each.pop("texts") for each in joined]
    results = [Result(setting, flips=flips.get(i), **joined[i]) for i, setting in enumerate(settings)]
    for result, answers in zip(results, texts, strict=True):
        try:
            result.right = problems.judge(answers)
        except CouldNotJudge as error:
            raise NotJudgedError(error, results) from error
    return results


def total_of(problems: Problems, settings: Sequence[Setting], batch: int, flips: int) -> int:
    """How many times `compare` calls `advance`."""
    return len(settings) * (len(list(chunks(problems.prompts, batch))) + (flips > 0))


def measure_flips(model: Any, prompts: Sequence[Any], batch: int, arguments: dict[str, Any]) -> float:
    """The flip rate on these prompts. The tail after a stop counts only where it is decoded."""
    traces: list[Trace] = []
    for chunk in chunks(prompts, batch):
        traces += trace(model, chunk, **arguments)
    return flip_rate(traces, tail=not arguments["stop_early"])


def chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for i in range(0, len(items), size):
        yield list(items[i : i + size])


def _counts(out: Sequence[Generation]) -> dict[str, list[Any]]:
    """The fields of a `Result` for one chunk, and its texts."""
    return {
        "passes": [generation.passes for generation in out],
        "positions": [generation.positions for generation in out],
        "tokens": [len(generation.tokens) for generation in out],
        "texts": [generation.text or "" for generation in out],
    }


def _rotated(items: Sequence[int], by: int) -> list[int]:
    at = by % len(items)
    return [*items[at:], *items[:at]]

"""The decoding loop: the paper's Algorithm 1, with the scheduler left open.

The comments give the paper's line numbers. Two things differ. The cache append (line 12) happens inside the *next*
pass, so that K/V are computed from the committed token and not from the mask that it replaced. And sequences are
decoded as a batch: each has its own frozen prefix X_F and active suffix X_A, held by its `Canvas`. If there are more of
them than a batch holds, `Seats` puts the next one in the place of one that is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lsp.decoding.batch import Batch, begin_pass
from lsp.decoding.blocks import settle_blocks
from lsp.decoding.canvas import Canvas, check_prompts, check_seeds
from lsp.decoding.clock import Clock
from lsp.decoding.filtering import Filter
from lsp.decoding.graphs import Captured
from lsp.decoding.guidance import check_negatives
from lsp.decoding.led import Led, check_arguments
from lsp.decoding.options import Options
from lsp.decoding.passes import Eager, Pass
from lsp.decoding.progress import DecodingError, Progress
from lsp.decoding.scheduler import Chosen, Scheduler, described
from lsp.decoding.scoring import Scoring
from lsp.decoding.seats import Seats
from lsp.decoding.step import Step
from lsp.models.protocol import Model
from lsp_kernels import PrefixCache, Vocabulary, Workspace
from lsp_kernels.errors import as_integer


def decode(
    model: Model,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    scheduler: Scheduler | Callable[[Step], list[Chosen]],
    vocabulary: Vocabulary,
    options: Options | None = None,
    seeds: Sequence[int] | None = None,
    batch_size: int | None = None,
    logprobs: bool = False,
    negatives: Sequence[Sequence[int] | None] | None = None,
) -> Iterator[Progress]:
    """Fills the masks of each prompt and `max_new_tokens` after it; yields the state at the start and after every pass.

    `vocabulary` has the stops; the mask is suppressed in any case. `options` are by default those of the scheduler.
    At most `batch_size` prompts, by default all, are decoded at a time; the next one begins as soon as one is finished.
    `seeds` are 64 bits for each prompt, by default its number. With `logprobs` the canvases have log-probabilities.
    `negatives` are prompts that guidance (``cfg_scale``) leads away from, one for each prompt or None for masks.
    The yielded state is the same object every time.
    """
    scheduler = described(scheduler)
    options = scheduler.options if options is None else options
    scheduler.check(options)
    scheduler.check_vocabulary(model.config.vocab_size)
    if options.cache == "dual" and not model.cached:
        raise ValueError("Invalid cache: 'dual' expects a model with a cache (lsp.load), got one without (lsp.adapt)")
    if options.blocks == "delimiter" and not vocabulary.has_delimiters:
        raise ValueError("Invalid blocks: 'delimiter' expects a vocabulary with delimiters, got none")
    mask = check_prompts(prompts, max_new_tokens, model.config)
    seeds = range(len(prompts)) if seeds is None else check_seeds(seeds, len(prompts))
    negatives = check_negatives(negatives, prompts, max_new_tokens, model.config, options.cfg_scale)
    longest = max((len(prompt) for prompt in (*prompts, *negatives) if prompt is not None), default=0)
    capacity = 0 if options.exact else longest + max_new_tokens
    if (ranks := getattr(model, "ranks", None)) is not None:
        others = {"max_new_tokens": max_new_tokens, "options": options, "batch_size": batch_size, "logprobs": logprobs}
        others["negatives"] = [None if each is None else list(each) for each in negatives]
        check_arguments(ranks, prompts, vocabulary, seeds, **others)
    rows = len(prompts) if batch_size is None else min(as_integer("batch_size", batch_size, 1), len(prompts))
    cache = model.new_cache(
        max(1, rows) * (2 if options.cfg_scale else 1), capacity
    )  # before anything else: it knows whether there is room
    pairs = zip(prompts, negatives, strict=True)
    canvases = [Canvas(prompt, max_new_tokens, model, options, logprobs, negative) for prompt, negative in pairs]
    progress = Progress(canvases, clock=Clock(model.device))
    scoring = Scoring(
        lm_head=model.lm_head,
        shifted=model.config.shifted,
        vocabulary=(vocabulary if options.stop_early else vocabulary.without_stops()).suppressing(mask),
        temperature=options.temperature,
        seeds=seeds,
        filter=filter_of(options),
        cfg_scale=options.cfg_scale,
        logprobs=logprobs,
        progress=progress,
        workspace=Workspace(),
    )
    run = (Captured if options.graph else Eager)(model, cache, scoring)
    choose = scheduler if ranks is None else Led(scheduler, ranks)
    yield progress
    yield from progress.clock.each(loop(run, cache, choose, scoring, progress))


def filter_of(options: Options) -> Filter | None:
    """Which tokens may be drawn, if not all may."""
    if options.top_p in (None, 1) and options.top_k is None:
        return None
    return Filter(options.temperature, options.top_p, options.top_k)


def loop(
    run: Callable[[Batch], Pass],
    cache: PrefixCache,
    scheduler: Callable[[Step], list[Chosen]],
    scoring: Scoring,
    progress: Progress,
) -> Iterator[Progress]:
    """Algorithm 1. `cache` is empty and every canvas is a prompt followed by masks (lines 1 and 2).

    N is the number of masks that a pass may commit: all that are left, or those within `lookahead` and the block.
    """
    seats = Seats(progress.canvases, cache)
    while seats.fill():  # line 3: while N = |X_A| > 0 in any seat
        batch = begin_pass(seats, cache)  # X_A, and before it what line 11 committed last
        step = Step(run(batch), batch, scoring)  # lines 4 and 12: the model
        settle_blocks(step)
        chosen = scheduler(step)  # lines 5 to 10: margins, threshold, snapped length; or what a rival does
        accept(step, chosen, progress)  # line 11: X_F grows, X_A shrinks
        yield progress


def accept(step: Step, chosen: Sequence[Chosen], progress: Progress) -> None:
    """Commits what a scheduler chose: all of it, or nothing if any part of it cannot be used."""
    step.finish()
    if step.broken is not None:
        number, what = step.broken
        where = f"sequence {number}, pass {progress.canvases[number].passes}"
        raise DecodingError(f"the model returned {what} in {where}; nothing of this pass was committed", progress)
    if len(chosen) != len(step.canvases):
        expected = f"positions and tokens for each of {len(step.canvases)} sequences"
        raise ValueError(f"Invalid choice of the scheduler: expected {expected}, got {len(chosen)}")
    for canvas, choice in zip(step.canvases, chosen, strict=True):
        canvas.check(*choice)
    for canvas, choice, logprobs in zip(step.canvases, chosen, step.logprobs(chosen), strict=True):
        canvas.accept(*choice, step.stops, logprobs)
        canvas.end_pass()
    progress.passes, progress.in_pass = progress.passes + 1, step.numbers

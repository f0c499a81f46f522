"""The decoding loop, for every scheduler: passes over what is not frozen yet, and the commits of a scheduler.

    front = prompt
    while any sequence is active:
        hidden = model(front + rest of the pass, cache)   # the front is appended to the cache
        chosen = scheduler(step)                          # positions and tokens, per sequence
        accept them; the next front is the committed run that follows the frozen prefix

This is the paper's Algorithm 1 with the scheduler left open. Sequences are packed, so there is no padding and no mask;
a finished one is an empty segment. K/V are appended in the pass after the commit, computed from the token and not from
the mask that it replaced. What text is, and when to show it, is the business of `generate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch

from lsp.canvas import Canvas, check_prompts
from lsp.clock import Clock
from lsp.models.protocol import Model
from lsp.scoring import Scores
from lsp_kernels import Vocabulary, Workspace
from lsp_kernels.errors import as_integer

Chosen = tuple[np.ndarray, np.ndarray]  # positions, and the tokens to write there


class Scheduler(Protocol):
    """Which masks to commit in a step: per sequence of ``scores.canvases``, positions and tokens."""

    def __call__(self, scores: Scores) -> list[Chosen]: ...


@dataclass(frozen=True)
class Options:
    """How the loop runs, whatever the scheduler.

    Parameters
    ----------
    block_length : int, optional
        Only masks of the current block may be committed; later masks stay in the pass.
    lookahead : int, optional
        A pass ends this many positions after its block, or, without blocks, after the first mask.
    cache : {"prefix", "block", "none"}
        ``"prefix"`` freezes every committed run that touches the frozen prefix. ``"block"`` is Fast-dLLM's cache:
        everything is computed anew in the first pass of each block, and nothing is frozen past the block's start.
        ``"none"`` computes everything in every pass, which is exact.
    refresh_every : int, optional
        Every so many passes everything is computed anew. 1 is the same as ``cache="none"``.
    refresh_scattered : bool
        Everything is computed anew after a pass that committed tokens behind a mask that it left open (a stop aside):
        what was frozen has not seen them. For `LongestStablePrefix` with islands; others would refresh all the time.
    stop_early : bool
        Whether a stop drops what follows it; if not, it is a token like any other.
    temperature : float
        Of the Gumbel noise that is added to the logits; 0 is greedy.
    """

    block_length: int | None = None
    lookahead: int | None = None
    cache: Literal["prefix", "block", "none"] = "prefix"
    refresh_every: int | None = None
    refresh_scattered: bool = False
    stop_early: bool = True
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("block_length", 1), ("refresh_every", 1), ("lookahead", 0)):
            if (value := getattr(self, name)) is not None:
                as_integer(name, value, least)
        if self.lookahead == 0 and self.block_length is None:
            raise ValueError("Invalid lookahead: expected at least 1 without blocks, got 0")
        if self.cache not in ("prefix", "block", "none"):
            raise ValueError(f"Invalid cache: expected 'prefix', 'block' or 'none', got {self.cache!r}")
        if self.cache == "block" and (self.block_length is None or self.refresh_every or self.refresh_scattered):
            raise ValueError("Invalid cache: 'block' expects a block_length and no refresh")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"Invalid temperature: expected a finite number >= 0, got {self.temperature!r}")

    @property
    def exact(self) -> bool:
        return self.cache == "none" or self.refresh_every == 1


@dataclass
class Progress:
    """What has happened so far; yielded after every step."""

    canvases: list[Canvas]
    passes: int = 0
    clock: Clock = field(default_factory=Clock)


class DecodingError(RuntimeError):
    """A pass that cannot be used. `progress` holds all that was committed before it."""

    def __init__(self, message: str, progress: Progress) -> None:
        super().__init__(message)
        self.progress = progress


def decode(
    model: Model,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    scheduler: Scheduler,
    vocabulary: Vocabulary,
    options: Options | None = None,
    seeds: Sequence[int] | None = None,
) -> Iterator[Progress]:
    """Fills `max_new_tokens` masks after each prompt, and yields the state before the first pass and after every one.

    `vocabulary` has the stops; the mask is suppressed in any case. The state is the same object every time.
    """
    options = options or Options()
    mask = check_prompts(prompts, max_new_tokens, model.config)
    capacity = 0 if options.exact else max(map(len, prompts), default=0) + max_new_tokens
    cache = model.new_cache(max(1, len(prompts)), capacity)  # first of all: it knows whether there is room
    canvases = [Canvas(prompt, max_new_tokens, mask, model.config.shifted, options) for prompt in prompts]
    progress = Progress(canvases, clock=Clock(model.device))
    seeds = list(range(len(prompts))) if seeds is None else seeds
    vocabulary = (vocabulary if options.stop_early else vocabulary.without_stops()).suppressing(mask)
    stops, workspace = frozenset(vocabulary.stop_ids), Workspace()
    yield progress
    while any(canvas.active for canvas in canvases):
        clock = progress.clock
        with clock("host"):
            anew = [b for b, canvas in enumerate(canvases) if canvas.begin_pass(progress.passes)]
            cache.refresh(anew)
            tokens = np.concatenate([canvas.tokens[canvas.window] for canvas in canvases])
            positions = np.concatenate([np.arange(*canvas.window.indices(canvas.end)[:2]) for canvas in canvases])
            borders = np.cumsum([0, *(canvas.pass_length for canvas in canvases)])
            ids, places = torch.from_numpy(np.stack([tokens, positions])).to(model.device)
            cu_seqlens = torch.from_numpy(borders.astype(np.int32)).to(model.device)
        with clock("model"):
            hidden = model(ids, places, cu_seqlens, cache, [canvas.append for canvas in canvases])
        head = model.head(hidden, workspace=workspace)
        scores = Scores(head, canvases, borders, progress.passes, vocabulary, stops, options.temperature, seeds, clock)
        with clock("host"):
            chosen = scheduler(scores)
            scores.require_numbers(progress, DecodingError)
            for canvas, (where, what) in zip(scores.canvases, chosen, strict=True):
                canvas.accept(where, what, stops)
            for canvas in canvases:
                canvas.end_pass()
            progress.passes += 1
        yield progress

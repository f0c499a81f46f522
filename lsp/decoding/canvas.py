"""One sequence while it is decoded: its tokens, which of them are masks, and which part a pass covers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from lsp.decoding.blocks import NOWHERE, block_of
from lsp.decoding.guidance import Twin
from lsp.decoding.history import History
from lsp.decoding.slots import Slots, outside_in
from lsp_kernels.errors import as_integer

if TYPE_CHECKING:
    from lsp.decoding.options import Options
    from lsp.models.protocol import Config, Model


class Canvas:
    """A prompt followed by masks. The prompt may have masks of its own, in runs that are called holes.

    Attributes
    ----------
    tokens : int64 array
        The whole sequence; masked positions hold the mask id.
    masked : bool array
        Whether a position is still open. A flag, so that no committed token can be taken for a mask.
    given : bool array
        Whether a position had a token from the start.
    prompt_length : int
        How many tokens the prompt has, its masks included.
    start, tail : int
        The first mask, and where the masks begin that no given token follows. Both are the end of a prompt without
        masks.
    end : int
        Where the sequence ends; a committed stop moves it to the left, but never past `tail`.
    stop : int or None
        The stop that moved it last.
    frozen : int
        How many tokens have their K/V in the cache.
    slots : Slots or None
        Which they are, on a dual cache; on any other they are the first ones.
    window : int
        Where what a dual cache gives up for a block begins: the block, or what is computed anew before it.
    pass_begin, pass_end : int
        The positions of the current pass: from the first that is not frozen to here, and after that `context`.
    context : int64 array
        The positions from `pass_end` on whose tokens are given: a pass may leave out masks, but nothing else.
    pass_positions : int64 array
        All positions of the pass in their order: from left to right, except in the passes over everything that a dual
        cache keeps.
    block : Block
        The masks that may be committed in the pass are those of this block.
    append : int
        How many of them the pass appends to the cache: the front.
    passes, positions : int
        How many passes it took part in so far, and how many token positions went through the model in all of them.
    committed_in : int64 array
        Which pass, from 0, committed the token of each position; -1 for given tokens and for masks.
    twin : Twin or None
        What guidance compares it with, if there is guidance; its positions count too.
    history : History
        What its last passes predicted, if a scheduler asks for that.
    logprobs : float32 array or None
        Log-probability of the token of each position when it was committed, without noise, if asked for; NaN for given
        tokens, for masks, and for tokens that a scheduler wrote without being given them by the step.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        model: Model,
        options: Options,
        logprobs: bool = False,
        negative: Sequence[int] | None = None,
    ) -> None:
        self.prompt_length, self.options, self.shifted = len(prompt), options, model.config.shifted
        self.vocab_size, self.mask, self.cached = model.config.vocab_size, model.config.mask_id, model.cached
        self.tokens = np.full(len(prompt) + max_new_tokens, self.mask, dtype=np.int64)
        self.tokens[: self.prompt_length] = prompt
        self.masked = self.tokens == self.mask
        self.given = ~self.masked
        self.tail = int(np.flatnonzero(self.given)[-1]) + 1 if self.given.any() else 0
        self.start = int(np.argmax(self.masked)) if self.masked.any() else len(self.tokens)
        self.committed_in = np.full(len(self.tokens), -1, dtype=np.int64)
        self.logprobs = np.full(len(self.tokens), np.nan, dtype=np.float32) if logprobs else None
        self.end, self.frozen, self.append = len(self.tokens), 0, 0
        self.stop: int | None = None
        self.masks_at_start = int(self.masked.sum())
        self.passes, self.positions = 0, 0
        self.history = History()
        self.pass_begin = self.pass_end = self.window = 0
        self.context = self.pass_positions = np.zeros(0, dtype=np.int64)
        self.slots = Slots() if options.cache == "dual" else None
        self.twin = Twin(self, negative) if options.cfg_scale else None
        self.block = NOWHERE  # of the last pass
        self._anew_in = 0  # the last pass that computed everything
        self._scattered = False  # whether the last pass left masks open before a token that it committed

    @property
    def first_mask(self) -> int:
        """The end of the committed run at the left end."""
        open_ = self.masked[self.start : self.end]
        return self.start + int(np.argmax(open_)) if open_.any() else self.end

    @property
    def masks_left(self) -> int:
        return int(self.masked[: self.end].sum())

    @property
    def active(self) -> bool:
        return self.masks_left > 0

    @property
    def pass_length(self) -> int:
        return self.pass_end - self.pass_begin + len(self.context)

    @property
    def block_end(self) -> int:
        """The end of the block that may be committed in the pass."""
        return min(self.end, self.block.end)

    @property
    def masks(self) -> np.ndarray:
        """The positions that may be committed now: masks of the pass and of the current block."""
        return np.flatnonzero(self.masked[: min(self.pass_end, self.block_end)])

    @property
    def masks_in_pass(self) -> np.ndarray:
        """The masks of the pass, also those past the current block."""
        return np.flatnonzero(self.masked[: self.pass_end])

    @property
    def run(self) -> np.ndarray:
        """The tokens from `start` on that are final: all up to the first mask that is open."""
        return self.tokens[self.start : self.first_mask]

    @property
    def holes(self) -> list[np.ndarray]:
        """The positions of each run of masks that the prompt came with, without what a stop has dropped."""
        where = np.flatnonzero(~self.given[: min(self.prompt_length, self.end)])
        return np.split(where, np.flatnonzero(np.diff(where) > 1) + 1) if len(where) else []

    def begin_pass(self) -> bool:
        """Lays out the pass, that of the twin too; says whether everything is computed anew."""
        anew = self._begin_pass()
        if self.twin is not None:
            self.twin.begin_pass(anew)
        return anew

    def _begin_pass(self) -> bool:
        if not self.active:
            self.pass_begin, self.pass_end, self.append, self.context = self.end, self.end, 0, self.context[:0]
            self.pass_positions = self.context
            return False
        options, first, before = self.options, self.first_mask, self.block.begin
        self.block = block = block_of(self, self.block)
        anew = self._computes_anew(new_block=block.begin != before)
        if anew:
            self.frozen, self._anew_in = 0, self.passes
        front_end = block.begin if options.by_block else first
        # A shifted model predicts the first mask from the token before it, which therefore stays in the pass.
        self.append = 0 if options.exact else max(0, front_end - options.recompute - self.shifted - self.frozen)
        self.pass_begin, self.pass_end = self.frozen, self.end
        if options.lookahead is not None:
            last = first if options.block_length is None else self.block_end
            self.pass_end = min(self.end, last + options.lookahead)
        self.context = self.pass_end + np.flatnonzero(~self.masked[self.pass_end : self.end])
        self.pass_positions = np.concatenate([np.arange(self.pass_begin, self.pass_end), self.context])
        if self.slots is not None:
            self._hold_the_rest(self.slots, anew, slid=block.begin - before)
        return anew

    def _hold_the_rest(self, slots: Slots, anew: bool, slid: int) -> None:
        """A dual cache: a pass over everything appends all of it, later ones run the block and what is before it alone.

        Where the block slides they too append all of it: what they leave behind has its K/V from the last pass over it.
        """
        options = self.options
        window = max(options.recompute, self.shifted, 0 if anew else slid)
        self.window = max(0, self.block.begin - window)
        if anew:
            slots.clear()
            self.pass_positions = outside_in(self.pass_positions, self.window)
        else:
            self.pass_begin, self.pass_end, self.context = self.window, self.block_end, self.context[:0]
            self.pass_positions = np.arange(self.pass_begin, self.pass_end)
            slots.drop(self.pass_begin, self.pass_end, rest=self.end)
            self.frozen = len(slots.positions)
        self.append = len(self.pass_positions) if anew or options.slides else 0

    def _computes_anew(self, *, new_block: bool) -> bool:
        options = self.options
        if options.by_block and options.slides:
            since = int((self.committed_in >= self._anew_in).sum())
            return self.passes == 0 or since >= (options.block_length or 0)
        if options.by_block:
            return new_block
        by_count = options.refresh_every is not None and self.passes % options.refresh_every == 0
        return options.exact or by_count or (options.refresh_scattered and self._scattered)

    def accept(
        self, where: np.ndarray, what: np.ndarray, stops: Collection[int], logprobs: np.ndarray | None = None
    ) -> None:
        """Commits tokens that `check` let pass. A stop drops all that follows it, as far as no given token does."""
        self.tokens[where], self.masked[where] = what, False
        self.committed_in[where] = self.passes
        if self.logprobs is not None:
            self.logprobs[where] = logprobs
        ends = [int(p) for p, token in zip(where, what, strict=True) if int(token) in stops]
        if ends and max(min(ends) + 1, self.tail) <= self.end:
            self.stop = int(self.tokens[min(ends)])
            self.finish(min(ends) + 1)
        last = min((p for p in ends if p >= self.tail), default=self.end)  # a stop that drops the rest is no island
        self._scattered = bool((where[where < min(last, self.end)] > self.first_mask).any())

    def check(self, where: np.ndarray, what: np.ndarray) -> None:
        """Refuses a choice of a scheduler that cannot be committed."""
        wrong = "Invalid choice of the scheduler: expected"
        for name, array in (("positions", where), ("tokens", what)):
            if not isinstance(array, np.ndarray) or array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
                raise TypeError(f"{wrong} {name} as an array of integers, got {array!r}")
        if len(where) != len(what):
            raise ValueError(f"{wrong} a token for each position, got {len(where)} positions and {len(what)} tokens")
        inside = (where >= self.pass_begin) & (where < self.pass_end)
        if not len(where) or not inside.all() or not self.masked[where].all():
            raise ValueError(f"{wrong} masks of the pass, at least one, got {where.tolist()}")
        if len(np.unique(where)) < len(where):
            raise ValueError(f"{wrong} each position once, got {where.tolist()}")
        allowed = (what >= 0) & (what < self.vocab_size) & (what != self.mask)
        if not allowed.all():
            token = int(what[~allowed][0])
            raise ValueError(f"{wrong} ids from 0 to {self.vocab_size - 1} and not the mask {self.mask}, got {token}")

    def end_pass(self) -> None:
        """What the pass appended is frozen."""
        self.frozen += self.append
        if self.slots is not None:
            self.slots.append(self.pass_positions[: self.append])
        self.passes += self.pass_length > 0
        if self.pass_length:  # a model without a cache computes the frozen prefix too
            self.positions += self.pass_length if self.cached else int(self.pass_positions[-1]) + 1
            self.positions += 0 if self.twin is None else self.twin.end_pass()

    def finish(self, end: int) -> None:
        """Drops what lies at `end` and beyond, except given tokens and what lies before them."""
        self.end = min(self.end, max(end, self.tail))


def check_prompts(prompts: Sequence[Sequence[int]], max_new_tokens: int, config: Config, *, holes: bool = True) -> int:
    """Refuses what cannot be decoded, without `holes` also masks in a prompt; returns the mask id."""
    as_integer("max_new_tokens", max_new_tokens, 0)
    if config.mask_id is None:
        raise ValueError(
            "Invalid model: expected a mask id in its config, got none; pass mask_id to lsp.load or lsp.adapt"
        )
    for b, prompt in enumerate(prompts):
        check_prompt(f"prompts[{b}]", prompt, config, holes)
        if config.max_length is not None and len(prompt) + max_new_tokens > config.max_length:
            raise ValueError(
                f"Invalid max_new_tokens: expected at most {config.max_length - len(prompt)} (prompts[{b}] has "
                f"{len(prompt)} tokens, the context {config.max_length}), got {max_new_tokens}"
            )
    return config.mask_id


def check_seeds(seeds: Sequence[int], prompts: int) -> Sequence[int]:
    """The seeds as integers; refuses what is no seed for each prompt."""
    if len(seeds) != prompts:
        raise ValueError(f"Invalid seeds: expected one for each of the {prompts} prompts, got {len(seeds)}")
    for b, seed in enumerate(seeds):
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise TypeError(f"Invalid seeds[{b}]: expected an integer, got {seed!r}")
        if not -(2**63) <= index(seed) < 2**64:
            raise ValueError(f"Invalid seeds[{b}]: expected 64 bits, got {seed}")
    return [index(seed) for seed in seeds]


def check_prompt(name: str, prompt: Sequence[int], config: Config, holes: bool = True) -> None:
    for i, token in enumerate(prompt):
        if not 0 <= as_integer(f"{name}[{i}]", token, 0) < config.vocab_size:
            raise ValueError(f"Invalid {name}[{i}]: expected an id from 0 to {config.vocab_size - 1}, got {token}")
        if token == config.mask_id and not holes:
            raise ValueError(f"Invalid {name}[{i}]: expected no mask in a prompt, got the mask id {token}")
        if token == config.mask_id and config.shifted and i == 0:
            expected = "expected a token, as the model's logits are shifted and nothing predicts position 0"
            raise ValueError(f"Invalid {name}[0]: {expected}, got the mask id {token}")
    if config.shifted and not len(prompt):
        raise ValueError(f"Invalid {name}: expected at least one token, as the model's logits are shifted, got none")
    if config.max_length is not None and len(prompt) > config.max_length:
        raise ValueError(f"Invalid {name}: expected at most {config.max_length} tokens, got {len(prompt)}")

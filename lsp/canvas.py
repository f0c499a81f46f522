"""One sequence while it is decoded: its tokens, which of them are masks, and which part a pass covers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lsp_kernels.errors import as_integer

if TYPE_CHECKING:
    from lsp.decode import Options
    from lsp.models.protocol import Config


class Canvas:
    """A prompt followed by masks.

    Attributes
    ----------
    tokens : int64 array
        The whole sequence; masked positions hold the mask id.
    masked : bool array
        Whether a position is still open. A flag: whatever is committed, it is not a mask.
    end : int
        Where the sequence ends; a committed stop moves it to the left.
    frozen : int
        How many tokens have their K/V in the cache.
    window : slice
        The positions of the current pass: the front, then the rest.
    append : int
        How many of them the pass appends to the cache.
    passes, positions : int
        How many passes it took part in so far, and with how many token positions in all.
    commits : list of int
        How many tokens each of these passes committed.
    steps : int64 array
        Which pass, from 0, committed the token of each position; -1 of the prompt and of masks.
    """

    def __init__(self, prompt: Sequence[int], max_new_tokens: int, mask: int, shifted: bool, options: Options) -> None:
        self.prompt, self.options, self.shifted = len(prompt), options, shifted
        self.tokens = np.full(len(prompt) + max_new_tokens, mask, dtype=np.int64)
        self.tokens[: self.prompt] = prompt
        self.masked = np.arange(len(self.tokens)) >= self.prompt
        self.steps = np.full(len(self.tokens), -1, dtype=np.int64)
        self.end, self.frozen, self.append = len(self.tokens), 0, 0
        self.masks_at_start = max_new_tokens
        self.passes, self.positions = 0, 0
        self.commits: list[int] = []
        self.window = slice(0, 0)
        self._block = -1  # the block of the last pass
        self._scattered = False  # whether the last pass left masks open before a token that it committed

    @property
    def first_mask(self) -> int:
        """The end of the committed run at the left end."""
        return self.prompt + int(np.argmax(open_)) if (open_ := self.masked[self.prompt : self.end]).any() else self.end

    @property
    def masks_left(self) -> int:
        return int(self.masked[: self.end].sum())

    @property
    def active(self) -> bool:
        return self.masks_left > 0

    @property
    def pass_length(self) -> int:
        return self.window.stop - self.window.start

    @property
    def block_end(self) -> int:
        """The end of the block that holds the first mask."""
        length = self.options.block_length
        if length is None:
            return self.end
        return min(self.end, self.prompt + ((self.first_mask - self.prompt) // length + 1) * length)

    @property
    def masks(self) -> np.ndarray:
        """The positions that may be committed now: masks of the pass and of the current block."""
        return np.flatnonzero(self.masked[: min(self.window.stop, self.block_end)])

    @property
    def masks_in_pass(self) -> np.ndarray:
        return np.flatnonzero(self.masked[: self.window.stop])

    @property
    def run(self) -> np.ndarray:
        """The new tokens that are final: all that was committed up to the first mask."""
        return self.tokens[self.prompt : self.first_mask]

    def begin_pass(self, index: int) -> bool:
        """Lays out the pass; says whether everything is computed anew."""
        if not self.active:
            self.window, self.append = slice(self.end, self.end), 0
            return False
        options, first = self.options, self.first_mask
        block = (first - self.prompt) // (options.block_length or len(self.tokens))
        start = self.prompt + block * (options.block_length or 0)
        anew = options.exact or (options.refresh_every is not None and index % options.refresh_every == 0)
        anew |= options.refresh_scattered and self._scattered
        if options.cache == "block":
            anew = block != self._block
        self._block = block
        if anew:
            self.frozen = 0
        # a shifted model predicts the first mask from the token before it, which therefore stays in the pass
        front = (min(first, start) if options.cache == "block" else first) - self.shifted
        self.append = 0 if options.exact else max(0, front - self.frozen)
        end = self.end
        if options.lookahead is not None:
            end = min(end, (first if options.block_length is None else self.block_end) + options.lookahead)
        self.window = slice(self.frozen, end)
        return anew

    def accept(self, where: np.ndarray, what: np.ndarray, stops: Collection[int]) -> None:
        """Commits tokens. Everything to the right of the first stop is dropped."""
        if not len(where) or not self.masked[where].all():
            raise ValueError(f"Invalid choice of the scheduler: expected masks, at least one, got {list(where)}")
        self.tokens[where], self.masked[where] = what, False
        self.steps[where] = self.passes
        self.commits.append(len(where))
        ends = [int(p) for p, token in zip(where, what, strict=True) if int(token) in stops]
        if ends:
            self.finish(min(ends) + 1)
        self._scattered = bool((where[where < min(ends, default=self.end)] > self.first_mask).any())

    def end_pass(self) -> None:
        """What the pass appended is frozen."""
        self.frozen += self.append
        self.passes += self.pass_length > 0
        self.positions += self.pass_length

    def finish(self, end: int) -> None:
        """Drops what lies at `end` and beyond."""
        self.end = min(self.end, end)


def check_prompts(prompts: Sequence[Sequence[int]], max_new_tokens: int, config: Config) -> int:
    """Refuses what cannot be decoded; returns the mask id."""
    as_integer("max_new_tokens", max_new_tokens, 0)
    if config.mask_id is None:
        raise ValueError("Invalid model: expected a mask id in its config, got none; pass mask_id to lsp.adapt")
    for b, prompt in enumerate(prompts):
        check_prompt(f"prompts[{b}]", prompt, config)
        if config.max_length is not None and len(prompt) + max_new_tokens > config.max_length:
            raise ValueError(
                f"Invalid max_new_tokens: expected at most {config.max_length - len(prompt)} (prompts[{b}] has "
                f"{len(prompt)} tokens, the context {config.max_length}), got {max_new_tokens}"
            )
    return config.mask_id


def check_prompt(name: str, prompt: Sequence[int], config: Config) -> None:
    for i, token in enumerate(prompt):
        if not 0 <= as_integer(f"{name}[{i}]", token, 0) < config.vocab_size:
            raise ValueError(f"Invalid {name}[{i}]: expected an id from 0 to {config.vocab_size - 1}, got {token}")
        if token == config.mask_id:
            raise ValueError(f"Invalid {name}[{i}]: expected no mask in a prompt, got the mask id {token}")
    if config.shifted and not len(prompt):
        raise ValueError(f"Invalid {name}: expected at least one token, as the model's logits are shifted, got none")
    if config.max_length is not None and len(prompt) > config.max_length:
        raise ValueError(f"Invalid {name}: expected at most {config.max_length} tokens, got {len(prompt)}")

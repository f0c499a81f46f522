"""Guidance: every sequence has a twin without its prompt, and logits are moved away from those of the twin.

Classifier-free guidance of scale s gives the logits u + (s + 1) (c - u), where c are those of the sequence and u those
of its twin. The twin is a sequence of its own in the same pass, with its own row of the cache. Its tokens are those of
the sequence, but for the given ones: these are masks, which nobody fills, or a negative prompt in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lsp.decoding.slots import Slots, outside_in

if TYPE_CHECKING:
    from lsp.decoding.canvas import Canvas
    from lsp.models.protocol import Config


class Twin:
    """The other half of a guided canvas.

    Attributes
    ----------
    offset : int
        How much further to the right a position stands in the twin: its prompt may be longer.
    frozen, append, slots
        As in a `Canvas`.
    pass_positions : int64 array
        The positions of the current pass, as the twin counts.
    """

    def __init__(self, canvas: Canvas, negative: Sequence[int] | None) -> None:
        self.canvas = canvas
        self.negative = None if negative is None else np.array(negative, dtype=np.int64)
        self.offset = 0 if self.negative is None else len(self.negative) - canvas.start
        self.frozen = self.append = 0
        self.pass_positions = np.zeros(0, dtype=np.int64)
        self.slots = Slots() if canvas.options.cache == "dual" else None

    def begin_pass(self, anew: bool) -> None:
        """Lays out the pass as the canvas has done."""
        canvas = self.canvas
        if not canvas.pass_length:
            self.append, self.pass_positions = 0, self.pass_positions[:0]
            return
        if anew:
            self.frozen = 0
        kept = max(self.frozen, canvas.frozen + canvas.append + self.offset)  # a short prompt may all be recomputed
        self.append = 0 if canvas.options.exact else kept - self.frozen
        end = canvas.pass_end + self.offset
        self.pass_positions = np.concatenate([np.arange(self.frozen, end), canvas.context + self.offset])
        if self.slots is not None:
            self._hold_the_rest(self.slots, anew, end)

    def _hold_the_rest(self, slots: Slots, anew: bool, end: int) -> None:
        """A dual cache, as that of the canvas."""
        begin = max(0, self.canvas.window + self.offset)
        if anew:
            slots.clear()
            self.pass_positions = outside_in(self.pass_positions, begin)
        else:
            self.pass_positions = np.arange(begin, end)
            slots.drop(begin, end, rest=self.canvas.end + self.offset)
            self.frozen = len(slots.positions)
        self.append = len(self.pass_positions) if self.canvas.append else 0

    @property
    def tokens(self) -> np.ndarray:
        """The whole sequence."""
        canvas = self.canvas
        if self.negative is None:
            out: np.ndarray = canvas.tokens.copy()
            out[canvas.given] = canvas.mask
            return out
        return np.concatenate([self.negative, canvas.tokens[canvas.start :]])

    def end_pass(self) -> int:
        """What the pass appended is frozen. Returns how many positions went through the model."""
        self.frozen += self.append
        if self.slots is not None:
            self.slots.append(self.pass_positions[: self.append])
        return len(self.pass_positions) if self.canvas.cached else int(self.pass_positions[-1]) + 1


def guided(own: Tensor, twin: Tensor, scale: float) -> Tensor:
    """(s + 1) c - s u, of logits, or of the hidden states that they are linear in. 16-bit values are widened for it.

    What the sequence rules out, a logit of -inf, stays so.
    """
    wide = torch.promote_types(own.dtype, torch.float32)
    out = torch.add((scale + 1) * own.to(wide), twin.to(wide), alpha=-scale)
    return torch.where(own == -torch.inf, own.to(wide), out).to(own.dtype)


def check_negatives(
    negatives: Sequence[Sequence[int] | None] | None,
    prompts: Sequence[Sequence[int]],
    new: int,
    config: Config,
    scale: float,
) -> Sequence[Sequence[int] | None]:
    """A negative prompt, or None, for each prompt; refuses those that cannot stand in the place of it."""
    from lsp.decoding.canvas import check_prompt

    if negatives is None:
        return [None] * len(prompts)
    if scale == 0:
        raise ValueError("Invalid negative_prompt: expected none without a cfg_scale, got one")
    if len(negatives) != len(prompts):
        expected = f"one, or one for each of the {len(prompts)} prompts"
        raise ValueError(f"Invalid negative_prompt: expected {expected}, got {len(negatives)}")
    for b, (negative, prompt) in enumerate(zip(negatives, prompts, strict=True)):
        if negative is None:
            continue
        check_prompt(f"negative_prompt[{b}]", negative, config, holes=False)
        if config.mask_id in prompt:
            expected = f"none, as prompts[{b}] has masks and what is given lies on both sides of them"
            raise ValueError(f"Invalid negative_prompt[{b}]: expected {expected}, got one")
        if config.max_length is not None and len(negative) + new > config.max_length:
            most = config.max_length - new
            raise ValueError(f"Invalid negative_prompt[{b}]: expected at most {most} tokens, got {len(negative)}")
    return negatives

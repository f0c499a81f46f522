"""Which part of a sequence may be committed now: the block that holds its first mask, and where that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lsp_kernels.rule import DELIMITER

if TYPE_CHECKING:
    from lsp.decoding.canvas import Canvas
    from lsp.decoding.step import Stats, Step

SHARE_OF_CANVAS = 4  # a delimiter is looked for in a quarter of the masks at the start, as AdaBlock does


class Block(NamedTuple):
    """The positions from `begin` to before `end`; not `settled` if the predictions of the pass will say its end."""

    begin: int
    end: int
    settled: bool = True


NOWHERE = Block(-1, -1)


def block_of(canvas: Canvas, before: Block) -> Block:
    """The block that holds the first mask; `before` is the one of the last pass."""
    options, first, origin = canvas.options, canvas.first_mask, canvas.start
    length = options.block_length
    if length is None:
        return Block(origin, len(canvas.tokens))
    if options.blocks == "sliding":
        return Block(first, first + length)
    if options.blocks == "growing":
        masks = np.flatnonzero(canvas.masked[: canvas.end])
        return Block(first, int(masks[length - 1]) + 1 if len(masks) >= length else canvas.end)
    if options.blocks == "delimiter":
        if before.begin <= first < before.end:
            return before
        return Block(first, first + max(length, canvas.masks_at_start // SHARE_OF_CANVAS), settled=False)
    begin = origin + (first - origin) // length * length
    return Block(begin, begin + length)


def settle_blocks(step: Step) -> None:
    """Ends every new block, where delimiters end them, at the most confident one, or after its usual length."""
    if all(canvas.block.settled for canvas in step.canvases):
        return
    windows = [window(canvas) for canvas in step.canvases]
    flags = step.vocabulary.flags.cpu().numpy()
    for canvas, where, stats in zip(step.canvases, windows, step.stats(windows), strict=True):
        if not canvas.block.settled:
            canvas.block = Block(canvas.block.begin, end_of(canvas, where, stats, flags))


def window(canvas: Canvas) -> np.ndarray:
    """The masks among which the delimiter is looked for; none if the end of the block is known."""
    last = canvas.block.begin + canvas.masks_at_start // SHARE_OF_CANVAS
    masks = canvas.masks_in_pass
    return masks[:0] if canvas.block.settled else masks[masks < last]


def end_of(canvas: Canvas, where: np.ndarray, stats: Stats, flags: np.ndarray) -> int:
    """Where a block ends, given what is predicted for its window."""
    odds = np.where(flags[stats.tokens] & DELIMITER, stats.log_odds, -np.inf)
    best = int(np.argmax(odds)) if len(odds) else 0
    if len(odds) and odds[best] > -np.inf and stats.confidence[best] >= canvas.options.delimiter_confidence:
        return int(where[best]) + 1
    assert canvas.options.block_length is not None
    return canvas.block.begin + canvas.options.block_length

"""A pass over the seated sequences, laid out end to end: no padding, no attention mask. A finished one is empty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lsp.decoding.canvas import Canvas
from lsp.decoding.guidance import Twin
from lsp.decoding.seats import Seats
from lsp_kernels import PrefixCache


class Batch(NamedTuple):
    """The tokens of one pass.

    Attributes
    ----------
    numbers : list of int
        Which prompt each sequence continues.
    canvases : list of Canvas
        All seated sequences, also the finished ones.
    tokens, positions : Tensor, int64 [T]
        The packed tokens, and where each stands in its own sequence. With guidance the twins of the canvases follow, as
        further sequences in the same order.
    cu_seqlens : Tensor, int32 [B + 1]
        The borders of the sequences.
    append : list of int
        How many tokens at the left end of each sequence the pass appends to the cache.
    borders : list of int
        `cu_seqlens` on the host.
    anew : bool
        Whether a sequence begins in this pass or is computed anew.
    """

    numbers: list[int]
    canvases: list[Canvas]
    tokens: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    append: list[int]
    borders: list[int]
    anew: bool


def begin_pass(seats: Seats, cache: PrefixCache) -> Batch:
    """Lays out a pass over what is not frozen: the front of every sequence, its masks within `lookahead`, and the given
    tokens right of the first mask. Refreshes what is due."""
    canvases = seats.canvases
    for canvas in canvases:
        canvas.begin_pass()
    sequences: list[Canvas | Twin] = [*canvases, *(canvas.twin for canvas in canvases if canvas.twin is not None)]
    for row, sequence in enumerate(sequences):
        if sequence.slots is not None:
            sequence.slots.move(cache, row)
    held = cache.frozen  # by row: sequence b has row b
    if due := {b: sequence.frozen for b, sequence in enumerate(sequences) if sequence.frozen < held[b]}:
        cache.truncate(due)
    where = [sequence.pass_positions for sequence in sequences]
    tokens = np.concatenate([sequence.tokens[places] for sequence, places in zip(sequences, where, strict=True)])
    positions = np.concatenate(where)
    borders = np.cumsum([0, *map(len, where)], dtype=np.int32)
    ids, places = torch.from_numpy(np.stack([tokens, positions])).to(cache.device)
    cu_seqlens = torch.from_numpy(borders).to(cache.device)
    append = [sequence.append for sequence in sequences]
    anew = any(canvas.frozen == 0 and canvas.pass_length for canvas in canvases)
    return Batch([*seats.numbers], canvases, ids, places, cu_seqlens, append, borders.tolist(), anew)

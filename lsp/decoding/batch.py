"""A pass over the seated sequences, laid out end to end: no padding, no attention mask. A finished one is empty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lsp.decoding.canvas import Canvas
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
        The packed tokens, and where each stands in its own sequence.
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
    """Lays out a pass over what is not frozen: the front of every sequence, then the rest. Refreshes what is due."""
    canvases = seats.canvases
    if due := [b for b, canvas in enumerate(canvases) if canvas.begin_pass()]:
        cache.refresh(due)
    tokens = np.concatenate([canvas.tokens[canvas.pass_begin : canvas.pass_end] for canvas in canvases])
    positions = np.concatenate([np.arange(canvas.pass_begin, canvas.pass_end) for canvas in canvases])
    borders = np.cumsum([0, *(canvas.pass_length for canvas in canvases)], dtype=np.int32)
    ids, places = torch.from_numpy(np.stack([tokens, positions])).to(cache.device)
    cu_seqlens = torch.from_numpy(borders).to(cache.device)
    append = [canvas.append for canvas in canvases]
    anew = any(canvas.frozen == 0 and canvas.pass_length for canvas in canvases)
    return Batch([*seats.numbers], canvases, ids, places, cu_seqlens, append, borders.tolist(), anew)

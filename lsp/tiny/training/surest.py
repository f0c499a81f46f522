"""Islands as the model itself makes them: of a block it shows the tokens that it is surest of.

Full commits the most confident token of a block first, so what it leaves to the end are the values and verdicts that
the model knows least, between tokens that are there already. Masks drawn at random seldom look like that.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lsp.tiny.training.cuts import WEIGHT_CAP, Batch

ROUNDS = 2
"""How often the model is asked: what it is sure of depends on what is shown already."""


def show_surest(batch: Batch, probabilities: Callable[[Batch, Tensor], Tensor]) -> Batch:
    """The batch in which of every block the given share is shown, the surest first; what the model has wrong never is.

    `probabilities(batch, at)` are those of the positions `at`, [N, V]. The fewer tokens stay hidden, the more each
    weighs.
    """
    if batch.blocks is None or batch.shares is None:
        return batch
    blocks, inside = batch.blocks, batch.blocks >= 0
    sizes = torch.bincount(blocks[inside], minlength=len(batch.shares))
    hidden = sizes
    for i in range(1, ROUNDS + 1):
        enough = sizes - (sizes * batch.shares * i / ROUNDS).long()  # how many stay hidden
        at = inside & batch.masked
        best = probabilities(batch, at).max(-1)
        order = best.values.masked_fill(best.indices != batch.targets[at], -1)
        block = blocks[at]
        shown = at.clone()
        shown[at] = (rank_within(block, order) < (hidden - enough)[block]) & (order >= 0)
        batch = replace(batch, inputs=torch.where(shown, batch.targets, batch.inputs), masked=batch.masked & ~shown)
        hidden = torch.bincount(blocks[inside & batch.masked], minlength=len(sizes))
    weights = (sizes / hidden.clamp(min=1)).clamp(max=WEIGHT_CAP)[blocks]
    return replace(batch, weights=torch.where(inside, weights, batch.weights))


def rank_within(group: Tensor, value: Tensor) -> Tensor:
    """How many in the same group have a larger value, [N]; equals in their order."""
    order = torch.argsort(value, descending=True, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    begins = torch.bincount(group).cumsum(0) - torch.bincount(group)
    ranks = torch.empty_like(group)
    ranks[order] = torch.arange(len(group)) - begins[group[order]]
    return ranks

"""The model shows of a block what it is surest of, and never what it has wrong."""

import pytest
import torch

from lsp.tiny.training.cuts import WEIGHT_CAP, Batch
from lsp.tiny.training.surest import rank_within, show_surest

MASK = 0


def batch_of(blocks, shares):
    """One row of tokens 1, 2, 3 …; what is in no block is given."""
    blocks = torch.tensor([blocks])
    targets = torch.arange(1, blocks.shape[1] + 1)[None]
    masked = blocks >= 0
    inputs = targets.masked_fill(masked, MASK)
    weights = torch.full(blocks.shape, 0.5)
    return Batch(inputs, targets, masked, weights, int(masked.sum()), blocks=blocks, shares=torch.tensor(shares))


def sure_of(confidence, wrong=()):
    """Probabilities of a model that is this sure of every position and has some wrong."""

    def probabilities(batch, at):
        best = torch.tensor(confidence)[at[0]]
        ids = batch.targets[at].clone()
        for position in wrong:
            ids[at[0].nonzero()[:, 0] == position] = 0
        return torch.zeros(len(ids), 100).scatter(1, ids[:, None], best[:, None])

    return probabilities


def test_the_surest_tokens_of_every_block_are_shown():
    batch = batch_of([-1, 0, 0, 0, 0, 1, 1, 1, 1], [0.5, 0.8])
    shown = show_surest(batch, sure_of([0, 0.3, 0.9, 0.1, 0.8, 0.9, 0.2, 0.8, 0.7]))
    assert shown.inputs[0].tolist() == [1, 0, 3, 0, 5, 6, 0, 8, 9]
    assert shown.masked[0].tolist() == [token == MASK for token in shown.inputs[0].tolist()]


def test_what_stays_hidden_weighs_the_more_the_less_it_is():
    shown = show_surest(batch_of([-1, 0, 0, 0, 0, 1, 1], [0.75, 0.0]), sure_of([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    assert shown.weights[shown.masked].tolist() == [4, 1, 1]
    assert shown.weights[0, 0] == 0.5
    many = show_surest(batch_of([0] * 16, [0.99]), sure_of([i / 16 for i in range(1, 17)]))
    assert many.weights[many.masked].tolist() == [WEIGHT_CAP]


def test_what_the_model_has_wrong_is_never_shown():
    shown = show_surest(batch_of([0, 0, 0, 0], [0.9]), sure_of([0.9, 0.8, 0.7, 0.6], wrong=(0, 2)))
    assert shown.masked[0].tolist() == [True, False, True, False]


def test_the_model_is_asked_again_after_a_part_is_shown():
    """It has the second half wrong until the first is shown."""
    asked = []

    def probabilities(batch, at):
        asked.append(int(at.sum()))
        return sure_of([0.9, 0.8, 0.7, 0.6], wrong=(2, 3) if len(asked) == 1 else ())(batch, at)

    shown = show_surest(batch_of([0, 0, 0, 0], [0.8]), probabilities)
    assert asked[0] > asked[1]
    assert shown.masked[0].tolist() == [False, False, False, True]


def test_a_batch_without_blocks_stays_as_it_is():
    batch = Batch(*batch_of([0, 0], [0.9]).__dict__.values())
    batch.blocks = None
    assert show_surest(batch, sure_of([1.0, 1.0])) is batch


@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_counted_in_each_group(seed):
    generator = torch.Generator().manual_seed(seed)
    group, value = torch.randint(4, (30,), generator=generator), torch.randint(6, (30,), generator=generator).float()
    ranks = rank_within(group, value).tolist()
    for i in range(30):
        ahead = [j for j in range(30) if group[j] == group[i] and (value[j], -j) > (value[i], -i)]
        assert ranks[i] == len(ahead)

"""LLaDA's likelihood against the same sum written out: one draw at a time, on the plain architectures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb, sqrt
from random import Random
from statistics import pvariance

import numpy as np
import pytest
import torch

import lsp
from lsp.evaluation import likelihood
from lsp.evaluation.likelihood import draw_masks, log_likelihoods, seed_of
from lsp.models import Transformer
from tests.lsp.checkpoints import FAMILIES, Case, ids_of


@pytest.fixture(params=FAMILIES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return FAMILIES[request.param](seed=3)


def pair_of(case: Case, context: int, continuation: int, seed: int = 0) -> tuple[list[int], list[int]]:
    ids = ids_of(case, context + continuation, seed)
    return ids[:context], ids[context:]


def loss(case: Case, context: Sequence[int], continuation: Sequence[int], masked: Sequence[int]) -> float:
    """The cross-entropy of the masked tokens of the continuation, summed, by the plain architecture."""
    seen = [case.config["mask_token_id"] if i in masked else token for i, token in enumerate(continuation)]
    logits = case.logits([*context, *seen])
    rows = [len(context) + i - case.shifted for i in masked]
    chosen = logits[rows].log_softmax(-1)
    return -sum(float(chosen[n, continuation[i]]) for n, i in enumerate(masked))


def test_an_estimate_is_the_mean_over_draws_of_cross_entropy_by_mask_ratio(case: Case, exact: Transformer) -> None:
    context, continuation = pair_of(case, 6, 5)
    (found,) = log_likelihoods(exact, [(context, continuation)], mc_num=12, seed=4)
    draws = draw_masks(5, 12, Random(seed_of(4, context, continuation)))
    losses = [loss(case, context, continuation, np.flatnonzero(draw).tolist()) / (draw.sum() / 5) for draw in draws]
    assert found.value == pytest.approx(-sum(losses) / 12, rel=1e-9)
    different = len({tuple(draw) for draw in draws.tolist()})
    assert (found.passes, found.positions) == (different, 11 * different)


def test_the_mean_over_many_draws_is_the_bound_over_all_masks(case: Case, exact: Transformer) -> None:
    context, continuation = pair_of(case, 4, 3, seed=1)
    draws, bound, variance = 3000, 0.0, 0.0
    for masks in (1, 2, 3):
        values = [loss(case, context, continuation, some) * 3 / masks for some in combinations(range(3), masks)]
        assert len(values) == comb(3, masks)
        bound -= sum(values) / len(values) / 3
        variance += pvariance(values) / (draws / 3) / 9  # each number of masks comes in exactly a third of the draws
    (found,) = log_likelihoods(exact, [(context, continuation)], mc_num=draws)
    assert abs(found.value - bound) < 4 * sqrt(variance)
    assert found.passes == 7  # of so many draws only the different ones are computed


@pytest.mark.parametrize(
    ("length", "count"), [(1, 1), (1, 8), (3, 128), (5, 3), (7, 128), (12, 12), (40, 128), (200, 9)]
)
def test_the_numbers_of_masks_are_those_that_llada_publishes(length: int, count: int) -> None:
    for seed in range(5):
        draws = draw_masks(length, count, Random(seed))
        numbers = torch.from_numpy(draws.sum(1))
        first = int(numbers[0])
        last = first + (count - 1) * (length / count)
        steps = torch.round(torch.linspace(first, last, count, dtype=torch.float64)).long()
        assert torch.equal(numbers, (steps - 1) % length + 1)
        if count % length == 0:
            assert set(Counter(numbers.tolist()).values()) == {count // length}


def test_every_position_is_masked_and_every_first_number_comes() -> None:
    draws = [draw_masks(4, 1, Random(seed))[0] for seed in range(200)]
    assert {int(draw.sum()) for draw in draws} == {1, 2, 3, 4}
    ones = Counter(int(np.flatnonzero(draw)[0]) for draw in draws if draw.sum() == 1)
    assert set(ones) == {0, 1, 2, 3}
    assert min(ones.values()) > 4


def test_batch_order_and_company_do_not_matter(case: Case, exact: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [pair_of(case, 3 + n, 1 + n % 4, seed=n) for n in range(6)]
    alone = [log_likelihoods(exact, [pair], mc_num=9, seed=2)[0] for pair in pairs]
    for batch_size in (1, 4, 50):
        monkeypatch.setattr(likelihood, "ROWS_AT_ONCE", 1 + batch_size)
        together = log_likelihoods(exact, pairs[::-1], mc_num=9, seed=2, batch_size=batch_size)[::-1]
        assert [each[1:] for each in together] == [each[1:] for each in alone]
        assert [each.value for each in together] == pytest.approx([each.value for each in alone], rel=1e-9)
    others = log_likelihoods(exact, pairs, mc_num=9, seed=3)
    assert any(abs(a.value - b.value) > 1e-3 for a, b in zip(alone, others, strict=True))


def test_the_seed_of_a_pair_is_the_same_everywhere() -> None:
    assert seed_of(0, [1, 2], [3]) == 4567864344884961298
    assert seed_of(0, [1], [2, 3]) != seed_of(0, [1, 2], [3])


def test_one_token_takes_one_pass_and_no_token_none(case: Case, exact: Transformer) -> None:
    context, continuation = pair_of(case, 5, 1)
    one, none = log_likelihoods(exact, [(context, continuation), (context, [])])
    assert one.value == pytest.approx(-loss(case, context, continuation, [0]), rel=1e-9)
    assert one[1:] == (1, 6)
    assert none == (0.0, 0, 0)


def test_any_model_that_can_be_adapted_has_likelihoods(case: Case, exact: Transformer) -> None:
    adapted = lsp.adapt(
        lambda ids: case.logits(ids[0].tolist())[None],
        vocab_size=case.vocab_size,
        mask_id=case.config["mask_token_id"],
        shifted=case.shifted,
    )
    pair = pair_of(case, 4, 3)
    (ours,), (theirs,) = (log_likelihoods(model, [pair], mc_num=5) for model in (exact, adapted))
    assert theirs.value == pytest.approx(ours.value, rel=1e-9)


def test_the_float32_of_a_16_bit_model_is_kept(case: Case, folder, exact: Transformer) -> None:
    pair = pair_of(case, 4, 1)
    half = lsp.load(folder, dtype=torch.bfloat16)
    (found,), (truth,) = (log_likelihoods(model, [pair]) for model in (half, exact))
    assert abs(found.value - truth.value) < 0.3
    assert found.value != float(torch.tensor(found.value).bfloat16())  # the sum over the vocabulary is not rounded


def test_what_cannot_be_estimated_is_refused(case: Case, exact: Transformer) -> None:
    context, continuation = pair_of(case, 3, 2)
    with pytest.raises(ValueError, match="Invalid mc_num: expected an integer from 1"):
        log_likelihoods(exact, [(context, continuation)], mc_num=0)
    with pytest.raises(ValueError, match="Invalid batch_size: expected an integer from 1"):
        log_likelihoods(exact, [(context, continuation)], batch_size=0)
    with pytest.raises(ValueError, match="expected no mask in a prompt, got the mask id 7"):
        log_likelihoods(exact, [(context, [*continuation, 7])])
    if case.shifted:
        with pytest.raises(ValueError, match="Invalid context: expected at least one token, as the model's logits are"):
            log_likelihoods(exact, [([], continuation)])
    else:
        (found,) = log_likelihoods(exact, [([], continuation[:1])])
        assert found.value == pytest.approx(-loss(case, [], continuation[:1], [0]), rel=1e-9)

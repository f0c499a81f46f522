"""Dream's orders as a scheduler, against its formulas and the simulation, and its function in this loop."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lsp
from lsp.integrations.dream import diffusion_generate
from lsp.schedulers import DreamOrder
from lsp_kernels import Vocabulary
from tests.lsp.agreement import check_agreement
from tests.lsp.foreign import MASK, Masked, canvas_of, prompt_of
from tests.lsp.recorder import commits, last, scripted
from tests.lsp.simulation import Ambiguous, Seen, probabilities
from tests.support import examples


def shifted(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


def dream_loop(model: torch.nn.Module, prompt: torch.Tensor, new: int, steps: int, alg: str) -> torch.Tensor:
    """Dream's loop for one prompt at temperature 0; a step commits at least one token."""
    x, times = canvas_of(prompt, new), torch.linspace(1, 1e-3, steps + 1)
    for i in range(steps):
        open_ = x[0] == MASK
        if not open_.any():
            break
        logits = shifted(model(x, attention_mask=None).logits)[0, open_].double()
        logits[:, MASK] = -torch.inf
        p = logits.softmax(-1)
        confidence, tokens = p.max(-1)
        if alg == "topk_margin":
            ranked = p.sort(dim=-1, descending=True).values
            confidence = ranked[:, 0] - ranked[:, 1]
        elif alg == "entropy":
            confidence = (p * torch.log(p + 1e-10)).sum(-1)
        share = 1 - times[i + 1] / times[i]
        count = int(open_.sum() * share) if i < steps - 1 else int(open_.sum())
        taken = torch.topk(confidence, max(1, count)).indices
        places = open_.nonzero()[:, 0][taken]
        x[0, places] = tokens[taken]
    return x


@torch.no_grad()
@pytest.mark.parametrize("steps", [1, 5, 13, 40])
@pytest.mark.parametrize("alg", ["maskgit_plus", "topk_margin", "entropy"])
def test_orders_are_those_of_dream(alg: str, steps: int) -> None:
    prompts, model = prompt_of(2, 5), Masked(1)
    expected = torch.cat([dream_loop(model, row[None], 20, steps, alg) for row in prompts])
    given_options = {"max_new_tokens": 20, "steps": steps, "alg": alg, "mask_token_id": MASK}
    x = diffusion_generate(model, prompts, **given_options, temperature=0.0, top_p=0.95, top_k=3, alg_temp=None)
    assert torch.equal(x, expected)
    assert len(set(x[:, 5:].flatten().tolist())) > 10


def entropy(z: list[float], mask: int) -> float:
    allowed = [value for token, value in enumerate(z) if token != mask]
    top = max(allowed)
    total = math.fsum(math.exp(value - top) for value in allowed)
    return math.log(total) - math.fsum((v - top) * math.exp(v - top) for v in allowed) / total


def difference(z: list[float], mask: int) -> float:
    """Of the two highest probabilities."""
    best, second = sorted(probabilities(z, mask), reverse=True)[:2]
    return best - second


def in_order(scheduler: DreamOrder, seen: Seen) -> set[int]:
    """As many masks as the one share of two steps says, those that are first by Dream's formula."""
    share = 1.0 if seen.done > 0 else 1 - (1 + scheduler.eps) / 2
    count = max(1, int(len(seen.here) * share))
    if scheduler.alg == "maskgit_plus":
        return set(seen.ranked[:count])
    value = {"entropy": lambda z: -entropy(z, 12), "topk_margin": lambda z: difference(z, 12)}[scheduler.alg]
    values = {p: value(seen.logits[p]) for p in seen.here}
    ranked = sorted(seen.here, key=lambda p: (-values[p], p))
    for p, q in pairwise(ranked):
        if abs(values[p] - values[q]) < 1e-4 * abs(values[p]) and not seen.alike(p, q):
            raise Ambiguous
    return set(ranked[:count])


@pytest.mark.parametrize("alg", ["entropy", "maskgit_plus", "topk_margin"])
@examples(25)
@given(data=st.data())
def test_a_schedule_of_two_steps_agrees_with_the_simulation(alg: str, data: st.DataObject) -> None:
    """Also sampled, cached, in holes and in ragged batches."""
    check_agreement(DreamOrder(alg, steps=2), data, in_order)


def test_the_share_of_a_step() -> None:
    order, times = DreamOrder(steps=4, eps=0.01), np.linspace(1, 0.01, 5)
    assert [order.share(i) for i in range(3)] == pytest.approx(
        [1 - times[i + 1] / times[i] for i in range(3)], rel=1e-5
    )
    assert [order.share(i) for i in (3, 4, 99)] == [1.0] * 3


def flat(ids: list[int]) -> np.ndarray:
    return np.eye(20, dtype=np.float32)[np.arange(len(ids)) % 19]


def decode(scheduler: object, prompts: int = 1, new: int = 40, seeds: list[int] | None = None, **options: object):
    model, how = scripted(flat, 20, 19), lsp.Options(**options)
    return last(lsp.decode(model, [[0]] * prompts, new, scheduler, Vocabulary(20), how, seeds)).canvases


def test_origin_takes_masks_at_random_and_the_share_of_them() -> None:
    canvases = decode(DreamOrder("origin", steps=4), prompts=200, seeds=list(range(200)))
    counts = np.array([commits(canvas) for canvas in canvases], dtype=float)
    assert np.abs(counts.mean(0) - 10).max() < 1  # a quarter of 40 in each of 4 steps
    first = np.array([canvas.committed_in[1:] == 0 for canvas in canvases]).mean(0)
    assert first.min() > 0.1
    assert first.max() < 0.4  # any position as likely as another
    again = decode(DreamOrder("origin", steps=4), prompts=3, seeds=[2, 1, 0])
    assert [c.committed_in.tolist() for c in again] == [c.committed_in.tolist() for c in canvases[2::-1]]


def test_a_temperature_of_the_order_draws_positions() -> None:
    def margins(ids: list[int]) -> np.ndarray:
        z = np.zeros((len(ids), 20), dtype=np.float32)
        z[:, 1] = np.where(np.arange(len(ids)) == 3, 3.0, 1.0)
        return z

    def first(alg_temp: float, count: int) -> list[int]:
        scheduler = DreamOrder("maskgit_plus", steps=10, alg_temp=alg_temp)
        model, seeds = scripted(margins, 20, 19), range(count)
        run = lsp.decode(model, [[0]] * count, 5, scheduler, Vocabulary(20), seeds=seeds)
        return [int(np.flatnonzero(canvas.committed_in == 0)[0]) for canvas in last(run).canvases]

    assert first(0.0, 5) == [3] * 5
    p = np.exp(np.array([1.0, 1.0, 3.0, 1.0, 1.0]))
    confidence = p / (p + 18)
    weights = np.exp(confidence / 0.2)
    found = np.bincount(first(0.2, 400), minlength=6)[1:] / 400
    assert np.abs(found - weights / weights.sum()).max() < 4 * (0.25 / 400) ** 0.5


def test_a_loaded_model_decodes_on_its_cache_with_dreams_defaults() -> None:
    model = lsp.load("tiny")
    tokenizer = lsp.load_tokenizer(model)
    prompt = torch.tensor([tokenizer("Use 3, 5 and 7 to make 15.\n")["input_ids"]])
    torch.manual_seed(3)
    x = diffusion_generate(
        model, prompt, max_new_tokens=16, steps=16, temperature=0.2, top_p=0.95, alg="entropy", mask_token_id=0
    )
    assert x.shape == (1, prompt.size(1) + 16)
    assert not (x == 0).any()
    y = diffusion_generate(model, prompt, max_new_tokens=16, scheduler="lsp", mask_token_id=0)
    assert tokenizer.decode(y[0, prompt.size(1) :]).startswith("First 7 + 5 = 12, then 12 + 3 = 15.")


@pytest.mark.abuse("schedulers")
def test_orders_that_make_no_sense_are_named() -> None:
    for arguments, message in [
        ({"alg": "best"}, "Invalid alg: expected one of origin, maskgit_plus, topk_margin, entropy, got 'best'"),
        ({"steps": 0}, "Invalid steps"),
        ({"alg_temp": -1.0}, "Invalid alg_temp: expected a finite number from 0, got -1.0"),
        ({"eps": 0.0}, "Invalid eps: expected a number between 0 and 1, got 0.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            DreamOrder(**arguments)
    with pytest.raises(ValueError, match="Invalid mask_token_id: expected 0 of the model's config, got 5"):
        diffusion_generate(lsp.load("tiny"), torch.tensor([[3]]), mask_token_id=5)


def test_a_trace_says_what_comes_first() -> None:
    how = {"max_new_tokens": 8, "scheduler": DreamOrder(steps=3)}
    (trace,) = lsp.trace(lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n", **how)
    assert trace.steps[0].reason == "The schedule commits 2 of 8 masks in this pass: those with the lowest entropy."
    assert trace.notes[:2] == ["alg = entropy", "steps = 3"]

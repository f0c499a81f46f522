"""`lsp.integrations.dream` in the loops of Dream and of Fast-dLLM's Dream, written once more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lsp.integrations.dream import Finished, generation_hooks
from lsp_kernels import PrefixRule, Vocabulary
from tests.lsp.foreign import (
    GUARDED,
    MASK,
    SIZE,
    STOP,
    Masked,
    canvas_of,
    prefix_loop,
    prompt_of,
)


def shifted(logits: Tensor) -> Tensor:
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


def dream_loop(
    model: nn.Module,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    steps: int,
    alg: str,
    generation_tokens_hook_func: Callable = lambda step, x, logits: x,
    generation_logits_hook_func: Callable = lambda step, x, logits: logits,
) -> tuple[Tensor, list[Tensor]]:
    """The calls that Dream's loop makes, in its order, with its own choices in between; also every canvas."""
    x, history = canvas_of(prompt, max_new_tokens), []
    x = generation_tokens_hook_func(None, x, None)
    for i in range(steps):
        mask_index = x == MASK
        logits = generation_logits_hook_func(i, x, shifted(model(x, "full", None).logits))
        p = torch.softmax(logits[mask_index], dim=-1)
        confidence, best = p.max(-1)
        if alg == "topk_margin":
            confidence = torch.sort(p, dim=-1, descending=True).values[:, :2].diff(dim=-1)[:, 0].neg()
        elif alg == "entropy":
            confidence = (p * torch.log(p + 1e-10)).sum(-1)
        count = int(mask_index.sum() / len(x) / (steps - i))
        if alg == "origin":
            x[mask_index] = torch.where(torch.rand(len(best)) < 1 / (steps - i), best, MASK)
        elif count > 0:
            full = torch.full(x.shape, -torch.inf, dtype=logits.dtype)
            full[mask_index] = confidence
            proposed = torch.full_like(x, MASK)
            proposed[mask_index] = best
            where = torch.topk(full, count).indices
            x.scatter_(1, where, proposed.gather(1, where))
        x = generation_tokens_hook_func(i, x, logits)
        history.append(x.clone())
    return x, history


def dream_formula(model: nn.Module, prompt: Tensor, rule: PrefixRule, **options: object) -> tuple[Tensor, list[int]]:
    rows = [prefix_loop(lambda ids: shifted(model(ids).logits), row, rule, **options) for row in canvas_of(prompt, 20)]
    return torch.stack([row for row, _ in rows]), [passes for _, passes in rows]


@torch.no_grad()
@pytest.mark.parametrize("alg", ["origin", "maskgit_plus", "topk_margin", "entropy"])
def test_the_loop_of_dream_commits_prefixes(alg: str) -> None:
    model, prompt = Masked(5, sharp=6.0), prompt_of(3, 5)
    x, history = dream_loop(
        model, prompt, max_new_tokens=20, steps=20, alg=alg, **generation_hooks(steps=20, mask_id=MASK)
    )
    expected, passes = dream_formula(model, prompt, GUARDED)
    assert torch.equal(x, expected)
    assert len(set(x[:, 5:].flatten().tolist())) > 10
    assert 2 < max(passes) < 20  # it was done before Dream was
    for step, canvas in enumerate(history):
        assert [bool((row == MASK).any()) for row in canvas] == [step + 1 < needed for needed in passes]
        for row in canvas:  # what is committed is a prefix
            assert torch.equal(row == MASK, torch.arange(25) >= (row != MASK).sum())


@torch.no_grad()
def test_dream_is_left_when_nothing_is_masked_and_hooks_serve_again() -> None:
    model, prompt = Masked(5, sharp=6.0), prompt_of(2, 5)
    expected, passes = dream_formula(model, prompt, GUARDED)
    hooks = generation_hooks(steps=20, mask_id=MASK, leave_when_finished=True)
    for _ in range(2):
        with pytest.raises(Finished, match=f"no mask is left after {max(passes)} steps") as caught:
            dream_loop(model, prompt, max_new_tokens=20, steps=20, alg="entropy", **hooks)
        assert torch.equal(caught.value.sequences, expected)
        assert caught.value.steps == max(passes)


@torch.no_grad()
def test_the_last_step_of_dream_leaves_no_mask() -> None:
    model, prompt = Masked(6), prompt_of(2, 5)
    x, _ = dream_loop(
        model, prompt, max_new_tokens=20, steps=4, alg="entropy", **generation_hooks(steps=4, mask_id=MASK)
    )
    expected, passes = dream_formula(model, prompt, GUARDED, steps=4)
    assert passes == [4, 4]
    assert torch.equal(x, expected)


@torch.no_grad()
def test_dream_with_a_vocabulary_snaps_and_stops() -> None:
    model, prompt = Masked(7, sharp=6.0), prompt_of(3, 5)
    rule, delimiters = PrefixRule(), set(range(0, SIZE, 4))
    free, _ = dream_formula(model, prompt, rule, delimiters=delimiters)
    stop = int(free[1, 12])
    vocabulary = Vocabulary(SIZE, delimiters, [stop])
    hooks = generation_hooks(steps=20, mask_id=MASK, rule=rule, vocabulary=vocabulary)
    x, _ = dream_loop(model, prompt, max_new_tokens=20, steps=20, alg="entropy", **hooks)
    expected, passes = dream_formula(model, prompt, rule, delimiters=delimiters, stops={stop})
    assert max(passes) < 20
    assert torch.equal(x, expected)
    assert (x[:, -2:] == stop).all(1).any()


def test_dream_fills_masks_that_lie_apart() -> None:
    """An infill: the masks of a row in their order, whatever stands between them."""
    x = torch.randint(0, STOP, (3, 12), generator=torch.Generator().manual_seed(0))
    x[0, [2, 5, 6, 9]] = x[1, 3:7] = MASK
    logits = torch.randn(3, 12, SIZE, generator=torch.Generator().manual_seed(1)) * 3
    logits[..., MASK] = 50.0  # suppressed
    hooks = generation_hooks(steps=9, mask_id=MASK, rule=PrefixRule(snap=False), vocabulary=Vocabulary(SIZE))
    returned = hooks["generation_logits_hook_func"](0, x.clone(), logits)
    assert returned.shape == (3, 12, 2)  # all that Dream's softmax sees
    out = hooks["generation_tokens_hook_func"](0, x, returned)
    hidden = logits.clone()
    hidden[..., MASK] = -torch.inf
    expected = [
        prefix_loop(lambda _, z=z: z[None], row, PrefixRule(snap=False), steps=1)[0]
        for row, z in zip(x, hidden, strict=True)
    ]
    for b in range(3):
        changed = torch.nonzero(out[b] != x[b])[:, 0]
        masks = torch.nonzero(x[b] == MASK)[:, 0]
        assert torch.equal(changed, masks[: len(changed)])
        assert torch.equal(out[b][changed], expected[b][changed])
        assert (len(changed) > 0) == (b < 2)


def test_what_the_hooks_cannot_do_is_refused() -> None:
    x, logits = canvas_of(prompt_of(2), 4), torch.randn(2, 10, SIZE)
    hooks = generation_hooks(steps=3, mask_id=MASK)
    on_logits, on_tokens = hooks["generation_logits_hook_func"], hooks["generation_tokens_hook_func"]
    with pytest.raises(ValueError, match="Invalid step: expected an integer from 0"):
        on_logits(-1, x, logits)
    with pytest.raises(ValueError, match="Invalid step: expected the logits hook to have been called for it, got 0"):
        on_tokens(0, x, logits)
    with pytest.raises(ValueError, match=r"Invalid shape of x: expected \[2, 10\] as the logits, got \[2, 9\]"):
        on_logits(0, x[:, 1:], logits)
    logits[1, 6, 0] = torch.nan
    with pytest.raises(ValueError, match="Invalid logits: expected numbers, got NaN in sequence 1"):
        on_logits(0, x, logits)
    with pytest.raises(ValueError, match="Invalid vocabulary: expected size V = 60, got 61"):
        generation_hooks(steps=3, mask_id=MASK, vocabulary=Vocabulary(61))["generation_logits_hook_func"](0, x, logits)
    with pytest.raises(ValueError, match="Invalid mask_id: expected an id from 0 to 59, got 151666"):
        generation_hooks(steps=3)["generation_logits_hook_func"](0, x, logits)
    with pytest.raises(ValueError, match="Invalid steps"):
        generation_hooks(steps=0)
    with pytest.raises(ValueError, match="Invalid rule: expected a vocabulary with delimiters for snap=True"):
        generation_hooks(steps=3, rule=PrefixRule())


def threshold_loop(
    model: nn.Module, prompt: Tensor, *, steps: int, generation_tokens_hook_func, generation_logits_hook_func
):
    """Fast-dLLM's alg="confidence_threshold" for Dream, in other words: steps are added while tokens are left over."""
    x = generation_tokens_hook_func(None, canvas_of(prompt, 20), None)
    share, left, i = 20 // steps, 0, 0
    while i < steps:
        masked = x == MASK
        logits = generation_logits_hook_func(i, x, shifted(model(x).logits))
        p = torch.softmax(logits[masked], dim=-1)
        full = torch.full(x.shape, -torch.inf)
        full[masked] = p.amax(-1)
        take, left = share + left, 0
        values, order = torch.topk(full, take)
        kept = [0]
        for k in range(1, take):
            if values[0, k] >= 0.9:
                kept.append(k)
            else:
                left += 1
                if i >= steps - 1:
                    share, steps = 0, steps + 1
        x = x.clone()
        x[0, order[0, kept]] = 3
        x, i = generation_tokens_hook_func(i, x, logits), i + 1
    return x


@torch.no_grad()
@pytest.mark.parametrize("steps", [2, 4, 10])
def test_steps_that_fast_dllm_adds_to_dream_lose_nothing(steps: int) -> None:
    model, prompt = Masked(5, sharp=6.0), prompt_of(1, 5)
    hooks = generation_hooks(steps=steps, mask_id=MASK)
    expected, _ = dream_formula(model, prompt, GUARDED, steps=steps)
    assert torch.equal(threshold_loop(model, prompt, steps=steps, **hooks), expected)

"""`lsp.integrations.fast_dllm` against the formulas of Fast-dLLM, written once more from a softmax in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import lsp
from lsp.integrations.fast_dllm import get_transfer_index, get_transfer_index_dynamic
from tests.lsp.foreign import (
    MASK,
    SIZE,
    Masked,
    canvas_of,
    probabilities,
    prompt_of,
)
from tests.support import examples

CLOSE = 1e-6  # confidences nearer than this may come in either order


def original_transfer(
    logits: Tensor, mask_index: Tensor, x: Tensor, counts: Tensor | None, threshold: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """x0, transfer_index, and the confidence behind them."""
    tokens, p = probabilities(logits)
    confidence = torch.where(mask_index, p, -torch.inf)
    chosen = torch.zeros_like(mask_index)
    for j in range(len(x)):
        k = int(mask_index[j].sum()) if counts is None else min(int(counts[j]), int(mask_index[j].sum()))
        values, order = torch.topk(confidence[j], k)
        keep = torch.ones(k, dtype=torch.bool) if threshold is None else values >= threshold
        keep[:1] = True
        chosen[j, order[keep]] = True
    return torch.where(mask_index, tokens, x), chosen, confidence


@st.composite
def transfers(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float | None]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch, length, size = draw(st.integers(1, 3)), draw(st.integers(1, 14)), draw(st.sampled_from([2, 7, 300, 1100]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    scale = draw(st.sampled_from([0.5, 2.0, 6.0, 20.0]))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    whole = torch.from_numpy(rng.normal(size=(batch, before + length + after, size)) * scale).to(dtype)
    mask_index = torch.from_numpy(rng.random((batch, length)) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])))
    x = torch.from_numpy(rng.integers(0, size, (batch, length)))
    if draw(st.booleans()):
        threshold = draw(st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.99, 1.0]))
        return whole[:, before : before + length], mask_index, x, None, threshold
    counts = torch.from_numpy(rng.integers(0, length + 1, (batch, 4)))[:, 1]  # a column, as Fast-dLLM passes it
    return whole[:, before : before + length], mask_index, x, counts, None


@examples(400)
@given(transfers())
def test_transfers_are_those_of_the_formula(case) -> None:
    logits, mask_index, x, counts, threshold = case
    kept = x.clone()
    x0, transfer_index = get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, counts, threshold)
    tokens, expected, confidence = original_transfer(logits, mask_index, x, counts, threshold)
    assert torch.equal(x, kept)
    assert (x0.dtype, transfer_index.dtype) == (torch.int64, torch.bool)
    assert torch.equal(x0[~mask_index], x[~mask_index])
    assert not (transfer_index & ~mask_index).any()
    best = logits.float().amax(-1)  # equal logits: either token
    assert torch.equal(logits.float().gather(-1, x0[..., None])[..., 0][mask_index], best[mask_index])
    assert ((x0 == tokens) | (logits == best[..., None]).sum(-1).gt(1)).all()
    for j in range(len(x)):
        differ = transfer_index[j] ^ expected[j]
        if not differ.any():
            continue
        if threshold is None:
            assert transfer_index[j].sum() == expected[j].sum()
            border = confidence[j][expected[j]].min()
            assert ((confidence[j][differ] - border).abs() < CLOSE).all()
        else:
            near = (confidence[j][differ] - threshold).abs() < CLOSE
            assert (near | ((confidence[j].max() - confidence[j][differ]).abs() < CLOSE)).all()


def test_a_confidence_that_equals_the_threshold_reaches_it() -> None:
    logits = torch.tensor([[[3.0, 3.0], [9.0, 0.0], [0.0, 90.0], [70.0, 0.0]]])
    x, masked = torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool)
    for threshold in (0.5, 1.0):
        _, expected, _ = original_transfer(logits, masked, x, None, threshold)
        _, chosen = get_transfer_index(logits, 0.0, "low_confidence", masked, x, None, threshold)
        assert torch.equal(chosen, expected)
        assert chosen.sum() == (4 if threshold == 0.5 else 2)


def fast_dllm_loop(model: nn.Module, prompt: Tensor, transfer: Callable, threshold: float | None) -> tuple[Tensor, int]:
    """Fast-dLLM's loop without a cache: 24 masks in blocks of 8, two tokens a step or a threshold."""
    x, start, length, steps = canvas_of(prompt, 24), prompt.shape[1], 8, 4
    for block in range(3):
        begin, end = start + block * length, start + (block + 1) * length
        num_transfer_tokens = torch.full((len(x), steps), length // steps)
        i = 0
        while (x[:, begin:end] == MASK).any():
            mask_index = x == MASK
            mask_index[:, end:] = 0
            logits = model(x).logits
            count = num_transfer_tokens[:, i] if threshold is None else None
            x0, transfer_index = transfer(logits, 0.0, "low_confidence", mask_index, x, count, threshold)
            x[transfer_index] = x0[transfer_index]
            i += 1
    return x, model.passes


@torch.no_grad()
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_the_loop_of_fast_dllm_writes_the_same_text(threshold: float | None) -> None:
    def formula(logits, temperature, remasking, mask_index, x, count, threshold):
        return original_transfer(logits, mask_index, x, count, threshold)[:2]

    ours = fast_dllm_loop(Masked(), prompt_of(2), get_transfer_index, threshold)
    theirs = fast_dllm_loop(Masked(), prompt_of(2), formula, threshold)
    assert ours[1] == theirs[1]
    assert torch.equal(ours[0], theirs[0])
    assert len(set(ours[0][:, 6:].flatten().tolist())) > 10


def test_what_a_step_cannot_do_is_refused() -> None:
    x, logits = canvas_of(prompt_of(2), 4), torch.randn(2, 10, SIZE)
    given = {"logits": logits, "temperature": 0.0, "remasking": "low_confidence", "mask_index": x == MASK, "x": x}
    given |= {"num_transfer_tokens": torch.tensor([1, 1]), "threshold": None}
    nan = logits.clone()
    nan[1, 7, 3] = torch.nan
    for name, value, message in [
        ("temperature", -1.0, "Invalid temperature: expected a finite number >= 0, got -1.0"),
        ("temperature", "hot", "Invalid temperature: expected a number, got 'hot'"),
        ("remasking", "best", "Invalid remasking: expected 'low_confidence' or 'random', got 'best'"),
        ("logits", logits[0], r"Invalid shape of logits: expected \[B, L, V\], got \[10, 60\]"),
        (
            "logits",
            logits.double(),
            "Invalid dtype of logits: expected float32, bfloat16 or float16, got torch.float64",
        ),
        ("logits", nan, "Invalid logits: expected numbers, got NaN at a masked position"),
        ("x", x[:, 1:], r"Invalid shape of x: expected \[2, 10\] as the logits, got \[2, 9\]"),
        ("x", x.int(), "Invalid dtype of x: expected int64, got torch.int32"),
        ("mask_index", (x == MASK)[:, 1:], r"Invalid shape of mask_index: expected \[2, 10\] as x, got \[2, 9\]"),
        ("mask_index", x, "Invalid dtype of mask_index: expected bool, got torch.int64"),
        ("num_transfer_tokens", None, r"Invalid num_transfer_tokens: expected integers \[B\] without a threshold"),
        ("num_transfer_tokens", torch.tensor([1]), r"Invalid shape of num_transfer_tokens: expected \[2\] or \[2, 1\]"),
        ("num_transfer_tokens", torch.tensor([1.0, 1]), "Invalid dtype of num_transfer_tokens: expected integers"),
        ("num_transfer_tokens", [1, 11], r"Invalid num_transfer_tokens\[1\]: expected 0 to 10, got 11"),
        ("threshold", "0.9", "Invalid threshold: expected a number, got '0.9'"),
        ("threshold", torch.ones(2), r"Invalid threshold: expected a number, got tensor"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            get_transfer_index(**{**given, name: value})
    nan[1, 7, 3], nan[1, 2, 3] = 0.0, torch.nan  # a row that nobody looks at
    column = given | {"logits": nan, "num_transfer_tokens": torch.tensor([[1], [2]])}
    assert get_transfer_index(**column)[1].sum(1).tolist() == [1, 2]


def original_proposal(logits: Tensor, temperature: float, remasking: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Fast-dLLM's tokens and confidences, drawn from torch's generator in its order."""
    z = logits.double()
    noisy = z.exp() / (-torch.rand_like(z).log()) ** temperature if temperature else z
    tokens = noisy.argmax(-1)
    p = torch.softmax(z, dim=-1).gather(-1, tokens[..., None])[..., 0]
    return tokens, torch.rand(x.shape) if remasking == "random" else p


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_same_seed_draws_the_tokens_of_fast_dllm(temperature: float, remasking: str) -> None:
    logits, x = torch.randn(3, 12, SIZE) * 3, canvas_of(prompt_of(3, 4), 8)
    for seed in range(20):
        torch.manual_seed(seed)
        x0, chosen = get_transfer_index(logits, temperature, remasking, x == MASK, x, torch.tensor([3, 2, 1]))
        torch.manual_seed(seed)
        tokens, confidence = original_proposal(logits, temperature, remasking, x)
        assert torch.equal(x0, torch.where(x == MASK, tokens, x))
        ranked = torch.where(x == MASK, confidence, -torch.inf)
        for row, k in enumerate((3, 2, 1)):
            assert set(chosen[row].nonzero()[:, 0].tolist()) == set(ranked[row].topk(k).indices.tolist())


@pytest.mark.parametrize("make", [float, torch.tensor, np.float32, np.array], ids=["float", "tensor", "numpy", "array"])
def test_a_threshold_may_come_from_torch_or_numpy(make: Callable[[float], object]) -> None:
    logits, x = torch.randn(2, 10, SIZE) * 4, canvas_of(prompt_of(2), 4)
    expected = get_transfer_index(logits, 0.0, "low_confidence", x == MASK, x, None, 0.5)
    found = get_transfer_index(logits, 0.0, "low_confidence", x == MASK, x, None, make(0.5))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.5, 1.0, 2.5]), st.floats(0, 1))
def test_a_dynamic_transfer_is_the_factor_scheduler_row_by_row(seed: int, factor: float, share: float) -> None:
    torch.manual_seed(seed)
    logits, x = torch.randn(3, 9, SIZE) * 5, torch.zeros(3, 9, dtype=torch.int64)
    masked = torch.rand(3, 9) < share
    x0, chosen = get_transfer_index_dynamic(logits, 0.0, "low_confidence", masked, x, None, factor)
    tokens, confidence = probabilities(logits)
    assert torch.equal(x0, torch.where(masked, tokens, x))
    for row in range(3):
        ranked = confidence[row][masked[row]].sort(descending=True).values.numpy()
        assert chosen[row].sum() == (lsp.Factor(factor).count(ranked) if len(ranked) else 0)
        assert set(confidence[row][chosen[row]].tolist()) == set(ranked[: int(chosen[row].sum())].tolist())

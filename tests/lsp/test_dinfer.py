"""`lsp.integrations.dinfer` in the loop of dInfer's runners, written once more."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from lsp.integrations.dinfer import PrefixParallelDecoder, ThresholdParallelDecoder
from lsp_kernels import Vocabulary
from tests.lsp.foreign import (
    GUARDED,
    MASK,
    REFUSED,
    SIZE,
    STOP,
    Masked,
    canvas_of,
    prefix_loop,
    probabilities,
    prompt_of,
)


class TokenArray:
    """dInfer's array of ids, as far as a decoder uses it."""

    def __init__(self, prompt: Tensor, gen_length: int) -> None:
        self.data = canvas_of(prompt, gen_length)

    def __getitem__(self, index: object) -> Tensor:
        return self.data[index]

    def __setitem__(self, index: object, values: Tensor) -> None:
        self.data[index] = values


def dinfer_loop(model: nn.Module, prompt: Tensor, decoder: object, *more: float) -> Tensor:
    """dInfer's runner without a cache: 24 masks in blocks of 8."""
    x, start = TokenArray(prompt, 24), prompt.shape[1]
    for block in range(3):
        begin, end = start + 8 * block, start + 8 * (block + 1)
        decoder.block_init(x[:, begin:end], block)
        while (x[:, begin:end] == decoder.mask_id).sum() > 0:
            decoder.decode(model(x.data).logits[:, begin:end], begin, end, x, *more)
    assert not (x.data == decoder.eos_id).any(1).all()
    return x.data


class OriginalThreshold:
    """dInfer's threshold: what reaches it, or comes within 1e-5 of the best; never a mask."""

    mask_id, eos_id = MASK, STOP

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def block_init(self, block_x: Tensor, block_id: int) -> None: ...

    def decode(self, logits: Tensor, begin: int, end: int, x: TokenArray, iter_threshold: float | None = None) -> None:
        ids = x[:, begin:end]
        tokens, p = probabilities(logits)
        open_ = (ids == MASK) & (tokens != MASK)
        confidence = torch.where(open_, p, -torch.inf)
        least = (confidence.max(1).values - 1e-5).clamp(-1000, iter_threshold or self.threshold)
        x[:, begin:end] = torch.where(open_ & (confidence >= least[:, None]), tokens, ids)


@torch.no_grad()
@pytest.mark.parametrize("more", [(), (0.4,)], ids=["threshold", "iter_threshold"])
def test_dinfer_decodes_the_same_by_threshold(more: tuple[float, ...]) -> None:
    models = Masked(8), Masked(8)
    ours = ThresholdParallelDecoder(0, threshold=0.7, mask_id=MASK, eos_id=STOP, use_float64=True)
    x = dinfer_loop(models[0], prompt_of(2, 5), ours, *more)
    assert torch.equal(x, dinfer_loop(models[1], prompt_of(2, 5), OriginalThreshold(0.7), *more))
    assert models[0].passes == models[1].passes < 24
    assert len(set(x[:, 5:].flatten().tolist())) > 10


def test_dinfer_never_writes_a_mask() -> None:
    """Nor does a mask count as the best; and what comes within 1e-5 of the best goes with it."""
    x = canvas_of(prompt_of(3, 5), 4)
    logits = torch.randn(3, 4, SIZE, generator=torch.Generator().manual_seed(0))
    logits[0, 1, MASK] = logits[1, :, MASK] = 99.0
    logits[0, 0, 3] = 6.0
    logits[2, :2] = logits[2, 2]
    logits[2, :2, 3] = torch.tensor([6.0, 6.00005])
    expected = TokenArray(prompt_of(3, 5), 4)
    OriginalThreshold(0.99).decode(logits, 5, 9, expected)
    ThresholdParallelDecoder(0, 0.99, mask_id=MASK, eos_id=STOP).decode(logits, 5, 9, x)
    assert torch.equal(x, expected.data)
    assert (x[:, 5:] != MASK).tolist() == [[True, False, False, False], [False] * 4, [True, True, False, False]]


@torch.no_grad()
def test_dinfer_decodes_by_the_longest_stable_prefix() -> None:
    model, prompt = Masked(9, sharp=6.0), prompt_of(1, 5)
    decoder = PrefixParallelDecoder(temperature=0, mask_id=MASK, eos_id=STOP)
    x = dinfer_loop(model, prompt, decoder)
    passes, canvas = model.passes, canvas_of(prompt, 24)[0]
    expected, needed = prefix_loop(lambda ids: model(ids).logits, canvas, GUARDED, block=8, start=5)
    assert torch.equal(x[0], expected)
    assert passes == needed < 24
    assert len(set(x[0, 5:].tolist())) > 8


def test_dinfer_fills_a_block_after_a_stop() -> None:
    x = canvas_of(prompt_of(2, 5), 16)
    logits = torch.zeros(2, 8, SIZE)
    logits[:, torch.arange(8), torch.arange(10, 18)] = 9.0
    logits[1, 2] = torch.nn.functional.one_hot(torch.tensor(STOP), SIZE) * 9.0
    PrefixParallelDecoder(mask_id=MASK, eos_id=STOP).decode(logits, 5, 13, x)
    assert x[0, 5:13].tolist() == list(range(10, 18))
    assert x[1, 5:13].tolist() == [10, 11] + 6 * [STOP]
    assert (x[:, 13:] == MASK).all()
    other = Vocabulary(SIZE, stops=[12])  # whatever the stop was, dInfer knows its own
    PrefixParallelDecoder(mask_id=MASK, eos_id=STOP, vocabulary=other).decode(logits, 13, 21, x)
    assert x[0, 13:].tolist() == [10, 11, 12] + 5 * [STOP]
    before = copy.deepcopy(x)
    PrefixParallelDecoder(mask_id=MASK, eos_id=STOP).decode(logits, 5, 13, x)  # nothing is masked there
    assert torch.equal(x, before)


def test_what_a_decoder_cannot_do_is_refused() -> None:
    for name, value, message in REFUSED.values():
        for make in (PrefixParallelDecoder, ThresholdParallelDecoder):
            required = {"temperature": 0.0} | ({"threshold": 0.9} if make is ThresholdParallelDecoder else {})
            with pytest.raises(ValueError, match=message):
                make(**{**required, name: value})
    x, logits = canvas_of(prompt_of(2), 4), torch.randn(2, 4, SIZE)
    threshold = ThresholdParallelDecoder(0, 0.9, mask_id=MASK, eos_id=STOP)
    prefix = PrefixParallelDecoder(mask_id=MASK, eos_id=STOP)
    same, falling = x.clone(), x.clone()
    prefix.decode(logits, 6, 10, same)
    prefix.decode(logits, 6, 10, falling, max(0.5, prefix.threshold))  # as runners with a falling threshold do
    assert torch.equal(same, falling)
    logits[1, 2, MASK], logits[1, 2, 3] = 9.0, torch.nan  # also where the best number is the mask's
    for decoder in (threshold, prefix):
        with pytest.raises(
            ValueError, match=r"Invalid shape of logits: expected 3 rows, from 7 to 10 of x, got \[2, 4"
        ):
            decoder.decode(logits, 7, 10, x)
        with pytest.raises(ValueError, match="Invalid logits: expected numbers, got NaN"):
            decoder.decode(logits, 6, 10, x)
    with pytest.raises(ValueError, match="Invalid stops: expected ids from 0 to 59, got 126081"):
        PrefixParallelDecoder(mask_id=MASK).decode(logits, 6, 10, x)
    assert (x == MASK).sum() == 8

"""A model's own operations of a block against torch's: the same tokens but for near-ties, and errors no larger."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lsp
from bench.gpu.plain import plain_blocks
from lsp.models import Transformer
from tests.lsp.checkpoints import FAMILIES

DTYPES = [torch.float32, torch.bfloat16]
BOUND = 40  # margins above so many roundings of a logit of usual size decide a token in both
BORDERS, PREFIX = torch.tensor([0, 60, 96], dtype=torch.int32), 10
POSITIONS = torch.cat([torch.arange(60), torch.arange(36)])


def logits(model: Transformer, blocks: AbstractContextManager[None]) -> Tensor:
    """Of 96 tokens in two sequences, each on a frozen prefix, in float32 whatever the model is in."""
    tokens = torch.randint(8, model.config.vocab_size, (96,), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(batch=2, capacity=PREFIX)
    with blocks:
        borders = torch.tensor([0, PREFIX, 2 * PREFIX], dtype=torch.int32)
        model(tokens[: 2 * PREFIX], torch.arange(PREFIX).repeat(2), borders, cache, [PREFIX, PREFIX])
        hidden = model(tokens, POSITIONS + PREFIX, BORDERS, cache)
    return F.linear(hidden.float(), model.lm_head.weight.float())


def error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).square().mean().sqrt())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_tokens_are_those_of_torch_wherever_the_margin_exceeds_the_bound(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = lsp.load(FAMILIES[family]().save(tmp_path), dtype=dtype)
    ours, plain = logits(model, nullcontext()), logits(model, plain_blocks())
    assert not torch.equal(ours, plain), "the blocks were not replaced"
    best = plain.topk(2).values
    clear = best[:, 0] - best[:, 1] > BOUND * torch.finfo(dtype).eps * plain.std()
    tokens = plain.argmax(-1)
    assert torch.equal(ours.argmax(-1)[clear], tokens[clear])
    assert int(clear.sum()) >= (90 if dtype == torch.float32 else 20)
    assert len(set(tokens[clear].tolist())) >= (40 if dtype == torch.float32 else 15)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_in_16_bits_a_pass_is_no_farther_from_float32_than_with_torchs_functions(family: str, tmp_path: Path) -> None:
    model = lsp.load(FAMILIES[family]().save(tmp_path), dtype=torch.bfloat16)
    ours, plain = logits(model, nullcontext()), logits(model, plain_blocks())
    truth = logits(model.float(), nullcontext())
    assert 0 < error(ours, truth) <= 1.1 * error(plain, truth)


def test_the_embedded_model_decodes_the_same_tokens() -> None:
    model, prompts = lsp.load("tiny"), ["Use 2, 9 and 14 to make 4.\n", "Use 3, 5 and 7 to make 15.\n"]
    ours = lsp.generate(model, prompts, max_new_tokens=24)
    with plain_blocks():
        theirs = lsp.generate(model, prompts, max_new_tokens=24)
    assert [each.tokens for each in ours] == [each.tokens for each in theirs]

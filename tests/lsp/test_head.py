"""The loop scores hidden states by the fused head where it can, and holds no logits there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lsp
from lsp.models import Transformer

PROMPTS = ["Use 3, 5 and 7 to make 15.\n", "Use 2, 9 and 14 to make 21.\n"]


class Logits(TorchDispatchMode):
    """Counts the tensors with a value for every id that operations return."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for out in result if isinstance(result, tuple | list) else [result]:
            self.count += isinstance(out, Tensor) and out.is_floating_point() and out.shape[-1:] == (self.size,)
        return result


def logits_of(model: Transformer, scheduler: str, **options: Any) -> int:
    with Logits(model.config.vocab_size) as counted:
        lsp.generate(model, PROMPTS, max_new_tokens=32, scheduler=scheduler, **options)
    return counted.count


@pytest.mark.parametrize("scheduler", lsp.schedulers.NAMES)
def test_no_logits_are_held(scheduler: str) -> None:
    assert logits_of(lsp.load("tiny"), scheduler) == 0


def test_a_head_of_ones_own_and_noise_need_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lsp.load("tiny")
    assert logits_of(model, "lsp", temperature=0.5) > 0
    head = model.lm_head
    monkeypatch.setattr(Transformer, "lm_head", property(lambda _: lambda hidden: head(hidden)), raising=False)
    model._modules.pop("lm_head")
    assert logits_of(model, "lsp") > 0


@pytest.mark.parametrize("scheduler", lsp.schedulers.NAMES)
def test_texts_are_those_of_the_head_with_logits(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lsp.load("tiny")
    fused = lsp.generate(model, PROMPTS, max_new_tokens=48, scheduler=scheduler)
    monkeypatch.setattr("lsp.decoding.scoring.Scoring.weight", None)
    plain = lsp.generate(model, PROMPTS, max_new_tokens=48, scheduler=scheduler)
    assert [answer.text for answer in fused] == [answer.text for answer in plain]


def test_a_bias_is_part_of_the_head() -> None:
    model = lsp.load("tiny")
    stop = model.config.stop_ids[0]
    biased = nn.Linear(model.config.d_model, model.config.vocab_size)
    with torch.no_grad():
        biased.weight.copy_(model.lm_head.weight)
        biased.bias.zero_()
        biased.bias[stop] = 1000.0
    model.lm_head = biased
    (answer,) = lsp.generate(model, PROMPTS[0], max_new_tokens=32)
    assert answer.tokens == [stop]

"""The loop scores hidden states by the fused head where it can, and holds no logits there."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"temperature": 0.5, "logprobs": True}], ids=str)
@pytest.mark.parametrize("scheduler", sorted({*lsp.schedulers.NAMES} - {"klass"}))  # which goes by whole distributions
def test_no_logits_are_held(scheduler: str, options: dict[str, Any]) -> None:
    assert logits_of(lsp.load("tiny"), scheduler, **options) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_weight_is_a_head_without_logits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lsp.load("tiny", dtype=dtype)
    weight = model._modules.pop("lm_head").weight.detach()
    monkeypatch.setattr(Transformer, "lm_head", property(lambda _: weight), raising=False)
    assert logits_of(model, "lsp", temperature=0.5) == 0


class Negated(nn.Linear):
    """Has a weight, but is not its product."""

    def forward(self, hidden: Tensor) -> Tensor:
        return -super().forward(hidden)


class Quantised(Tensor):
    """Looks like a float32 weight."""


def with_a_hook(head: nn.Linear) -> object:
    head.register_forward_hook(lambda _module, _given, logits: -logits)
    return head


def with_a_hook_before(head: nn.Linear) -> object:
    head.register_forward_pre_hook(lambda _module, given: (-given[0],))
    return head


def with_another_forward(head: nn.Linear) -> object:
    head.forward = lambda hidden: -nn.functional.linear(hidden, head.weight)
    return head


def with_another_class(head: nn.Linear) -> object:
    head.__class__ = Negated
    return head


def as_a_function(head: nn.Linear) -> object:
    return lambda hidden: -head(hidden)


def with_a_tensor_of_ones_own(head: nn.Linear) -> object:
    return (-head.weight.detach()).as_subclass(Quantised)


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize(
    "change",
    [
        with_a_hook,
        with_a_hook_before,
        with_another_forward,
        with_another_class,
        as_a_function,
        with_a_tensor_of_ones_own,
    ],
)
def test_a_head_that_is_more_than_a_weight_is_called(
    change: Callable[[nn.Linear], object], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each head here gives the logits of the weight with the other sign."""
    given: dict[str, Any] = {"max_new_tokens": 8, "scheduler": "fixed", "temperature": temperature, "stop_early": False}
    model, changed = lsp.load("tiny"), lsp.load("tiny")
    with torch.no_grad():
        model.lm_head.weight = nn.Parameter(-model.lm_head.weight)
    head = change(changed._modules.pop("lm_head"))
    expected = [answer.tokens for answer in lsp.generate(model, PROMPTS, **given)]
    monkeypatch.setattr(Transformer, "lm_head", property(lambda _: head), raising=False)
    with Logits(model.config.vocab_size) as counted:
        assert [answer.tokens for answer in lsp.generate(changed, PROMPTS, **given)] == expected
    assert counted.count > 0


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("scheduler", lsp.schedulers.NAMES)
def test_texts_are_those_of_the_head_with_logits(
    scheduler: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lsp.load("tiny")
    given: dict[str, Any] = {"max_new_tokens": 48, "scheduler": scheduler, "temperature": temperature}
    fused = lsp.generate(model, PROMPTS, **given)
    monkeypatch.setattr("lsp.decoding.scoring.Scoring.weight", None)
    plain = lsp.generate(model, PROMPTS, **given)
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

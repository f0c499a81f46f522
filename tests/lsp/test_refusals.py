"""What decoding refuses, and what it keeps when a model or a scheduler fails in the middle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import lsp
from lsp.decoding import Step
from lsp.models.adapted import UncachedWarning
from lsp_kernels import Vocabulary

pytestmark = pytest.mark.abuse("prompts and generation")

SIZE, MASK = 9, 8


def counting(ids: Tensor) -> Tensor:
    """Predicts the position, with a margin of 9."""
    return torch.nn.functional.one_hot(torch.arange(ids.size(1)) % MASK, SIZE).float()[None] * 9


def model(forward: Callable[[Tensor], Tensor] = counting, **given: object) -> lsp.models.Model:
    return lsp.adapt(forward, vocab_size=SIZE, mask_id=MASK, **given)


def fails_after(passes: int, what: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Runs well for some passes, then `what`."""
    calls: list[int] = []

    def forward(ids: Tensor) -> Tensor:
        calls.append(0)
        return counting(ids) if len(calls) <= passes else what(ids)

    return forward


def out_of_memory(_: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("no memory left")


@pytest.mark.parametrize("scheduler", [lsp.FixedPrefix(2), lsp.Threshold(), lsp.LongestStablePrefix()], ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_logits_that_are_all_infinite_are_an_error_as_nan_is(
    value: float, temperature: float, scheduler: lsp.Scheduler
) -> None:
    forward = fails_after(1, lambda ids: torch.full((1, ids.size(1), SIZE), value))
    slow = lsp.Custom(lambda step: [(where[:2], tokens[:2]) for where, tokens in scheduler(step)])
    with pytest.raises(
        lsp.DecodingError, match="infinite logits in sequence 0, pass 1; nothing of this pass"
    ) as caught:
        lsp.generate(model(forward), [1], max_new_tokens=6, scheduler=slow, temperature=temperature)
    assert (~caught.value.progress.canvases[0].masked[1:]).sum() > 0


def test_a_tie_of_finite_logits_is_no_error() -> None:
    (out,) = lsp.generate(model(lambda ids: torch.zeros(1, ids.size(1), SIZE)), [1], max_new_tokens=4)
    assert out.tokens == [0] * 4


def test_a_model_that_raises_in_the_middle_keeps_what_was_committed() -> None:
    with pytest.raises(
        lsp.DecodingError, match="the model raised OutOfMemoryError in pass 2: no memory left"
    ) as caught:
        lsp.generate(model(fails_after(2, out_of_memory)), [1], max_new_tokens=6, scheduler=lsp.FixedPrefix(1))
    assert caught.value.progress.canvases[0].run.tolist() == [1, 2]
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    with pytest.raises(torch.OutOfMemoryError):  # before anything is committed the error comes as it is
        lsp.generate(model(out_of_memory), [1], max_new_tokens=6)


def test_a_head_that_raises_in_the_middle_keeps_what_was_committed() -> None:
    def project(logits: Tensor) -> Tensor:
        return logits if (calls.append(0) or len(calls)) <= 2 else out_of_memory(logits)

    adapted, calls = model(), []
    adapted.lm_head = project
    with pytest.raises(lsp.DecodingError, match="the LM head raised OutOfMemoryError in pass 2") as caught:
        lsp.generate(adapted, [1], max_new_tokens=8, scheduler=lsp.FixedPrefix(1))
    assert caught.value.progress.canvases[0].run.tolist() == [1, 2]


def choosing(*choice: object) -> Callable[[Step], list]:
    """A scheduler that commits the first mask of every sequence in the first pass, and then this."""

    def choose(step: Step) -> list:
        if step.canvases[0].passes == 0:
            return [(canvas.masks[:1], np.array([3])) for canvas in step.canvases]
        return list(choice)

    return choose


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


GOOD = (ids(3), ids(3))
WRONG = {
    "a position twice": ((ids(2, 2), ids(3, 3)), "each position once, got \\[2, 2\\]"),
    "a prompt token": ((ids(0), ids(3)), "masks of the pass, at least one, got \\[0\\]"),
    "a committed token": ((ids(1), ids(3)), "masks of the pass, at least one, got \\[1\\]"),
    "a position past the end": ((ids(99), ids(3)), "masks of the pass"),
    "a position past the lookahead": ((ids(5), ids(3)), "masks of the pass, at least one, got \\[5\\]"),
    "a negative position": ((ids(-1), ids(3)), "masks of the pass"),
    "nothing": ((ids(), ids()), "masks of the pass, at least one"),
    "the mask": ((ids(2), ids(MASK)), "ids from 0 to 8 and not the mask 8, got 8"),
    "an id that does not exist": ((ids(2), ids(SIZE)), "ids from 0 to 8 and not the mask 8, got 9"),
    "floats": ((ids(2), np.array([3.0])), "tokens as an array of integers"),
    "float positions": ((np.array([2.0]), ids(3)), "positions as an array of integers"),
    "lists": (([2], [3]), "positions as an array of integers"),
    "fewer tokens": ((ids(2, 3), ids(3)), "a token for each position, got 2 positions and 1 tokens"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_choice_is_named_and_nothing_of_it_is_committed(name: str) -> None:
    wrong, message = WRONG[name]
    loop = lsp.decode(model(), [[1], [1]], 6, choosing(GOOD, wrong), Vocabulary(SIZE), lsp.Options(lookahead=3))
    next(loop)
    canvases = next(loop).canvases
    before = [canvas.tokens.tolist() for canvas in canvases]
    with pytest.raises((TypeError, ValueError), match=f"Invalid choice of the scheduler: expected {message}"):
        next(loop)
    assert [canvas.tokens.tolist() for canvas in canvases] == before


def test_a_choice_for_too_few_sequences_is_named() -> None:
    message = "expected positions and tokens for each of 2 sequences, got 1"
    with pytest.raises(ValueError, match=message):
        list(lsp.decode(model(), [[1], [1]], 6, choosing(GOOD), Vocabulary(SIZE)))


def test_positions_outside_of_the_pass_are_not_scored() -> None:
    def beyond(step: Step) -> list:
        step.stats([ids(9) for _ in step.canvases])
        return []

    with pytest.raises(ValueError, match=r"Invalid positions: expected 0 to 4, the positions of the pass, got \[9\]"):
        list(lsp.decode(model(), [[1], [1]], 9, beyond, Vocabulary(SIZE), lsp.Options(lookahead=4)))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({"role": "user", "content": "hi"}, "expected a chat as a list of messages, got a single message"),
        (b"hi", "got bytes; decode them first"),
        ([b"hi"], "expected a text, token ids or a chat as a list of messages, got a bytes"),
        ([[1, 2], {"role": "user", "content": "hi"}], "got a dict"),
        (3, "expected texts, lists of token ids or chats, got 3"),
        ([None], "got a NoneType"),
        ([[1.5]], "Invalid prompts: expected an integer, got 1.5"),
    ],
)
def test_a_prompt_that_is_none_is_named(prompts: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lsp.generate(model(), prompts)


def test_every_prompt_needs_a_seed() -> None:
    with pytest.raises(ValueError, match="Invalid seeds: expected one for each of the 2 prompts, got 1"):
        next(lsp.decode(model(), [[1], [1]], 2, lsp.Full(), Vocabulary(SIZE), lsp.Options(temperature=1.0), [5]))


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (2**64, ValueError, r"Invalid seeds\[1\]: expected 64 bits, got 18446744073709551616"),
        (-(2**63) - 1, ValueError, r"Invalid seeds\[1\]: expected 64 bits, got -9223372036854775809"),
        (0.5, TypeError, r"Invalid seeds\[1\]: expected an integer, got 0.5"),
        (True, TypeError, r"Invalid seeds\[1\]: expected an integer, got True"),
    ],
)
def test_a_seed_has_64_bits(seed: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        lsp.generate(model(), [[1], [1]], seed=[5, seed], max_new_tokens=2)


def test_options_that_a_scheduler_cannot_work_with_are_refused_before_the_first_pass() -> None:
    with pytest.raises(ValueError, match="Invalid lookahead: expected None with Prophet"):
        lsp.generate(model(out_of_memory), [1], scheduler="prophet", lookahead=4)


def test_two_schedulers_cannot_have_one_key() -> None:
    with pytest.raises(ValueError, match="Invalid key of Mine: expected a new one, got 'lsp'"):
        type("Mine", (lsp.Scheduler,), {"key": "lsp"})


def test_positions_are_what_an_adapted_model_was_given() -> None:
    given: list[int] = []

    def forward(tokens: Tensor) -> Tensor:
        given.append(tokens.numel())
        return counting(tokens)

    (out,) = lsp.generate(model(forward), [1, 2, 3], max_new_tokens=7, scheduler=lsp.FixedPrefix(2))
    assert out.positions == sum(given) == 4 * 10
    (trace,) = lsp.trace(model(forward), [1, 2, 3], max_new_tokens=7, scheduler=lsp.FixedPrefix(2))
    assert trace.positions == 4 * 10


def test_it_is_said_that_an_adapted_model_is_uncached() -> None:
    with pytest.warns(UncachedWarning, match="an adapted model is uncached: every pass computes whole sequences"):
        assert "uncached" in repr(model())


class Noisy(torch.nn.Module):
    """Adds noise while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dropout(counting(tokens))


def test_a_model_in_training_mode_decodes_without_dropout_and_stays_in_training_mode() -> None:
    noisy = Noisy().train()
    (out,) = lsp.generate(model(noisy), [1], max_new_tokens=6)
    assert out.tokens == [1, 2, 3, 4, 5, 6]
    assert noisy.training
    assert noisy.dropout.training


def test_positions_that_a_model_cannot_use_are_not_part_of_its_context() -> None:
    transformers = pytest.importorskip("transformers")
    size = {"vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.RobertaConfig(**size, intermediate_size=32, max_position_embeddings=20, mask_token_id=4)
    roberta = lsp.adapt(transformers.RobertaForMaskedLM(config))
    assert roberta.config.max_length == 18
    assert len(lsp.generate(roberta, [5] * 10, max_new_tokens=8, stop_early=False)[0].tokens) == 8
    with pytest.raises(ValueError, match=r"expected at most 8 \(prompts\[0\] has 10 tokens, the context 18\), got 9"):
        lsp.generate(roberta, [5] * 10, max_new_tokens=9)
    bert = lsp.adapt(transformers.BertForMaskedLM(transformers.BertConfig(**size, max_position_embeddings=20)))
    assert bert.config.max_length == 20


def test_the_vocabulary_is_as_large_as_the_logits_are_wide() -> None:
    class Wide(torch.nn.Module):
        config = type("Config", (), {"vocab_size": SIZE, "mask_token_id": MASK})()

        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(4, SIZE + 3)

        def get_output_embeddings(self) -> torch.nn.Module:
            return self.head

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(torch.ones(1, tokens.size(1), 4))

    wide = lsp.adapt(Wide())
    assert wide.config.vocab_size == SIZE + 3
    assert len(lsp.generate(wide, [1], max_new_tokens=3)[0].tokens) == 3

"""A model that says what a test wants, so that it is known which answers are right."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import lsp
from lsp.integrations.lm_eval import Harness
from tests.lsp.tokenizers_at_hand import byte_level

LENGTH = 400


def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(),
        eos_token="<|endoftext|>",
        mask_token="<|mask|>",
        additional_special_tokens=["<|im_end|>", "<|turn|>"],
        chat_template="{% for m in messages %}[{{m.role}}]{{m.content}}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
    )


def scripted(answer: Callable[[str], str], **arguments: object) -> Harness:
    """A harness whose model answers every prompt with `answer(prompt)` and then ends the text."""
    words = tokenizer()
    end = words.eos_token_id

    def logits(ids: Tensor) -> Tensor:
        row = ids[0].tolist()
        prompt = len(row) - LENGTH  # no lookahead: a pass has all of the masks, or what they have become
        said = words(answer(words.decode(row[:prompt])), add_special_tokens=False)["input_ids"]
        assert len(said) < LENGTH
        wanted = [0] * prompt + (said + [end] * LENGTH)[:LENGTH]
        return torch.nn.functional.one_hot(torch.tensor(wanted), len(words))[None] * 20.0

    model = lsp.adapt(logits, vocab_size=len(words), mask_id=words.mask_token_id, stop_ids=[end], max_length=8192)
    return Harness(model, tokenizer=words, max_new_tokens=LENGTH, lookahead=None, **arguments)

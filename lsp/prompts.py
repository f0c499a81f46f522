"""What counts as a prompt, and its token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lsp.models import Transformer, load_tokenizer
from lsp.models.templates import render
from lsp_kernels.errors import as_integer

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
"""A text, token ids, or a chat, which is a list of messages."""


def as_batch(prompts: Any) -> list[Any]:
    """Prompts as a list of prompts; a single one may come alone. Arrays of ids are lists of ids."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Mapping):
        raise TypeError(
            "Invalid prompts: expected a chat as a list of messages, got a single message; put it in a list"
        )
    if isinstance(prompts, bytes | bytearray):
        raise TypeError("Invalid prompts: expected a text, token ids or a chat, got bytes; decode them first")
    if not isinstance(prompts, Iterable):
        raise TypeError(f"Invalid prompts: expected texts, lists of token ids or chats, got {prompts!r}")
    prompts = [prompt.tolist() if hasattr(prompt, "tolist") else prompt for prompt in prompts]
    one = bool(prompts) and (isinstance(prompts[0], dict) or hasattr(prompts[0], "__index__"))
    return [prompts] if one else prompts


def encode(prompt: Any, tokenizer: Any) -> list[int]:
    """The ids of a prompt. A chat goes through the tokenizer's template."""
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Sequence):
        expected = "a text, token ids or a chat as a list of messages"
        raise TypeError(f"Invalid prompts: expected {expected}, got a {type(prompt).__name__}")
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], dict)):
        if tokenizer is None:
            raise ValueError("Invalid prompts: expected token ids without a tokenizer, got text; pass tokenizer=")
        if isinstance(prompt, str):
            return list(tokenizer(prompt)["input_ids"])
        return list(tokenizer(render(tokenizer, prompt), add_special_tokens=False)["input_ids"])
    return [as_integer("prompts", token, 0) for token in prompt]


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of the folder that a model was loaded from, if there is one."""
    if not isinstance(model, Transformer) or model.source is None:
        return None
    if not any(model.source.glob("tokenizer*")) and not (model.source / "vocab.json").is_file():
        return None
    return load_tokenizer(model)

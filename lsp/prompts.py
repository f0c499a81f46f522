"""What counts as a prompt, and its token ids. A marker such as ``<mask:12>`` in a text is a hole of that many masks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lsp.models import Transformer, load_tokenizer
from lsp.models.templates import render
from lsp_kernels.errors import as_integer

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
"""A text, token ids, or a chat, which is a list of messages."""

MARKER = re.compile(r"<mask:(\d+)>")
LARGEST_HOLE = 2**20


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


def encode(prompt: Any, tokenizer: Any, mask_id: int | None = None) -> list[int]:
    """The ids of a prompt. A chat goes through the tokenizer's template. Markers become masks."""
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Sequence):
        expected = "a text, token ids or a chat as a list of messages"
        raise TypeError(f"Invalid prompts: expected {expected}, got a {type(prompt).__name__}")
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], dict)):
        if tokenizer is None:
            raise ValueError("Invalid prompts: expected token ids without a tokenizer, got text; pass tokenizer=")
        if isinstance(prompt, str):
            return encode_text(prompt, tokenizer, mask_id)
        return encode_text(render(tokenizer, prompt), tokenizer, mask_id, add_special_tokens=False)
    return [as_integer("prompts", token, 0) for token in prompt]


def encode_text(text: str, tokenizer: Any, mask_id: int | None, **how: Any) -> list[int]:
    """The ids of a text. Each marker is tokenized as one mask token, so the text around it is split as around any."""
    if MARKER.search(text) is None:
        return list(tokenizer(text, **how)["input_ids"])
    mask = mask_token(tokenizer, mask_id)
    found = list(re.finditer(f"{MARKER.pattern}|{re.escape(mask)}", text))
    sizes = [1 if match[1] is None else hole_size(match[0], match[1]) for match in found]
    if sum(sizes) > LARGEST_HOLE:
        raise ValueError(f"Invalid prompts: expected at most {LARGEST_HOLE} masks in a text, got {sum(sizes)}")
    ids = list(tokenizer(MARKER.sub(lambda _: mask, text), **how)["input_ids"])
    if ids.count(mask_id) != len(sizes):
        expected = f"expected a tokenizer that reads {mask!r} as the mask id {mask_id}"
        raise ValueError(f"Invalid prompts: {expected} wherever a marker stands, got {ids.count(mask_id)} masks of it")
    left = iter(sizes)
    return [token for one in ids for token in ([one] * next(left) if one == mask_id else [one])]


def mask_token(tokenizer: Any, mask_id: int | None) -> str:
    """The text of the mask."""
    if mask_id is None:
        raise ValueError("Invalid prompts: expected no marker, as the model has no mask id, got one")
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        expected = "expected ids with the mask id in them, or a tokenizer with convert_ids_to_tokens"
        raise ValueError(f"Invalid prompts: {expected}, got a marker and a {type(tokenizer).__name__}")
    token = tokenizer.convert_ids_to_tokens(mask_id)
    if not isinstance(token, str) or not token:
        raise ValueError(f"Invalid tokenizer: expected a token with the mask id {mask_id}, got {token!r}")
    return token


def hole_size(marker: str, digits: str) -> int:
    size = int(digits) if len(digits) <= len(str(LARGEST_HOLE)) else LARGEST_HOLE + 1
    if not 1 <= size <= LARGEST_HOLE:
        raise ValueError(f"Invalid marker: expected from 1 to {LARGEST_HOLE} masks, got {marker}")
    return size


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of the folder that a model was loaded from, if there is one."""
    if not isinstance(model, Transformer) or model.source is None:
        return None
    if not any(model.source.glob("tokenizer*")) and not (model.source / "vocab.json").is_file():
        return None
    return load_tokenizer(model)

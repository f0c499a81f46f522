"""The mask of a checkpoint whose config.json does not name it: what the files of its tokenizer say.

They are read as JSON, so that loading a model needs no tokenizer. `lsp.tokens.mask_id` asks a tokenizer the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lsp.models import checkpoint
from lsp.tokens import MASKS


def mask_in(folder: Path) -> int | None:
    """The id of the token that the tokenizer calls its mask, else of the first of `lsp.tokens.MASKS` that was added."""
    config = _read(folder / "tokenizer_config.json")
    given = config.get("mask_token") or _read(folder / "special_tokens_map.json").get("mask_token")
    added = {_content(token): i for token, i in _added(folder, config)}
    return next((added[name] for name in (_content(given), *MASKS) if name in added), None)


def _added(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    """The added tokens and their ids, wherever a version of transformers has written them."""
    for token, i in _read(folder / "added_tokens.json").items():
        if type(i) is int:
            yield token, i
    listed = _read(folder / "tokenizer.json").get("added_tokens")
    for token in listed if isinstance(listed, list) else ():
        if isinstance(token, Mapping) and type(token.get("id")) is int:
            yield token, token["id"]
    table = config.get("added_tokens_decoder")
    for i, token in table.items() if isinstance(table, Mapping) else ():
        if i.isdecimal() and len(i) < 12:
            yield token, int(i)


def _content(token: Any) -> str | None:
    """The text of a token, which may come with its properties."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None


def _read(path: Path) -> dict[str, Any]:
    return checkpoint.read_json(path) if path.is_file() else {}

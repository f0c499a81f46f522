"""Which tokens of a tokenizer end a clause, a sentence, a line or a statement, which end a text, and which is the mask.

A token is judged by the text that it stands for: byte-level vocabularies are turned back into bytes, sentencepiece
markers into spaces. It counts if that ends with a delimiter, white space aside; after a comma or the end of a sentence
also closing quotes and brackets. Needs no tokenizer library: any object with `get_vocab` will do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch

from lsp_kernels import Vocabulary

ENDINGS = {
    "clause": frozenset(",;:"),
    "sentence": frozenset(".!?…"),
    "statement": frozenset(";{}:"),
    "cjk_clause": frozenset("，、；：､"),
    "cjk_sentence": frozenset("。！？｡．…"),
    "line": frozenset("\n\r"),
}
"""The delimiters of each kind. A token belongs to the kinds of what it ends with."""

SETS = {
    "text": ("clause", "sentence", "line"),
    "code": ("statement", "line"),
    "cjk": ("cjk_clause", "cjk_sentence", "line"),
    "all": tuple(ENDINGS),
}
"""Named sets, as unions of kinds."""

CLOSERS = frozenset("\"'`*)]}»”’」』）】》〉］｝")
CLOSABLE = frozenset(",，、､").union(*(ENDINGS[kind] for kind in ("sentence", "cjk_sentence")))
"""The delimiters that closing quotes and brackets may follow and belong to: `."`, but not `:]`."""

STOPS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
)
"""Special tokens that end a text or a turn, wherever a tokenizer has them."""

MASKS = ("<|mdm_mask|>", "<|mask|>", "<mask>", "[MASK]")
"""Special tokens that mark a masked position, tried in order."""

Delimiters = str | Iterable[str] | Callable[[str], bool]


def vocabulary(
    tokenizer: Any,
    config: Any = None,
    *,
    size: int | None = None,
    delimiters: Delimiters = "text",
    stops: Iterable[int] | None = None,
    suppress: Iterable[int] = (),
    device: torch.device | str = "cpu",
) -> Vocabulary:
    """The `Vocabulary` of a tokenizer and a model.

    Parameters
    ----------
    tokenizer
        A tokenizer of transformers or of `tokenizers`, or any object with ``get_vocab()``.
    config : optional
        The model's config, for its size, mask and stops.
    size : int, optional
        V of the logits; by default the config's, else just enough for the tokenizer.
    delimiters
        As in `delimiter_ids`.
    stops : iterable of int, optional
        By default `stop_ids`.
    suppress : iterable of int
        Ids that are never to be chosen, besides the mask.
    device : torch.device or str

    Examples
    --------
    >>> import lsp
    >>> model, tokenizer = lsp.load("tiny"), lsp.load_tokenizer("tiny")
    >>> lsp.tokens.vocabulary(tokenizer, model.config)
    Vocabulary(size=241, delimiters=9, stops=1, suppressed=1, device='cpu')
    """
    known = max(tokenizer.get_vocab().values()) + 1
    size = size if size is not None else _value(config, "vocab_size") or known
    mask = mask_id(tokenizer, config)
    return Vocabulary(
        size,
        delimiters=[i for i in delimiter_ids(tokenizer, delimiters) if i < size],
        stops=[i for i in stop_ids(tokenizer, config) if i < size] if stops is None else stops,
        suppress=[*suppress, *(() if mask is None else (mask,))],
        device=device,
    )


def delimiter_ids(tokenizer: Any, delimiters: Delimiters = "text") -> list[int]:
    """The ids of the tokens that end with a delimiter, sorted. Special tokens never do.

    Parameters
    ----------
    tokenizer
        As in `vocabulary`.
    delimiters : str, iterable of str, or callable
        One of ``"text"``, ``"code"``, ``"cjk"``, ``"all"``, a kind of `ENDINGS` such as ``"sentence"``, or several of
        these and of delimiters of your own, characters or longer endings: ``("text", "→", "end")``. Or a function that
        is given the text of a token and says whether it is one.

    Examples
    --------
    >>> import lsp
    >>> tokenizer = lsp.load_tokenizer("tiny")
    >>> tokenizer.convert_ids_to_tokens(lsp.tokens.delimiter_ids(tokenizer, ("sentence", "return")))
    ['.', '?', 'return']
    """
    ends = delimiters if callable(delimiters) else _matcher(delimiters)
    return sorted(i for i, text in token_texts(tokenizer).items() if ends(text))


def stop_ids(tokenizer: Any = None, config: Any = None) -> list[int]:
    """The ids that end a text: the config's and the tokenizer's end of sequence, and the turn ends of `STOPS`."""
    found = {*_ids(_value(config, "stop_ids")), *_ids(_value(config, "eos_token_id"))}
    if tokenizer is not None:
        special = _special(tokenizer)
        found |= {*_ids(getattr(tokenizer, "eos_token_id", None)), *(special[t] for t in STOPS if t in special)}
    return sorted(found)


def mask_id(tokenizer: Any = None, config: Any = None) -> int | None:
    """The id of a masked position: the config's, else the tokenizer's, else the first of `MASKS` that there is."""
    special = {} if tokenizer is None else _special(tokenizer)
    for ids in (
        _value(config, "mask_id"),
        _value(config, "mask_token_id"),
        getattr(tokenizer, "mask_token_id", None),
        [special[t] for t in MASKS if t in special],
    ):
        if found := _ids(ids):
            return found[0]
    return None


def token_texts(tokenizer: Any) -> dict[int, str]:
    """The text that each token stands for, without special tokens. Incomplete characters are replaced by U+FFFD.

    Examples
    --------
    >>> class Words:
    ...     def get_vocab(self):
    ...         return {"Ġso": 0, ",Ċ": 1, "Ã©": 2, "Ã": 3}
    >>> token_texts(Words())
    {0: ' so', 1: ',\\n', 2: 'é', 3: '�'}
    """
    added = _added(tokenizer)
    vocab: Mapping[str, int] = tokenizer.get_vocab()
    decode = _decoder(tokenizer, vocab)
    out = {i: decode(token) for token, i in vocab.items() if i not in added}
    out |= {i: token for i, (token, special) in added.items() if not special}  # an added word stands for itself
    return dict(sorted(out.items()))


def _matcher(delimiters: str | Iterable[str]) -> Callable[[str], bool]:
    """Whether a text ends with one of these."""
    names = [delimiters] if isinstance(delimiters, str) else list(delimiters)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"Invalid delimiters: expected names of sets or delimiters, got {delimiters!r}")
    if isinstance(delimiters, str) and delimiters not in SETS and delimiters not in ENDINGS:
        known = ", ".join([*SETS, *ENDINGS])
        raise ValueError(f"Invalid delimiters: expected {known}, or an iterable of delimiters, got {delimiters!r}")
    kinds = {kind for name in names for kind in SETS.get(name, (name,)) if kind in ENDINGS}
    endings = {end for kind in kinds for end in ENDINGS[kind]}
    closable = tuple(endings & CLOSABLE)
    plain = tuple(endings | {name for name in names if name not in SETS and name not in ENDINGS})

    def ends(text: str) -> bool:
        while text and not text.endswith(plain):
            if not text[-1].isspace():
                break
            text = text[:-1]
        else:
            return bool(text)
        closed = text.rstrip("".join(CLOSERS) + " ")
        return bool(closable) and closed != text and closed.endswith(closable)

    return ends


def _decoder(tokenizer: Any, vocab: Mapping[str, int]) -> Callable[[str], str]:
    """How tokens of this vocabulary are turned into text: by its components or, without any, by the tokens it has."""
    spec = _components(tokenizer)
    if "ByteLevel" in spec or (not spec and ("Ġ" in vocab or any(t.startswith("Ġ") for t in vocab))):
        return _from_bytes
    if "WordPiece" in spec or (not spec and any(t.startswith("##") for t in vocab)):
        return lambda token: token.removeprefix("##")
    if "▁" in spec or "Metaspace" in spec or (not spec and any("▁" in t for t in vocab)) or "<0x0A>" in vocab:
        return _from_pieces
    return lambda token: token


def _components(tokenizer: Any) -> str:
    """What a fast tokenizer says of its pre-tokenizer and decoder, as JSON; empty if there is none to ask."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    parts: list[Any] = [getattr(backend, name, None) for name in ("pre_tokenizer", "decoder")]
    out = []
    for part in parts:
        if type(part).__module__.startswith("tokenizers"):
            with contextlib.suppress(Exception):  # a component written in Python has no JSON
                out.append(part.__getstate__().decode())
    return " ".join(out)


def _from_pieces(token: str) -> str:
    """A sentencepiece token: "▁" is a space, <0x0A> a byte."""
    if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
        return bytes([int(byte[1], 16)]).decode(errors="replace")
    return token.replace("▁", " ")


def _from_bytes(token: str) -> str:
    """A token of a byte-level vocabulary, whose characters are bytes."""
    table = _byte_alphabet()
    if any(character not in table for character in token):
        return token
    return bytes(table[character] for character in token).decode(errors="replace")


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes: printable ones for themselves, the others from 256 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _added(tokenizer: Any) -> dict[int, tuple[str, bool]]:
    """The added tokens by id, and whether each is special."""
    found = getattr(tokenizer, "added_tokens_decoder", None)
    if found is None and hasattr(tokenizer, "get_added_tokens_decoder"):
        found = tokenizer.get_added_tokens_decoder()
    out = {i: (token.content, bool(token.special)) for i, token in (found or {}).items()}
    named = zip(getattr(tokenizer, "all_special_ids", ()), getattr(tokenizer, "all_special_tokens", ()), strict=True)
    return out | {i: (token, True) for i, token in named}


def _special(tokenizer: Any) -> dict[str, int]:
    return {token: i for i, (token, special) in _added(tokenizer).items() if special}


def _value(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _ids(value: Any) -> list[int]:
    """One id, several, or none."""
    if value is None:
        return []
    return [int(i) for i in value] if isinstance(value, Iterable) else [int(value)]

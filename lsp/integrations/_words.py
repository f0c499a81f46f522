"""From text to ids, and back to where an answer ends: what a tokenizer and a model agree on."""

from __future__ import annotations

from typing import Any

from lsp import tokens
from lsp.models.protocol import Model
from lsp_kernels import Vocabulary


class Words:
    """A tokenizer beside its model; the vocabulary is made once for each set of stops."""

    def __init__(self, tokenizer: Any, model: Model, delimiters: Any) -> None:
        self.tokenizer, self.model, self.delimiters = tokenizer, model, delimiters
        self._vocabularies: dict[tuple[int, ...], Vocabulary] = {}
        self.vocabulary()  # wrong delimiters are noticed before the work

    def encode(self, text: str) -> list[int]:
        """The ids of a text. One that begins with the first special token already, as chats may, gets no second."""
        first = self.tokenizer.bos_token
        begun = bool(first) and text.startswith(first)
        return list(self.tokenizer(text, add_special_tokens=not begun)["input_ids"])

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Context and continuation; spaces between them belong to the continuation, as in lm-eval."""
        whole, first = self.encode(context + continuation), self.encode(context.rstrip())
        return first, whole[len(first) :]

    def vocabulary(self, stops: tuple[int, ...] = ()) -> Vocabulary:
        """The vocabulary with these stops beside its own."""
        if stops not in self._vocabularies:
            config = self.model.config
            own = [token for token in tokens.stop_ids(self.tokenizer, config) if token < config.vocab_size]
            self._vocabularies[stops] = tokens.vocabulary(
                self.tokenizer, config, delimiters=self.delimiters, stops=[*own, *stops], device=self.model.device
            )
        return self._vocabularies[stops]

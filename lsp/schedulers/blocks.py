"""Rivals whose idea is the block: a confidence threshold with the loop options that their authors gave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lsp.decoding.options import Options
from lsp.schedulers.scattered import Threshold


@dataclass(frozen=True)
class AdaBlock(Threshold):
    """A threshold in blocks that end at the most confident delimiter (AdaBlock-dLLM): ``blocks="delimiter"``.

    It runs on Fast-dLLM's cache. The confidence of the delimiter is the option `delimiter_confidence`; which tokens are
    delimiters, the vocabulary says.
    """

    key: ClassVar[str] = "adablock"

    @property
    def name(self) -> str:
        return "AdaBlock"

    @property
    def options(self) -> Options:
        return Options(block_length=16, blocks="delimiter", cache="block")


@dataclass(frozen=True)
class SlidingBlock(Threshold):
    """A threshold in a block that slides with the first mask (DSB): ``blocks="sliding"``.

    The 24 tokens before the block are computed anew in every pass, as its authors do: ``recompute=24``.
    """

    key: ClassVar[str] = "sliding"

    @property
    def name(self) -> str:
        return "Sliding block"

    @property
    def options(self) -> Options:
        return Options(block_length=16, blocks="sliding", recompute=24)

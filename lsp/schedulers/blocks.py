"""Rivals whose idea is the block: a confidence threshold with the loop options that their authors gave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lsp.decoding.options import Options
from lsp.schedulers.scattered import Threshold


@dataclass(frozen=True)
class AdaBlock(Threshold):
    """A threshold in blocks that end at the most confident delimiter (AdaBlock-dLLM): ``blocks="delimiter"``.

    It runs on Fast-dLLM's cache, as well on its dual one. The confidence of the delimiter is the option
    `delimiter_confidence`; which tokens are delimiters, the vocabulary says: ``delimiters="line"`` for its authors.
    """

    key: ClassVar[str] = "adablock"

    @property
    def name(self) -> str:
        return "AdaBlock"

    @property
    def options(self) -> Options:
        return Options(block_length=32, blocks="delimiter", cache="block")


@dataclass(frozen=True)
class SlidingBlock(Threshold):
    """A threshold in a block that slides with the first mask (DSB): ``blocks="sliding"``.

    It runs on its authors' cache: a pass computes the block and the 24 tokens before it (``recompute=24``), and after
    every 32 tokens one computes everything. Their greedy variant is ``blocks="growing"``.
    """

    key: ClassVar[str] = "sliding"

    @property
    def name(self) -> str:
        return "Sliding block"

    @property
    def options(self) -> Options:
        return Options(block_length=32, blocks="sliding", cache="dual", recompute=24)

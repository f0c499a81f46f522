"""How the loop runs, whatever the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from lsp_kernels.errors import as_integer

HIGHEST_TEMPERATURE = 1e30  # of the operations


@dataclass(frozen=True)
class Options:
    """How the loop runs, whatever the scheduler. A scheduler has options of its own; what a caller gives replaces them.

    Parameters
    ----------
    block_length : int, optional
        Only masks of the current block may be committed; later masks stay in the pass.
    lookahead : int, optional
        A pass ends this many positions after its block or, without blocks, after the first mask.
    cache : {"prefix", "block", "none"}
        ``"prefix"`` freezes every committed run that touches the frozen prefix. ``"block"`` is Fast-dLLM's cache:
        everything is computed anew in the first pass of each block, and nothing is frozen past the block's start.
        ``"none"`` computes everything in every pass, which is exact.
    refresh_every : int, optional
        After this many passes everything is computed anew. 1 is the same as ``cache="none"``.
    refresh_scattered : bool
        Everything is computed anew after a pass that committed tokens to the right of a mask that stayed open, because
        the frozen tokens have not seen them. (Tokens to the right of a committed stop do not count.) Meant for
        `LongestStablePrefix` with islands; a scheduler that always scatters would refresh in every pass.
    stop_early : bool
        Whether a stop token drops what follows it; if not, it is a token like any other.
    temperature : float
        Scale of the Gumbel noise that is added to the logits, up to 1e30; 0 is greedy.
    graph : bool
        Whether a pass is captured in a CUDA graph and replayed, with its numbers of tokens and rows rounded up to
        buckets. Needs a cache and a model of `lsp.load`. On a CPU the rounded pass runs as it is.

    Examples
    --------
    >>> Options(lookahead=64, cache="none").notes
    ['lookahead 64', 'cache none']
    """

    block_length: int | None = None
    lookahead: int | None = None
    cache: Literal["prefix", "block", "none"] = "prefix"
    refresh_every: int | None = None
    refresh_scattered: bool = False
    stop_early: bool = True
    temperature: float = 0.0
    graph: bool = False

    def __post_init__(self) -> None:
        for name, least in (("block_length", 1), ("refresh_every", 1), ("lookahead", 0)):
            if (value := getattr(self, name)) is not None:
                as_integer(name, value, least)
        if self.lookahead == 0 and self.block_length is None:
            raise ValueError("Invalid lookahead: expected at least 1 without blocks, got 0")
        if self.cache not in ("prefix", "block", "none"):
            raise ValueError(f"Invalid cache: expected 'prefix', 'block' or 'none', got {self.cache!r}")
        if self.cache == "block" and (self.block_length is None or self.refresh_every or self.refresh_scattered):
            raise ValueError("Invalid cache: 'block' expects a block_length and no refresh")
        if not 0 <= self.temperature <= HIGHEST_TEMPERATURE:
            raise ValueError(f"Invalid temperature: expected a number from 0 to 1e30, got {self.temperature!r}")
        if not isinstance(self.graph, bool):
            raise TypeError(f"Invalid graph: expected True or False, got {self.graph!r}")
        if self.graph and self.exact:
            raise ValueError("Invalid graph: expected a cache, got none")

    @property
    def exact(self) -> bool:
        """Whether every pass computes everything, so that nothing is approximated."""
        return self.cache == "none" or self.refresh_every == 1

    @property
    def notes(self) -> list[str]:
        """What differs from the defaults, in words."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        words = {name: name.replace("_", " ") for name in changed}
        return [words[name] if value is True else f"{words[name]} {value}" for name, value in changed.items()]

    def replaced_by(self, given: dict[str, Any]) -> Options:
        """These options with the given ones in their place. ``cache="block"`` refreshes by itself and no more."""
        if unknown := [name for name in given if name not in NAMES]:
            raise TypeError(f"Invalid {unknown[0]}: not supported; expected options among {', '.join(NAMES)}")
        if given.get("cache") == "block":
            given = {"refresh_scattered": False, **given}
        return replace(self, **given)


NAMES = tuple(f.name for f in fields(Options))

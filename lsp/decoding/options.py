"""How the loop runs, whatever the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from lsp.decoding.checks import check_fields
from lsp_kernels.errors import as_integer

HIGHEST_TEMPERATURE = 1e30  # of the operations


@dataclass(frozen=True)
class Options:
    """How the loop runs, whatever the scheduler. A scheduler has options of its own; what a caller gives replaces them.

    Parameters
    ----------
    block_length : int, optional
        Only masks of the current block may be committed; later masks stay in the pass.
    blocks : {"fixed", "delimiter", "sliding", "growing"}
        Where blocks begin and end. ``"fixed"``: every `block_length` positions (LLaDA). ``"delimiter"``: at the most
        confident delimiter that the first pass of the block predicts within a quarter of all masks, if its confidence
        reaches `delimiter_confidence`, else after `block_length` positions (AdaBlock). ``"sliding"``: a block begins
        at the first mask, in every pass anew (DSB); ``"growing"``: so it does, and it ends after `block_length` masks,
        however many tokens lie between them (DSB, whose authors call the two constant and greedy).
    delimiter_confidence : float
        For ``blocks="delimiter"``.
    lookahead : int, optional
        A pass leaves out masks that are this many positions or more after its block or, without blocks, the first mask.
    cache : {"prefix", "block", "dual", "none"}
        ``"prefix"`` freezes every committed run that touches the frozen prefix. ``"block"`` is Fast-dLLM's cache:
        everything is computed anew in the first pass of each block, and nothing is frozen past the block's start.
        ``"dual"`` is Fast-dLLM's other one: the first pass of each block also keeps the masks after it, and later
        passes run the block alone; where blocks slide or grow, everything is computed anew after every `block_length`
        tokens (DSB). ``"none"`` computes everything in every pass, which is exact.
    recompute : int
        So many of the tokens before the first mask (before the block, with a cache by blocks) stay out of the cache
        and are computed anew in every pass, because they see most of what is committed after them (DSB's window).
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
    top_p, top_k : optional
        With a temperature, tokens are drawn from the fewest that together reach the probability `top_p`, and from the
        `top_k` most likely ones. Needs logits.
    cfg_scale : float
        Scale s of classifier-free guidance, 0 for none: every sequence has a twin whose prompt is masks or a negative
        prompt, and logits are u + (s + 1) (c - u), with those of the twin as u.
    graph : bool
        Whether a pass is captured in a CUDA graph and replayed, with its numbers of tokens and rows rounded up to
        buckets. Needs a cache and a model of `lsp.load`. On a CPU the rounded pass runs as it is.

    Examples
    --------
    >>> Options(lookahead=64, cache="none").notes
    ['lookahead 64', 'cache none']
    """

    block_length: int | None = None
    blocks: Literal["fixed", "delimiter", "sliding", "growing"] = "fixed"
    delimiter_confidence: float = 0.3
    lookahead: int | None = None
    cache: Literal["prefix", "block", "dual", "none"] = "prefix"
    recompute: int = 0
    refresh_every: int | None = None
    refresh_scattered: bool = False
    stop_early: bool = True
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    cfg_scale: float = 0.0
    graph: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least in (("block_length", 1), ("refresh_every", 1), ("lookahead", 0)):
            if (value := getattr(self, name)) is not None:
                as_integer(name, value, least)
        if self.lookahead == 0 and self.block_length is None:
            raise ValueError("Invalid lookahead: expected at least 1 without blocks, got 0")
        if self.blocks not in ("fixed", "delimiter", "sliding", "growing"):
            expected = "'fixed', 'delimiter', 'sliding' or 'growing'"
            raise ValueError(f"Invalid blocks: expected {expected}, got {self.blocks!r}")
        if self.blocks != "fixed" and self.block_length is None:
            raise ValueError(f"Invalid blocks: {self.blocks!r} expects a block_length, got None")
        if not 0 < self.delimiter_confidence <= 1:
            got = f"got {self.delimiter_confidence!r}"
            raise ValueError(f"Invalid delimiter_confidence: expected a confidence from 0 to 1, {got}")
        if self.cache not in ("prefix", "block", "dual", "none"):
            raise ValueError(f"Invalid cache: expected 'prefix', 'block', 'dual' or 'none', got {self.cache!r}")
        if self.by_block and (self.block_length is None or self.refresh_every or self.refresh_scattered):
            raise ValueError(f"Invalid cache: {self.cache!r} expects a block_length and no refresh")
        if self.cache == "block" and self.slides:
            raise ValueError(
                f"Invalid cache: 'block' expects blocks that stay for some passes, got blocks={self.blocks!r}"
            )
        as_integer("recompute", self.recompute, 0)
        if not 0 <= self.temperature <= HIGHEST_TEMPERATURE:
            raise ValueError(f"Invalid temperature: expected a number from 0 to 1e30, got {self.temperature!r}")
        self._check_filters()
        if not 0 <= self.cfg_scale < float("inf"):
            raise ValueError(f"Invalid cfg_scale: expected a finite number from 0, got {self.cfg_scale!r}")
        if self.graph and self.exact:
            raise ValueError("Invalid graph: expected a cache, got none")

    def _check_filters(self) -> None:
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"Invalid top_p: expected a number above 0 and at most 1, got {self.top_p!r}")
        if self.top_k is not None:
            as_integer("top_k", self.top_k, 1)
        for name in ("top_p", "top_k"):
            if getattr(self, name) is not None and self.temperature == 0:
                raise ValueError(f"Invalid {name}: expected none without a temperature, got {getattr(self, name)!r}")
            if getattr(self, name) is not None and self.graph:
                raise ValueError(f"Invalid graph: expected False with {name}, which sorts logits, got True")

    @property
    def by_block(self) -> bool:
        """Whether everything is computed anew once per block, and at no other time."""
        return self.cache in ("block", "dual")

    @property
    def slides(self) -> bool:
        """Whether the block moves on with the first mask."""
        return self.blocks in ("sliding", "growing")

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
        """These options with the given ones in their place. A cache by blocks refreshes by itself and no more."""
        if unknown := [name for name in given if name not in NAMES]:
            raise TypeError(f"Invalid {unknown[0]}: not supported; expected options among {', '.join(NAMES)}")
        if given.get("cache") in ("block", "dual"):
            given = {"refresh_scattered": False, **given}
        return replace(self, **given)


NAMES = tuple(f.name for f in fields(Options))

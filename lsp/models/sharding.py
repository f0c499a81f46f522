"""Which part of a model each rank of a tensor parallel group holds.

Heads, K/V heads and the hidden units of the MLP are split, so that attention and the MLP need no communication inside;
the embedding and the LM head are split by vocabulary. Norms are whole everywhere. Fused parameters are fused from the
rank's own rows of each public tensor: consecutive rows of the whole fused matrix would be a different model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from lsp.models.config import ModelConfig

IDS_TOGETHER = 4
"""Shards of the vocabulary begin at multiples of this: one draw of the noise serves that many ids."""


class Cut(NamedTuple):
    """Where a rank's part of a public tensor begins in one of its dimensions, and how long that dimension is."""

    dim: int
    start: int
    total: int


@dataclass(frozen=True)
class Share:
    """What one rank holds of a model.

    Attributes
    ----------
    whole : ModelConfig
    rank, size : int

    Examples
    --------
    >>> import lsp
    >>> from lsp.models.sharding import Share
    >>> share = Share(lsp.load("tiny").config, rank=1, size=5)
    >>> share.config.n_heads, share.vocabulary, share.cuts("blocks.0.out.weight")
    (1, slice(48, 96, None), (Cut(dim=1, start=32, total=160),))
    """

    whole: ModelConfig
    rank: int
    size: int

    def __post_init__(self) -> None:
        for name in ("n_heads", "n_kv_heads"):
            if (value := getattr(self.whole, name)) % self.size:
                raise ValueError(f"Invalid {name} for tensor_parallel: expected a multiple of {self.size}, got {value}")
        for name, least in (("mlp_size", self.size), ("vocab_size", IDS_TOGETHER * self.size)):
            if (value := getattr(self.whole, name)) < least:
                raise ValueError(f"Invalid {name} for tensor_parallel: expected at least {least}, got {value}")

    def ids(self, rank: int) -> slice:
        """The ids of the vocabulary that a rank has. Shards differ in length where the vocabulary does not divide."""
        borders = (self.whole.vocab_size * i // self.size // IDS_TOGETHER * IDS_TOGETHER for i in (rank, rank + 1))
        start, end = borders
        return slice(start, self.whole.vocab_size if rank + 1 == self.size else end)

    @property
    def vocabulary(self) -> slice:
        """The ids that this rank has."""
        return self.ids(self.rank)

    @property
    def mlp(self) -> slice:
        """The hidden units of the MLP that this rank has."""
        start, end = (self.whole.mlp_size * i // self.size for i in (self.rank, self.rank + 1))
        return slice(start, end)

    @cached_property
    def config(self) -> ModelConfig:
        """The shape of a model that is no larger than this share."""
        return replace(
            self.whole,
            n_heads=self.whole.n_heads // self.size,
            n_kv_heads=self.whole.n_kv_heads // self.size,
            mlp_size=self.mlp.stop - self.mlp.start,
            vocab_size=self.vocabulary.stop - self.vocabulary.start,
            mask_id=None,
            stop_ids=(),
        )

    def cuts(self, parameter: str) -> tuple[Cut, ...]:
        """For each public tensor that is stacked in a parameter, which part of it this rank has; empty for all of it.

        A parameter is one of `Transformer`, such as ``blocks.3.qkv.weight``.
        """
        kind = parameter.split(".")[-2]
        q, kv = (
            (self.rank * own * self.whole.head_dim, self.size * own * self.whole.head_dim)
            for own in (self.config.n_heads, self.config.n_kv_heads)
        )
        mlp, vocabulary = (self.mlp.start, self.whole.mlp_size), (self.vocabulary.start, self.whole.vocab_size)
        return {
            "embedding": (Cut(0, *vocabulary),),
            "qkv": (Cut(0, *q), Cut(0, *kv), Cut(0, *kv)),
            "out": (Cut(1, *q),),
            "gate_up": (Cut(0, *mlp), Cut(0, *mlp)),
            "down": (Cut(1, *mlp),),
            "lm_head": (Cut(0, *vocabulary),),
        }.get(kind, ())

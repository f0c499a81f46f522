"""The transformer over several processes: every rank has its share of the heads, of the MLP and of the vocabulary.

The blocks are those of `transformer`, made for the shape of a share. What is added: a sum over the ranks after the
embedding, after `out` and after `down`, and statistics of the vocabulary's shards that are merged. The operations see
local tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lsp.models.config import ModelConfig
from lsp.models.linear import Linear
from lsp.models.sharding import Share
from lsp.models.transformer import Block, Transformer
from lsp.ranks import Ranks
from lsp_kernels import Noise, TokenStats, Vocabulary, linear_token_stats, merge_token_stats

NO_ID = torch.iinfo(torch.int64).max


class Joined(Linear):
    """A product whose input is split over the ranks: each has a part of the sum."""

    def __init__(self, like: nn.Linear, ranks: Ranks) -> None:
        super().__init__(like.in_features, like.out_features, bias=False)
        self.ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        return self.ranks.all_reduce(super().forward(x))


class ShardedEmbedding(nn.Embedding):
    """An embedding whose rows are split over the ranks: the one that has a token's row contributes it."""

    def __init__(self, share: Share, ranks: Ranks) -> None:
        super().__init__(share.config.vocab_size, share.config.d_model)
        self.first, self.ranks = share.vocabulary.start, ranks

    def forward(self, tokens: Tensor) -> Tensor:
        own = tokens - self.first
        elsewhere = (own < 0) | (own >= self.num_embeddings)
        found = super().forward(own.masked_fill(elsewhere, 0))
        return self.ranks.all_reduce(found.masked_fill(elsewhere[:, None], 0.0))


class Allowed(NamedTuple):
    """What a rank may choose among its ids: a vocabulary of its shard, or None if all of them are suppressed."""

    vocabulary: Vocabulary | None


class ShardedHead(nn.Linear):
    """An LM head whose ids are split over the ranks.

    `stats` is what decoding needs: 20 to 28 bytes per row travel, and no logits. A call gathers the logits of all
    ranks, for whoever needs them. Both are collective: every rank calls them, with the same hidden states.
    """

    def __init__(self, share: Share, ranks: Ranks) -> None:
        super().__init__(share.config.d_model, share.config.vocab_size, bias=False)
        self.ids = [share.ids(rank) for rank in range(share.size)]
        self.ranks = ranks

    @property
    def own(self) -> slice:
        """The ids of this rank."""
        return self.ids[self.ranks.rank]

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits of the whole vocabulary."""
        logits = super().forward(hidden)
        sizes = [ids.stop - ids.start for ids in self.ids]
        padded = nn.functional.pad(logits, (0, max(sizes) - logits.size(-1)))
        return torch.cat([part[..., :n] for part, n in zip(self.ranks.all_gather(padded), sizes, strict=True)], -1)

    def allowed(self, vocabulary: Vocabulary) -> Allowed:
        """The part of a vocabulary that concerns this rank."""
        return Allowed(vocabulary.shard(self.own.start, self.own.stop))

    def stats(self, hidden: Tensor, allowed: Allowed, *, noise: Noise | None, entropy: bool = False) -> TokenStats:
        """`linear_token_stats` of the whole vocabulary."""
        if allowed.vocabulary is None:
            own = nothing(hidden, noise=noise is not None, entropy=entropy)
        else:
            shard = {"vocabulary": allowed.vocabulary, "id_offset": self.own.start}
            own = linear_token_stats(hidden, self.weight, noise=noise, entropy=entropy, **shard)
        return merge_token_stats([unpacked(part, own) for part in self.ranks.all_gather(packed(own))])


def nothing(hidden: Tensor, *, noise: bool, entropy: bool) -> TokenStats:
    """The statistics of a shard without ids."""
    lowest = torch.full((len(hidden),), -torch.inf, device=hidden.device)
    zero = torch.zeros_like(lowest)
    tokens = torch.full_like(lowest, NO_ID, dtype=torch.int64)
    return TokenStats(tokens, lowest, lowest, zero, zero if entropy else None, lowest if noise else None)


def packed(stats: TokenStats) -> Tensor:
    """The statistics of R rows in one tensor, int32 [5 R to 7 R]: the bits of every column that there is."""
    return torch.cat([column.view(torch.int32) for column in stats if column is not None])


def unpacked(words: Tensor, like: TokenStats) -> TokenStats:
    """What was `packed`, with the columns of `like`."""
    counts = [0 if column is None else column.nbytes // 4 for column in like]
    parts = zip(words.split(counts), like, strict=True)
    return TokenStats(*(None if column is None else part.view(column.dtype) for part, column in parts))  # type: ignore[arg-type]


class ParallelTransformer(Transformer):
    """A `Transformer` over the ranks of a group, from ``lsp.load(..., tensor_parallel=True)``.

    Parameters
    ----------
    config : ModelConfig
        Of the whole model.
    ranks : Ranks

    Attributes
    ----------
    config : ModelConfig
        Of the whole model; `held` is the shape of what this rank has of it.
    share : Share
    ranks : Ranks
        Counts what was sent.
    """

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        share = Share(config, ranks.rank, ranks.size)
        super().__init__(share.config)
        self.config, self.share, self.ranks = config, share, ranks
        self.embedding = ShardedEmbedding(share, ranks)
        self.lm_head = ShardedHead(share, ranks)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.out, block.down = Joined(block.out, ranks), Joined(block.down, ranks)
        self.tie()

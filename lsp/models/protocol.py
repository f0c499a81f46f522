"""What the decoding loop asks of a model. `Transformer` and `lsp.adapt` answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lsp_kernels import PrefixCache

LmHead = Tensor | Callable[[Tensor], Tensor]
"""From hidden states [R, d] to logits [R, V]: a weight [V, d], or any function."""


class Config(Protocol):
    """What a decoder must know of a model."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def mask_id(self) -> int | None: ...
    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    @property
    def max_length(self) -> int | None: ...
    @property
    def shifted(self) -> bool: ...


@runtime_checkable
class Model(Protocol):
    """A pass is ``hidden = model(tokens, positions, cu_seqlens, cache, append)``; `lm_head` makes logits of some rows.

    `cached` says whether the frozen prefix stays out of the computation; if not, a pass costs whole sequences.

    `new_cache` gives what `cache` must be. The loop keeps the frozen prefix out of the tokens it passes, and for a
    shifted model keeps the last committed token in the pass, since its row predicts the first mask.
    """

    @property
    def config(self) -> Config: ...
    @property
    def device(self) -> torch.device: ...
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        cache: Any = None,
        append: Sequence[int] | None = None,
    ) -> Tensor: ...
    @property
    def lm_head(self) -> LmHead: ...
    @property
    def cached(self) -> bool: ...
    def new_cache(self, batch: int, capacity: int) -> PrefixCache: ...

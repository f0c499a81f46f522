"""The old way to score rows of a pass, kept for one release: use ``model.lm_head`` and the operations themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lsp.models.protocol import LmHead, Model
from lsp_kernels import Commit, TokenStats, Workspace, commit_prefix, token_stats
from lsp_kernels.errors import deprecated


class Head:
    """Predictions for the tokens of one pass. Deprecated; made by ``model.head(hidden)``."""

    def __init__(
        self, hidden: Tensor, lm_head: LmHead, *, shifted: bool = False, workspace: Workspace | None = None
    ) -> None:
        self.hidden, self.lm_head, self.shifted, self.workspace = hidden, lm_head, shifted, workspace

    @torch.no_grad()
    def logits(self, rows: Tensor | slice) -> Tensor:
        """Logits [R, V] of the tokens at these places of the packed pass."""
        places = torch.arange(len(self.hidden), device=self.hidden.device)[rows]
        if self.shifted and places.numel() and int(places.min()) == 0:
            raise ValueError("Invalid rows: expected 1 or more, as the logits are shifted by one, got 0")
        chosen = self.hidden[places - int(self.shifted)]
        return F.linear(chosen, self.lm_head) if isinstance(self.lm_head, Tensor) else self.lm_head(chosen)

    def stats(self, rows: Tensor | slice, **keywords: Any) -> TokenStats:
        """`lsp_kernels.token_stats` of these tokens."""
        return token_stats(self.logits(rows), workspace=self.workspace, **keywords)

    def commit(self, rows: Tensor | slice, *arguments: Any, **keywords: Any) -> Commit:
        """`lsp_kernels.commit_prefix` of these tokens."""
        return commit_prefix(self.logits(rows), *arguments, workspace=self.workspace, **keywords)


def head(self: Model, hidden: Tensor, *, workspace: Workspace | None = None) -> Head:
    """Deprecated: use ``model.lm_head(hidden[rows])``, with ``rows - 1`` where ``model.config.shifted``."""
    deprecated("model.head(hidden)", "model.lm_head with lsp_kernels.token_stats or commit_prefix")
    return Head(hidden, self.lm_head, shifted=self.config.shifted, workspace=workspace)

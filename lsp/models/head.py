"""The seam between a pass and the LM head: only the rows that a scheduler asks for are computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lsp_kernels import Commit, PrefixRule, TokenStats, Vocabulary, Workspace, commit_prefix, token_stats
from lsp_kernels.errors import values_are_free

Rows = Tensor | slice


class Head:
    """Predictions for the tokens of one pass.

    Parameters
    ----------
    hidden : Tensor [T, d]
        What the model returned for the pass.
    project : callable
        From some of these rows to their logits.
    shifted : bool
        Whether a token is predicted by the row before its own. A caller then keeps the token before every asked-for one
        in the pass.
    workspace : Workspace, optional
        For the operations on a GPU.

    Notes
    -----
    `rows` says which tokens of the pass to predict, by their place in the packed pass: an int64 tensor [R], or a slice,
    which saves a copy. The shift is applied here and nowhere else.
    """

    def __init__(
        self,
        hidden: Tensor,
        project: Callable[[Tensor], Tensor],
        *,
        shifted: bool = False,
        workspace: Workspace | None = None,
    ) -> None:
        self.hidden, self.project, self.shifted, self.workspace = hidden, project, shifted, workspace

    @torch.no_grad()
    def logits(self, rows: Rows) -> Tensor:
        """Logits [R, V] of these tokens, in the dtype of the model."""
        return self.project(self._select(rows))

    def stats(self, rows: Rows, *, vocabulary: Vocabulary | None = None) -> TokenStats:
        """Best token, two largest logits and the log-odds of the best token, for each of these tokens."""
        return token_stats(self._scored(rows), vocabulary=vocabulary, workspace=self.workspace)

    def commit(
        self,
        rows: Rows,
        cu_rows: Tensor | None = None,
        n_active: Tensor | None = None,
        *,
        rule: PrefixRule,
        vocabulary: Vocabulary | None = None,
    ) -> Commit:
        """Commit lengths of the sequences whose first masked tokens these are.

        `cu_rows` int32 [B + 1] are the borders of the sequences in `rows`, `n_active` int32 [B] is how many masks each
        has: of N it is enough to ask for the first ``rule.scored_rows(N)``. As in `commit_prefix`.
        """
        scored = self._scored(rows)
        return commit_prefix(scored, cu_rows, n_active, rule=rule, vocabulary=vocabulary, workspace=self.workspace)

    def _scored(self, rows: Rows) -> Tensor:
        logits = self.logits(rows)
        return logits.float() if logits.dtype == torch.float64 else logits

    def _select(self, rows: Rows) -> Tensor:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.hidden.size(0))
            if self.shifted and start == 0 < stop:
                raise ValueError("Invalid rows: expected 1 or more, as the logits are shifted by one, got 0")
            return self.hidden[slice(start - self.shifted, stop - self.shifted, step)]
        least, most = int(self.shifted), self.hidden.size(0) - 1
        if rows.dtype != torch.int64 or rows.dim() != 1:
            raise ValueError(f"Invalid rows: expected a slice or int64 [R], got {rows.dtype} {list(rows.shape)}")
        if values_are_free(rows) and rows.numel() and not least <= int(rows.min()) <= int(rows.max()) <= most:
            raise ValueError(f"Invalid rows: expected {least} to {most}, got {int(rows.min())} to {int(rows.max())}")
        return self.hidden.index_select(0, rows - least)

"""The Triton launchers under the package's public signatures, on CPU tensors. They are interpreted there."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor

from lsp_kernels import Commit, PrefixRule, TokenStats, Vocabulary
from lsp_kernels._ops import rule_arguments


class Served:
    """Calls the launchers of a module: the package's own, or a damaged copy of it."""

    def __init__(self, module: ModuleType, splits: int | None = None) -> None:
        self.module = module
        self.splits = splits

    def token_stats(
        self, logits: Tensor, *, vocabulary: Vocabulary | None = None, workspace: tuple[Any, Any] = (None, None)
    ) -> TokenStats:
        tables = (None, None, 0) if vocabulary is None else vocabulary.tables
        return TokenStats(*self.module.token_stats(logits, *tables, *workspace, splits=self.splits))

    def select_prefix(
        self,
        margins: Tensor,
        tokens: Tensor,
        cu_rows: Tensor | None = None,
        n_active: Tensor | None = None,
        starts: Tensor | None = None,
        *,
        rule: PrefixRule,
        vocabulary: Vocabulary | None = None,
    ) -> tuple[Tensor, Tensor]:
        flags = None if vocabulary is None else vocabulary.flags
        arguments = (margins, tokens, cu_rows, n_active, starts, flags)
        return self.module.select_prefix(*arguments, *rule_arguments(rule))

    def commit_prefix(
        self,
        logits: Tensor,
        cu_rows: Tensor | None = None,
        n_active: Tensor | None = None,
        starts: Tensor | None = None,
        *,
        rule: PrefixRule,
        vocabulary: Vocabulary | None = None,
        workspace: tuple[Any, Any] = (None, None),
    ) -> Commit:
        tables = (None, None, 0) if vocabulary is None else vocabulary.tables
        arguments = (logits, cu_rows, n_active, starts, *tables, *rule_arguments(rule), *workspace)
        return Commit(*self.module.commit_prefix(*arguments, splits=self.splits))

    def suffix_attention(
        self,
        q: Tensor,
        *arguments: Tensor | None,
        scale: float | None = None,
        workspace: tuple[Any, Any] = (None, None),
    ) -> Tensor:
        scale = q.size(-1) ** -0.5 if scale is None else scale
        return self.module.suffix_attention(q, *arguments, scale, *workspace, splits=self.splits)

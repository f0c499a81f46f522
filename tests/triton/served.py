"""The Triton launchers under the package's public signatures, on CPU tensors. They are interpreted there."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from lsp_kernels import Commit, Noise, PrefixRule, TokenStats, Vocabulary
from lsp_kernels._ops import rule_arguments
from lsp_kernels.commit import commit_of, stats_of, tables_of
from lsp_kernels.noise import table_of
from lsp_kernels.triton import configs


class Served:
    """Calls the launchers of a module: the package's own, or a damaged copy of it.

    `splits` is how many programs share the ids of a row or the keys of a tile, for the head how many there are in all.
    """

    def __init__(self, module: ModuleType, splits: int | None = None) -> None:
        self.module = module
        self.splits = splits

    def token_stats(
        self,
        logits: Tensor,
        *,
        vocabulary: Vocabulary | None = None,
        id_offset: int = 0,
        noise: Noise | None = None,
        entropy: bool = False,
        workspace: tuple[Any, Any] = (None, None),
    ) -> TokenStats:
        options = (*tables_of(vocabulary), id_offset, table_of(noise), entropy)
        return stats_of(self.module.token_stats(logits, *options, *workspace, splits=self.splits), noise, entropy)

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
        noise: Noise | None = None,
        log_odds: bool = False,
        workspace: tuple[Any, Any] = (None, None),
    ) -> Commit:
        operands = (logits, cu_rows, n_active, starts, *tables_of(vocabulary), *rule_arguments(rule))
        options = (table_of(noise), log_odds, *workspace)
        return commit_of(self.module.commit_prefix(*operands, *options, splits=self.splits), log_odds)

    def linear_token_stats(
        self,
        hidden: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        vocabulary: Vocabulary | None = None,
        id_offset: int = 0,
        noise: Noise | None = None,
        entropy: bool = False,
        workspace: tuple[Any, Any] = (None, None),
    ) -> TokenStats:
        options = (*tables_of(vocabulary), id_offset, table_of(noise), entropy, *workspace)
        out = self.module.linear_token_stats(hidden, weight, bias, *options, programs=self.splits)
        return stats_of(out, noise, entropy)

    def linear_commit_prefix(
        self,
        hidden: Tensor,
        weight: Tensor,
        cu_rows: Tensor | None = None,
        n_active: Tensor | None = None,
        starts: Tensor | None = None,
        *,
        rule: PrefixRule,
        bias: Tensor | None = None,
        vocabulary: Vocabulary | None = None,
        noise: Noise | None = None,
        log_odds: bool = False,
        workspace: tuple[Any, Any] = (None, None),
    ) -> Commit:
        operands = (hidden, weight, bias, cu_rows, n_active, starts, *tables_of(vocabulary), *rule_arguments(rule))
        options = (table_of(noise), log_odds, *workspace)
        return commit_of(self.module.linear_commit_prefix(*operands, *options, programs=self.splits), log_odds)

    def add_norm(self, x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> Tensor:
        return self.module.add_norm(x, residual, weight, eps)

    def rotate_(
        self, *tensors: Tensor, q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 0.0
    ) -> None:
        self.module.rotate_(*tensors, q_norm, k_norm, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self.module.silu_mul(gate_up)

    def suffix_attention(
        self,
        q: Tensor,
        *arguments: Tensor | None,
        slots: Tensor | None = None,
        scale: float | None = None,
        workspace: tuple[Any, Any] = (None, None),
        out: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        scale = q.size(-1) ** -0.5 if scale is None else scale
        if out is None and not return_lse:
            return self.module.suffix_attention(q, *arguments, slots, scale, *workspace, splits=self.splits)
        out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        lse = torch.empty(q.shape[:-1]) if return_lse else None
        self.module.suffix_attention_into(q, *arguments, slots, scale, *workspace, out, lse, splits=self.splits)
        return (out, lse) if return_lse else out


def limit_extra(monkeypatch: pytest.MonkeyPatch, extra: int, most: int) -> None:
    """Launches get this many extra programs, so that the device has to choose what it divides, into at most `most`."""
    launch_of = configs.attention.launch_of

    def limited(*arguments: object) -> configs.attention.AttentionLaunch:
        least = configs.attention.LEAST_KEYS
        return dataclasses.replace(launch_of(*arguments), extra=extra, splits=most, least_keys=least)

    monkeypatch.setattr(configs.attention, "launch_of", limited)

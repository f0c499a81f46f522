"""Arguments of the commit kernels as the launchers would pass them, for compiled code that is emulated."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lsp_kernels import Commit, PrefixRule, TokenStats, Vocabulary
from lsp_kernels.triton.builds import Build


class CommitInputs:
    """Logits [R, V] with borders and starts, or a batch [B, L, V] with counts; fresh outputs for each launch."""

    def __init__(
        self,
        logits: Tensor,
        rule: PrefixRule,
        vocabulary: Vocabulary,
        *,
        borders: list[int] | None = None,
        starts: list[int] | None = None,
        n_active: list[int] | None = None,
    ) -> None:
        def as_int32(values: list[int] | None) -> Tensor | None:
            return None if values is None else torch.tensor(values, dtype=torch.int32)

        self.logits, self.rule, self.vocabulary = logits, rule, vocabulary
        self.cu_rows, self.starts, self.n_active = as_int32(borders), as_int32(starts), as_int32(n_active)
        self.batch = logits.size(0) if borders is None else len(borders) - 1
        self.tickets = torch.empty(0)

    def arguments(self) -> dict[str, Any]:
        return {
            "cu_rows": self.cu_rows, "n_active": self.n_active, "starts": self.starts, "rule": self.rule,
            "vocabulary": self.vocabulary,
        }  # fmt: skip

    def prepare(self, build: Build) -> tuple[tuple[int], list[Any], Commit | TokenStats]:
        """Grid, run-time arguments in the kernel's order, and the outputs that it will write."""
        shape, size = self.logits.shape[:-1], self.logits.size(-1)
        rows, splits, block = math.prod(shape), build.constants["SPLITS"], build.constants["BLOCK"]
        commit = build.kernel.__name__ == "commit_kernel"
        tokens, floats = torch.full(shape, -7), [torch.full(shape, torch.nan) for _ in range(3)]
        counts = torch.full((self.batch,), -7, dtype=torch.int32)
        finished = torch.full((self.batch,), 7, dtype=torch.uint8)
        partials = torch.full((4 * rows * splits,), -1, dtype=torch.int32)
        self.tickets = torch.zeros(self.batch if commit else rows, dtype=torch.int32)
        rule, hidden = self.rule, self.vocabulary.suppressed
        named = {
            "x_ptr": self.logits, "s_batch": 0 if self.logits.dim() == 2 else self.logits.stride(0),
            "s_row": self.logits.stride(-2), "cu_ptr": self.cu_rows, "active_ptr": self.n_active,
            "starts_ptr": self.starts, "flags_ptr": self.vocabulary.flags, "suppressed_ptr": hidden,
            "length_ptr": counts, "finished_ptr": finished, "token_ptr": tokens, "margin_ptr": floats[0],
            "top1_ptr": floats[0], "top2_ptr": floats[1], "rest_ptr": floats[2],
            "value_ptr": partials.view(torch.float32), "id_ptr": partials, "ticket_ptr": self.tickets,
            "batch": self.batch, "rows": rows, "length": shape[-1], "vocabulary": size,
            "tiles": -(-size // (block * splits)), "n_suppressed": 0 if hidden is None else hidden.numel(),
            "alpha": rule.alpha_ppm, "beta": rule.beta_ppm, "min_length": rule.min_length, "window": rule.window,
            "floor": rule.floor or 0.0,
        }  # fmt: skip
        grid = (rows * splits + self.batch,) if commit else (rows * splits,)
        done = finished.view(torch.bool)
        outputs = Commit(counts, done, tokens, floats[0]) if commit else TokenStats(tokens, *floats)
        return grid, [named[name] for name in build.signature], outputs

"""Arguments of the commit kernels as the launchers would pass them, for compiled code that is emulated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lsp_kernels import Commit, PrefixRule, TokenStats, Vocabulary
from lsp_kernels.triton.builds import Build


class CommitInputs:
    """Packed logits of a few sequences, and fresh outputs and workspace for each launch."""

    def __init__(self, logits: Tensor, borders: list[int], rule: PrefixRule, vocabulary: Vocabulary) -> None:
        self.logits = logits
        self.cu_rows = torch.tensor(borders, dtype=torch.int32)
        self.rule = rule
        self.vocabulary = vocabulary
        self.batch = len(borders) - 1
        self.starts = torch.zeros(self.batch, dtype=torch.int32)
        self.n_active = self.cu_rows.diff()

    def arguments(self) -> dict[str, Any]:
        return {"cu_rows": self.cu_rows, "rule": self.rule, "vocabulary": self.vocabulary}

    def prepare(self, build: Build) -> tuple[tuple[int], list[Any], Commit | TokenStats]:
        """Grid, run-time arguments in the kernel's order, and the outputs that it will write."""
        rows, size = self.logits.shape
        splits, block = build.constants["SPLITS"], build.constants["BLOCK"]
        commit = build.kernel.__name__ == "commit_kernel"
        tokens, counts = torch.full((rows,), -7), torch.full((self.batch,), -7, dtype=torch.int32)
        floats = [torch.full((rows,), torch.nan) for _ in range(3)]
        finished = torch.full((self.batch,), 7, dtype=torch.uint8)
        partials = torch.full((4 * rows * splits,), -1, dtype=torch.int32)
        rule, hidden = self.rule, self.vocabulary.suppressed
        named = {
            "x_ptr": self.logits, "s_batch": 0, "s_row": self.logits.stride(0), "cu_ptr": self.cu_rows,
            "active_ptr": self.n_active, "starts_ptr": self.starts, "flags_ptr": self.vocabulary.flags,
            "suppressed_ptr": hidden, "length_ptr": counts, "finished_ptr": finished, "token_ptr": tokens,
            "margin_ptr": floats[0], "top1_ptr": floats[0], "top2_ptr": floats[1], "rest_ptr": floats[2],
            "value_ptr": partials.view(torch.float32), "id_ptr": partials,
            "ticket_ptr": torch.zeros(self.batch if commit else rows, dtype=torch.int32), "batch": self.batch,
            "rows": rows, "length": rows, "vocabulary": size, "tiles": -(-size // (block * splits)),
            "n_suppressed": 0 if hidden is None else hidden.numel(), "alpha": rule.alpha_ppm, "beta": rule.beta_ppm,
            "min_length": rule.min_length, "window": rule.window, "floor": rule.floor or 0.0,
        }  # fmt: skip
        self.tickets = named["ticket_ptr"]
        grid = (rows * splits + self.batch,) if commit else (rows * splits,)
        outputs = (
            Commit(counts, finished.view(torch.bool), tokens, floats[0]) if commit else TokenStats(tokens, *floats)
        )
        return grid, [named[name] for name in build.signature], outputs

"""Arguments of the kernels as the launchers would pass them, for compiled code that is emulated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lsp_kernels import Commit, Noise, PrefixRule, TokenStats, Vocabulary
from lsp_kernels.triton.aot.builds import Build
from lsp_kernels.triton.configs.commit import MOST_PLANES, Slots, commit_slots
from tests.attention_cases import AttentionCase
from tests.strategies import random_logits
from tests.support import ints

SIZE = 10_304  # one group of four tiles and a ragged end per split of two; divisible by 16, as aligned builds expect
BORDERS = [0, 5, 5, 6, 9]


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
        noise: Noise | None = None,
        id_offset: int = 0,
    ) -> None:
        def as_int32(values: list[int] | None) -> Tensor | None:
            return None if values is None else ints(*values)

        self.logits, self.rule, self.vocabulary = logits, rule, vocabulary
        self.noise, self.id_offset = noise, id_offset
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
        tokens, floats = torch.full(shape, -7), [torch.full(shape, torch.nan) for _ in range(5)]
        counts = torch.full((self.batch,), -7, dtype=torch.int32)
        finished = torch.full((self.batch,), 7, dtype=torch.uint8)
        slots = commit_slots(self.logits, self.cu_rows, self.n_active, self.rule) if commit else Slots(rows, 0, rows)
        partials = torch.full((MOST_PLANES * slots.count * splits,), -1, dtype=torch.int32)
        self.tickets = torch.zeros(slots.count + (self.batch if commit else 0), dtype=torch.int32)
        rule, hidden = self.rule, self.vocabulary.suppressed
        named = {
            "x_ptr": self.logits, "s_batch": 0 if self.logits.dim() == 2 else self.logits.stride(0),
            "s_row": self.logits.stride(-2), "cu_ptr": self.cu_rows, "active_ptr": self.n_active,
            "starts_ptr": self.starts, "flags_ptr": self.vocabulary.flags, "length_ptr": counts,
            "finished_ptr": finished, "token_ptr": tokens, "margin_ptr": floats[1],
            "top1_ptr": floats[0], "top2_ptr": floats[1], "log_odds_ptr": floats[2], "entropy_ptr": floats[3],
            "clean_ptr": floats[4], "noise_ptr": None if self.noise is None else self.noise.table,
            "id_offset": self.id_offset,
            "value_ptr": partials.view(torch.float32), "ticket_ptr": self.tickets,
            "batch": self.batch, "rows": rows, "length": shape[-1], "per_sequence": slots.per_sequence,
            "slots": slots.count, "vocabulary": size, "tiles": -(-size // (block * splits)),
            "lowest": self.vocabulary.lowest, "others": size - 1 - (0 if hidden is None else hidden.numel()),
            "alpha": rule.alpha_ppm, "beta": rule.beta_ppm, "min_length": rule.min_length, "window": rule.window,
            "floor": rule.floor or 0.0,
        }  # fmt: skip
        grid = (slots.count * splits + (self.batch if commit else 0),)
        done = finished.view(torch.bool)
        asked = (
            named[name] if name in build.signature else None for name in ("log_odds_ptr", "entropy_ptr", "clean_ptr")
        )
        odds, *more = asked
        outputs = Commit(counts, done, tokens, floats[1], floats[0], odds)
        if not commit:
            outputs = TokenStats(tokens, floats[0], floats[1], odds, *more)
        return grid, [named[name] for name in build.signature], outputs


def commit_inputs(
    dtype: torch.dtype = torch.bfloat16,
    kind: str = "ties",
    rule: PrefixRule | None = None,
    size: int = SIZE,
    seed: int = 0,
    batch: bool = False,
    noise: bool = False,
    id_offset: int = 0,
) -> CommitInputs:
    """Packed sequences, some after an unrelated row, or a batch of two with 4 and 3 active rows."""
    logits = random_logits(np.random.default_rng(seed), BORDERS[-1], size, kind, dtype)
    vocabulary = Vocabulary(size, delimiters=range(0, size, 3), stops=range(0, size, 40), suppress=[0, 1, size - 5])
    rule = rule or PrefixRule()
    logits = logits[:8].view(2, 4, size) if batch else logits
    temperatures, place = torch.arange(logits[..., 0].numel()) % 3 * 0.4, torch.arange(logits.size(-2))
    drawn = Noise(temperatures.view(logits.shape[:-1]), seed - 2**40, place, 2) if noise else None
    options: dict[str, Any] = {"noise": drawn, "id_offset": id_offset}
    if batch:
        return CommitInputs(logits, rule, vocabulary, n_active=[4, 3], **options)
    return CommitInputs(logits, rule, vocabulary, borders=BORDERS, starts=[1, 0, 0, 1], **options)


def attention_arguments(
    build: Build, case: AttentionCase, splits: int, extra: int | None = None
) -> tuple[tuple[int, int], list[Any], tuple[Tensor, Tensor], Tensor]:
    """Grid, run-time arguments in the kernel's order, the output and log-sum-exp to be written, and the tickets.

    There are `extra` programs for splits, by default as many as `splits` per tile can need.
    """
    cache_rows, heads, capacity, size = case.k_cache.shape
    chosen, length, batch = build.constants, case.q.size(-3), case.prefix_lens.size(0)
    rows = length * chosen["G"]
    tiles = batch * -(-rows // chosen["BM"]) if case.cu_seqlens is None else rows // chosen["BM"] + batch
    extra = tiles * (splits - 1) if extra is None else extra
    out, tickets = torch.full_like(case.q, torch.nan).contiguous(), torch.zeros(2 * extra * heads, dtype=torch.int32)
    lse = torch.full(case.q.shape[:-1], torch.nan)
    named = {
        "q_ptr": case.q, "k_ptr": case.k, "v_ptr": case.v, "kc_ptr": case.k_cache, "vc_ptr": case.v_cache,
        "out_ptr": out, "lse_ptr": lse, "cu_ptr": case.cu_seqlens, "prefix_ptr": case.prefix_lens,
        "append_ptr": case.append_lens, "slots_ptr": case.slots,
        "partial_ptr": torch.full((tickets.numel() * chosen["BM"] * (chosen["DP"] + 2),), torch.nan),
        "ticket_ptr": tickets, "batch": batch, "length": length, "cache_rows": cache_rows, "capacity": capacity,
        "tiles": tiles, "extra": extra, "places": 2 * extra, "most": splits, "least": 1,
        "scale": (size**-0.5 if case.scale is None else case.scale) * math.log2(math.e),
    }  # fmt: skip
    for name, x in (("q", case.q), ("k", case.k), ("v", case.v)):
        strides = (x.stride(0) if x.dim() == 4 else 0, x.stride(-3), x.stride(-2))
        named |= zip((f"s_{name}b", f"s_{name}t", f"s_{name}h"), strides, strict=True)
    for name, x in (("kc", case.k_cache), ("vc", case.v_cache)):
        named |= zip((f"s_{name}b", f"s_{name}h", f"s_{name}s"), x.stride()[:3], strict=True)
    return (tiles + extra, heads), [named[name] for name in build.signature], (out, lse), tickets

"""Compiled attention kernels, executed under the public signature, and a case for them."""

from __future__ import annotations

import re
from typing import Any

import torch

from lsp_kernels.triton.aot import Compiled
from lsp_kernels.triton.aot.builds import Build
from tests.attention_cases import AttentionCase, make_case
from tests.triton.inputs import attention_arguments
from tests.virtual_gpu import launch
from tests.virtual_gpu.launch import Launch

ROUNDED = 2.0  # the weights are rounded to 16 bits before they meet the values
SPLITS = 3


class Emulated:
    """A compiled kernel under the public signature."""

    def __init__(self, made: Build, seed: int = 0, extra: int | None = None) -> None:
        self.made, self.seed, self.extra = made, seed, extra
        self.compiled: Compiled = made.compile()
        self.text = self.compiled.text
        self.splits = SPLITS if made.constants["SPLIT"] else 1
        self.launched: Launch | None = None
        self.published = 0  # splits that were merged, of all tiles together

    def suffix_attention(
        self, *tensors: Any, slots: Any = None, scale: float | None = None, return_lse: bool = False
    ) -> Any:
        case = AttentionCase(*tensors, scale, slots)
        grid, arguments, results, tickets = attention_arguments(self.made, case, self.splits, self.extra)
        self.launched = launch(self.text, grid, arguments, shared=self.compiled.shared, seed=self.seed)
        assert not tickets.any()
        if self.splits > 1:
            partials = arguments[list(self.made.signature).index("partial_ptr")]
            maxima = partials[-2 * self.made.constants["BM"] * tickets.numel() :].view(tickets.numel(), -1)[:, 0]
            self.published = int((~maxima.isnan()).sum())
        return results if return_lse else results[0]


def ragged(head_dim: int = 128, dtype: torch.dtype = torch.bfloat16, **options: Any) -> AttentionCase:
    """Two tiles, an empty sequence, prefixes of one and three splits, NaN behind them, and a group of 7."""
    return make_case([5, 0, 10], [70, 3, 0], [5, 0, 9], heads=(7, 1), size=head_dim, dtype=dtype, **options)


def around(text: str, place: int) -> tuple[str, str]:
    """The last access of memory before a place of a kernel's text, and the first one after it."""
    before, after = (
        re.findall(r"\s(?:cp\.async[.\w]*|ld[.\w]*|st[.\w]*)", part) for part in (text[:place], text[place:])
    )
    return before[-1].strip(), after[0].strip()

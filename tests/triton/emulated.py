"""Compiled attention kernels, executed under the public signature, and a case for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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

    def __init__(self, made: Build, seed: int = 0) -> None:
        self.made, self.seed = made, seed
        self.compiled: Compiled = made.compile()
        self.text = self.compiled.text
        self.splits = SPLITS if made.constants["SPLIT"] else 1
        self.launched: Launch | None = None

    def suffix_attention(self, *tensors: Any, scale: float | None = None) -> Tensor:
        case = AttentionCase(*tensors, scale)
        grid, arguments, out, tickets = attention_arguments(self.made, case, self.splits)
        self.launched = launch(self.text, grid, arguments, shared=self.compiled.shared, seed=self.seed)
        assert not tickets.any()
        return out


def ragged(head_dim: int = 128, dtype: torch.dtype = torch.bfloat16, **options: Any) -> AttentionCase:
    """Two tiles, an empty sequence, prefixes of one and three splits, NaN behind them, and a group of 7."""
    return make_case([5, 0, 10], [70, 3, 0], [5, 0, 9], heads=(7, 1), size=head_dim, dtype=dtype, **options)

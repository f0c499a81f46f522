"""Masked models in the layouts of Qwen2 (biases on Q, K and V) and Qwen3 (norms on Q and K, heads of any size).

``a2d-qwen2`` and ``a2d-qwen3`` are the small models of the dllm project (Tiny-A2D): attention in both directions,
logits where they belong. For ``qwen2`` and ``qwen3`` see `llama`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsp.models.config import Family, ModelConfig
from lsp.models.keys import Keys
from lsp.models.llama import TENSORS, read_layout


def read_qwen2(public: Mapping[str, Any]) -> ModelConfig:
    return read_layout(Keys(public), max_length=32768, head_dim=None, qkv_bias=True)


def read_qwen3(public: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(public)
    keys.only("attention_bias", False, None, absent=False)
    return read_layout(keys, max_length=32768, head_dim=128, qk_norm=True)


QWEN2 = Family("qwen2", read_qwen2, TENSORS, says_shifted=False)
QWEN3 = Family("qwen3", read_qwen3, TENSORS, says_shifted=False)
A2D_QWEN2 = Family("a2d-qwen2", read_qwen2, TENSORS)
A2D_QWEN3 = Family("a2d-qwen3", read_qwen3, TENSORS)

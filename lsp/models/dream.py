"""Dream-7B (``model_type: Dream``): the layout of Qwen2.5, grouped K/V heads, biases on Q, K and V, shifted logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lsp.models.config import Family, ModelConfig
from lsp.models.llama import TENSORS
from lsp.models.qwen import read_qwen2


def read(public: Mapping[str, Any]) -> ModelConfig:
    return replace(read_qwen2(public), shifted=True)


DREAM = Family("Dream", read, TENSORS)

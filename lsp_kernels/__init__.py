"""Fused operations for diffusion language models that commit the longest stable prefix.

`token_stats` scores positions, `select_prefix` applies the rule, `commit_prefix` does both in one launch.
`linear_token_stats` and `linear_commit_prefix` begin with hidden states, and never hold logits.
`suffix_attention` lets the tokens of a pass see the frozen prefix, whose K/V `PrefixCache` holds contiguously.
`add_norm`, `rotate_` and `silu_mul` are the rest of a transformer's block, beside its products.
`linear` makes products for few rows on a CPU, also with int8 weights (`quantise`).
Triton serves GPUs, C++ serves CPUs, and `lsp_kernels.reference` defines every operation in plain PyTorch. Only torch is
required.
"""

from . import errors, reference
from .attention import suffix_attention, warmup_attention
from .block import add_norm, rotate_, silu_mul, warmup_block
from .cache import PrefixCache
from .commit import commit_prefix, select_prefix, token_stats, warmup_commit
from .commit import warmup as warmup  # deprecated, therefore not in __all__
from .head import linear_commit_prefix, linear_token_stats, warmup_head
from .merge import merge_token_stats
from .noise import Noise
from .product import linear, quantise
from .results import Commit, TokenStats
from .rule import PrefixRule
from .vocabulary import Vocabulary
from .workspace import Workspace

__version__ = "0.1.0"
__all__ = [
    "Commit",
    "Noise",
    "PrefixCache",
    "PrefixRule",
    "TokenStats",
    "Vocabulary",
    "Workspace",
    "add_norm",
    "commit_prefix",
    "errors",
    "linear",
    "linear_commit_prefix",
    "linear_token_stats",
    "merge_token_stats",
    "quantise",
    "reference",
    "rotate_",
    "select_prefix",
    "silu_mul",
    "suffix_attention",
    "token_stats",
    "warmup_attention",
    "warmup_block",
    "warmup_commit",
    "warmup_head",
]

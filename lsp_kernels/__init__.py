"""Fused operations for diffusion language models that commit the longest stable prefix.

`token_stats` scores positions, `select_prefix` applies the rule, `commit_prefix` does both in one launch.
`suffix_attention` lets the tokens of a pass see the frozen prefix, whose K/V `PrefixCache` holds contiguously.
Triton serves GPUs, C++ serves CPUs, plain PyTorch (`lsp_kernels.reference`) is the definition. Needs torch alone.
"""

from lsp_kernels import reference
from lsp_kernels.attention import suffix_attention, warmup_attention
from lsp_kernels.cache import PrefixCache
from lsp_kernels.commit import commit_prefix, select_prefix, token_stats, warmup
from lsp_kernels.rule import PrefixRule
from lsp_kernels.types import Commit, TokenStats, Vocabulary, Workspace

__version__ = "0.1.0"
__all__ = [
    "Commit",
    "PrefixCache",
    "PrefixRule",
    "TokenStats",
    "Vocabulary",
    "Workspace",
    "commit_prefix",
    "reference",
    "select_prefix",
    "suffix_attention",
    "token_stats",
    "warmup",
    "warmup_attention",
]

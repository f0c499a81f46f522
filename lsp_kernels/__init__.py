"""Fused operations for diffusion language models that commit the longest stable prefix.

`token_stats` scores positions, `select_prefix` applies the rule, `commit_prefix` does both in one launch. Triton serves
GPUs, C++ serves CPUs, plain PyTorch (`lsp_kernels.reference`) is the definition. Needs torch alone.
"""

from lsp_kernels import reference
from lsp_kernels.commit import commit_prefix, select_prefix, token_stats, warmup
from lsp_kernels.rule import PrefixRule
from lsp_kernels.types import Commit, TokenStats, Vocabulary, Workspace

__version__ = "0.1.0"
__all__ = [
    "Commit",
    "PrefixRule",
    "TokenStats",
    "Vocabulary",
    "Workspace",
    "commit_prefix",
    "reference",
    "select_prefix",
    "token_stats",
    "warmup",
]

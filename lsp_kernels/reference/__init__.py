"""The definition of every operation, in plain PyTorch on any device. The other backends are compared with it."""

from .attention import suffix_attention
from .commit import commit_prefix, select_prefix, token_stats
from .head import linear_commit_prefix, linear_token_stats

__all__ = [
    "commit_prefix",
    "linear_commit_prefix",
    "linear_token_stats",
    "select_prefix",
    "suffix_attention",
    "token_stats",
]

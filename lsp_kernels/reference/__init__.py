"""The definition of every operation, in plain PyTorch on any device. The other backends are compared with it."""

from .attention import suffix_attention
from .block import add_norm, rotate_, silu_mul
from .commit import commit_prefix, select_prefix, token_stats
from .head import linear_commit_prefix, linear_token_stats
from .product import linear

__all__ = [
    "add_norm",
    "commit_prefix",
    "linear",
    "linear_commit_prefix",
    "linear_token_stats",
    "rotate_",
    "select_prefix",
    "silu_mul",
    "suffix_attention",
    "token_stats",
]

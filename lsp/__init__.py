"""Decoding of diffusion language models by the longest stable prefix, on the operations of `lsp_kernels`.

`generate` and `stream` decode, with any of the schedulers in `lsp.schedulers`; `decode` is the loop under both.
`load` brings a public checkpoint (LLaDA, Dream, Tiny-A2D, …) onto the contiguous prefix cache, `adapt` any other model,
uncached.
`trace` shows what every pass did. `lsp.tokens` finds delimiters, stops and masks in a tokenizer.
"""

from typing import Any

from lsp import extras as extras  # first: it names what is not installed
from lsp import models, schedulers, tokens
from lsp.decoding import Custom, DecodingError, Options, Scheduler, decode
from lsp.generation import Fill, Generation, generate, stream
from lsp.models import adapt, load, load_tokenizer, register, save_pretrained
from lsp.schedulers import (
    AdaBlock,
    EntropyBound,
    Factor,
    FixedPrefix,
    Frechet,
    Full,
    Klass,
    Less,
    LocalLeap,
    LongestStablePrefix,
    Prophet,
    ScatteredMargin,
    SchED,
    SlidingBlock,
    Threshold,
    TopK,
)
from lsp.tracing import Trace, trace
from lsp_kernels.errors import deprecated

__all__ = [
    "AdaBlock",
    "Custom",
    "DecodingError",
    "EntropyBound",
    "Factor",
    "Fill",
    "FixedPrefix",
    "Frechet",
    "Full",
    "Generation",
    "Klass",
    "Less",
    "LocalLeap",
    "LongestStablePrefix",
    "Options",
    "Prophet",
    "ScatteredMargin",
    "SchED",
    "Scheduler",
    "SlidingBlock",
    "Threshold",
    "TopK",
    "Trace",
    "adapt",
    "decode",
    "generate",
    "load",
    "load_tokenizer",
    "models",
    "register",
    "save_pretrained",
    "schedulers",
    "stream",
    "tokens",
    "trace",
]

MOVED_TO_TOKENS = ("delimiter_ids", "mask_id", "stop_ids", "vocabulary")


def __getattr__(name: str) -> Any:
    if name in MOVED_TO_TOKENS:
        deprecated(f"lsp.{name}", f"lsp.tokens.{name}")
        return getattr(tokens, name)
    raise AttributeError(f"module 'lsp' has no attribute {name!r}")

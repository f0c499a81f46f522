"""Decoding of diffusion language models by the longest stable prefix, on the operations of `lsp_kernels`.

`generate` and `stream` decode, with any of the schedulers in `lsp.schedulers`.
`load` brings a public LLaDA or Dream checkpoint onto the contiguous prefix cache, `adapt` any other model, uncached.
`vocabulary` finds out from a tokenizer which tokens are delimiters, stops and masks. `import lsp` needs torch alone.
"""

from lsp import models, schedulers
from lsp.adapt import adapt
from lsp.decode import DecodingError, Options, decode
from lsp.delimiters import delimiter_ids, mask_id, stop_ids, vocabulary
from lsp.generate import Generation, generate, stream
from lsp.models import load, load_tokenizer, register, save_pretrained
from lsp.schedulers import (
    Factor,
    FixedPrefix,
    Full,
    LongestStablePrefix,
    Prophet,
    ScatteredMargin,
    Threshold,
    TopK,
)
from lsp.trace import Trace, trace

__all__ = [
    "DecodingError",
    "Factor",
    "FixedPrefix",
    "Full",
    "Generation",
    "LongestStablePrefix",
    "Options",
    "Prophet",
    "ScatteredMargin",
    "Threshold",
    "TopK",
    "Trace",
    "adapt",
    "decode",
    "delimiter_ids",
    "generate",
    "load",
    "load_tokenizer",
    "mask_id",
    "models",
    "register",
    "save_pretrained",
    "schedulers",
    "stop_ids",
    "stream",
    "trace",
    "vocabulary",
]

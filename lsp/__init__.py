"""Decoding of diffusion language models by the longest stable prefix, on the operations of `lsp_kernels`.

`load` brings a public LLaDA or Dream checkpoint onto the contiguous prefix cache, `adapt` any other model, uncached.
`vocabulary` finds out from a tokenizer which tokens are delimiters, stops and masks. `import lsp` needs torch alone.
"""

from lsp import models
from lsp.adapt import adapt
from lsp.delimiters import delimiter_ids, mask_id, stop_ids, vocabulary
from lsp.models import load, load_tokenizer, register, save_pretrained

__all__ = [
    "adapt",
    "delimiter_ids",
    "load",
    "load_tokenizer",
    "mask_id",
    "models",
    "register",
    "save_pretrained",
    "stop_ids",
    "vocabulary",
]

"""Decoding of diffusion language models by the longest stable prefix, on the operations of `lsp_kernels`."""

from lsp import models
from lsp.models import load, load_tokenizer, save_pretrained

__all__ = ["load", "load_tokenizer", "models", "save_pretrained"]

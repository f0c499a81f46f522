"""Models for the decoding loop: one packed transformer for public checkpoints, and any other model by `adapt`."""

from lsp.models.adapted import adapt
from lsp.models.config import ModelConfig
from lsp.models.head import Head
from lsp.models.loading import load, load_tokenizer, register, save_pretrained
from lsp.models.protocol import LmHead, Model
from lsp.models.transformer import Transformer

__all__ = [
    "Head",
    "LmHead",
    "Model",
    "ModelConfig",
    "Transformer",
    "adapt",
    "load",
    "load_tokenizer",
    "register",
    "save_pretrained",
]

"""One packed transformer for LLaDA-8B, LLaDA-1.5 and Dream-7B, from their public checkpoints."""

from lsp.models.config import ModelConfig
from lsp.models.head import Head
from lsp.models.load import load, load_tokenizer, register, save_pretrained
from lsp.models.protocol import Model
from lsp.models.transformer import Transformer

__all__ = ["Head", "Model", "ModelConfig", "Transformer", "load", "load_tokenizer", "register", "save_pretrained"]

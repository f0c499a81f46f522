"""A small masked-diffusion language model that solves four kinds of problems.

The tasks, the tokenizer, the model, its training and its evaluation are all here and need torch,
`tokenizers` and `safetensors` only. The trained checkpoint is part of the package, in the public
LLaDA format, so that it loads through the same code as an 8B model.
"""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"

__all__ = ["CHECKPOINT"]

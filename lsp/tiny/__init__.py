"""A small masked-diffusion language model that solves a few kinds of problems.

The tasks, the tokenizer, the model, its training and its evaluation are all here and need torch,
`tokenizers` and `safetensors` only. The trained checkpoint is part of the package, in the public
LLaDA format, so that it loads through the same code as an 8B model.
"""

import json
from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"

__all__ = ["CHECKPOINT", "known_tasks"]


def known_tasks() -> tuple[str, ...]:
    """The tasks that the checkpoint was trained for: those it has scores of."""
    return tuple(json.loads((CHECKPOINT / "scores.json").read_text("utf-8")))

"""What several benchmarks share: dtypes, arguments of the commit operations, the softmax of others, random models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.sizes import sized
from lsp.models import Transformer
from lsp.models.loading import read_config
from lsp_kernels import PrefixRule, Vocabulary

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
RULE = PrefixRule()
COMPILER = sized("inductor", tiny="eager")  # of torch.compile; inductor takes seconds per kernel


def vocabulary_of(size: int, suppressed: int = 0) -> Vocabulary:
    hidden = range(0, size, size // suppressed) if suppressed else ()
    return Vocabulary(size, delimiters=range(0, size, 50), stops=[1], suppress=list(hidden)[:suppressed])


def all_scored(rows: int) -> Tensor:
    """N of a sequence whose scored rows are exactly the rows given."""
    n = max(2 * (rows - 1), 1)
    assert RULE.scored_rows(n) == rows
    return torch.tensor([n], dtype=torch.int32)


def softmax_confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """LLaDA and Fast-dLLM: the best tokens and their probabilities, by a softmax in float64."""
    tokens = logits.argmax(-1)
    return tokens, torch.softmax(logits.to(torch.float64), dim=-1).gather(-1, tokens[..., None]).squeeze(-1)


def compiled(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
    """A call of a definition as torch.compile has it. It has run once, so that nobody times how it is compiled."""
    torch.compiler.reset()  # or it would give up after so many shapes
    fast = torch.compile(function, backend=COMPILER, dynamic=False)
    fast(*arguments, **options)
    return lambda: fast(*arguments, **options)


def random_model(vocab_size: int, d_model: int, n_layers: int, n_heads: int, mlp_size: int) -> Transformer:
    """LLaDA's architecture and public format with random weights, so large that masks predict different tokens."""
    public = {
        "model_type": "llada", "vocab_size": vocab_size, "d_model": d_model, "n_layers": n_layers, "n_heads": n_heads,
        "mlp_hidden_size": mlp_size, "max_sequence_length": 8192, "rope_theta": 5e5, "weight_tying": False,
        "mask_token_id": 0, "eos_token_id": 1, "block_type": "llama", "activation_type": "silu",
        "layer_norm_type": "rms", "rope": True, "embedding_size": vocab_size,
    }  # fmt: skip
    model = Transformer(read_config(public))
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=2.8 * d_model**-0.5)
    return model.requires_grad_(False).eval()

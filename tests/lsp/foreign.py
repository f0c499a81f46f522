"""Somebody else's model, and the longest stable prefix from its definition, for the tests of `lsp.integrations`.

Nothing here is shared with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from lsp_kernels import PrefixRule
from tests import oracle

SIZE, MASK, STOP = 60, 59, 58
GUARDED = PrefixRule.guarded()
REFUSED = {
    "noise": ("temperature", 0.5, "Invalid temperature: expected 0, as decoding is greedy, got 0.5"),
    "random": ("remasking", "random", "Invalid remasking: expected 'low_confidence', got 'random'"),
}


class Masked(nn.Module):
    """Somebody's masked language model: attention in both directions, a config, a device, an output with logits."""

    def __init__(self, seed: int = 0, width: int = 32, sharp: float = 3.0, config: bool = True) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        weights = {"ids": (SIZE, width), "places": (64, width), "q": (width, width), "k": (width, width)}
        for name, shape in {**weights, "v": (width, width), "head": (width, SIZE)}.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=g) * 0.4))
        self.sharp, self.passes, self.device = sharp, 0, torch.device("cpu")
        if config:
            self.config = SimpleNamespace(vocab_size=SIZE, mask_token_id=MASK, eos_token_id=STOP)

    def forward(self, input_ids: Tensor, attention_mask: object = None, tok_idx: object = None) -> SimpleNamespace:
        self.passes += 1
        h = self.ids[input_ids] + 3 * self.places[: input_ids.size(1)]
        mixed = ((h @ self.q) @ (h @ self.k).mT / 8).softmax(-1) @ h @ self.v
        logits = (torch.tanh(h + mixed) @ self.head) * self.sharp
        logits[..., MASK] = -1e4  # a trained model never predicts the mask
        return SimpleNamespace(logits=logits)


def prompt_of(batch: int = 1, length: int = 6, seed: int = 0) -> Tensor:
    return torch.randint(0, STOP, (batch, length), generator=torch.Generator().manual_seed(seed))


def canvas_of(prompt: Tensor, masks: int) -> Tensor:
    return torch.cat([prompt, torch.full((len(prompt), masks), MASK)], dim=1)


def probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best tokens and their float64 confidence."""
    p = torch.softmax(logits.to(torch.float64), dim=-1)
    tokens = torch.argmax(logits, dim=-1)
    return tokens, torch.gather(p, -1, tokens[..., None]).squeeze(-1)


def prefix_loop(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    rule: PrefixRule,
    delimiters: set[int] = frozenset(),
    stops: set[int] = frozenset(),
    block: int | None = None,
    start: int = 0,
    steps: int = 10**6,
) -> tuple[Tensor, int]:
    """Decodes one row by the oracle; margins are logarithms of ratios of float64 probabilities."""
    x, passes = x.clone(), 0
    while (masks := torch.nonzero(x == MASK)[:, 0].tolist()) and passes < steps:
        passes += 1
        logits = model(x[None])[0]
        if block is not None:
            masks = [m for m in masks if m < start + ((masks[0] - start) // block + 1) * block]
        top = torch.softmax(logits[masks].double(), -1).topk(2).values.log()
        tokens = logits[masks].argmax(-1).tolist()
        length, finished = oracle.select((top[:, 0] - top[:, 1]).tolist(), tokens, rule, delimiters, stops)
        if passes == steps:
            length = len(masks)
        x[masks[:length]] = torch.tensor(tokens[:length])
        if finished:
            x[x == MASK] = tokens[length - 1]
    return x, passes

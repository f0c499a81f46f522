"""How likely a masked diffusion model finds a continuation, by LLaDA's published estimate.

A draw masks some tokens of the continuation, and the model predicts them from all others. The cross-entropy of the
masked tokens, divided by the share of masked tokens, bounds the negative log-likelihood on average over draws. The
numbers of masks are stratified: a random one, and from there on in equal steps around the length.

The draws of a pair depend on the pair and on the seed alone, never on what else is scored, so results do not depend on
the order or on the batch. A draw that comes more than once is computed once.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lsp.decoding.canvas import check_prompts
from lsp.generation import Generation, generate
from lsp.models.protocol import Model
from lsp_kernels.errors import as_integer

MC_NUM = 128
"""How many draws LLaDA makes."""

ROWS_AT_ONCE = 256
"""How many rows of logits exist at a time: one row of LLaDA's vocabulary is half a megabyte."""

Pair = tuple[Sequence[int], Sequence[int]]
"""The ids of a context and of its continuation."""


class Likelihood(NamedTuple):
    """An estimate, and what it cost.

    Attributes
    ----------
    value : float
        The estimated log-likelihood of the continuation: 0 for an empty one.
    passes : int
        How many times the model went over the pair, once for each different draw.
    positions : int
        How many token positions went through the model in all these passes.
    """

    value: float
    passes: int
    positions: int


class Draw(NamedTuple):
    """One masked copy of a pair: where its masks are, and the weight of their cross-entropy in the estimate."""

    number: int
    tokens: np.ndarray
    masked: np.ndarray
    weight: float


def log_likelihoods(
    model: Model,
    pairs: Sequence[Pair],
    *,
    mc_num: int = MC_NUM,
    seed: int = 0,
    batch_size: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[Likelihood]:
    """Estimates the log-likelihood of each continuation after its context.

    Parameters
    ----------
    model
        From `lsp.load` or `lsp.adapt`.
    pairs : sequence of (context, continuation)
        Token ids. A context may be empty, unless the logits of the model are shifted.
    mc_num : int
        Draws per pair.
    seed : int
    batch_size : int
        How many draws go through the model in one pass.
    progress : callable, optional
        Is told after every pass which pair it has come to.

    Examples
    --------
    >>> import lsp
    >>> model, tokenizer = lsp.load("tiny"), lsp.load_tokenizer("tiny")
    >>> context = tokenizer("Use 3, 5 and 7 to make 15.\\n")["input_ids"]
    >>> right, wrong = log_likelihoods(model, [(context, tokenizer(text)["input_ids"]) for text in ("First 7", "True")])
    >>> right.value > wrong.value, wrong.passes, wrong.positions == len(context) + 1
    (True, 1, True)
    """
    as_integer("mc_num", mc_num, 1)
    as_integer("batch_size", batch_size, 1)
    mask = check_prompts([[*context, *continuation] for context, continuation in pairs], 0, model.config, holes=False)
    if model.config.shifted and not all(len(context) for context, _ in pairs):
        raise ValueError("Invalid context: expected at least one token, as the model's logits are shifted, got none")
    totals = [[0.0, 0, 0] for _ in pairs]
    draws = (draw for number, pair in enumerate(pairs) for draw in _draws(number, pair, mask, mc_num, seed))
    while batch := list(islice(draws, batch_size)):
        for draw, loss in zip(batch, _losses(model, batch, pairs), strict=True):
            total = totals[draw.number]
            total[0] -= draw.weight * loss
            total[1] += 1
            total[2] += len(draw.tokens)
        if progress is not None:
            progress(batch[-1].number)
    return [Likelihood(value, int(passes), int(positions)) for value, passes, positions in totals]


def decode_exactly(model: Model, pairs: Sequence[Pair], **arguments: Any) -> list[Generation]:
    """As many tokens after each context as its continuation has, each pass committing the most confident one.

    Every pass computes everything, and stops are tokens like any other. `arguments` are those of `lsp.generate`.
    """
    lengths: dict[int, list[int]] = defaultdict(list)
    for number, (_, continuation) in enumerate(pairs):
        lengths[len(continuation)].append(number)
    out: dict[int, Generation] = {}
    for length, numbers in lengths.items():
        exact: dict[str, Any] = {"scheduler": "full", "cache": "none", "stop_early": False, "max_new_tokens": length}
        contexts = [list(pairs[number][0]) for number in numbers]
        out |= dict(zip(numbers, generate(model, contexts, **exact, **arguments), strict=True))
    return [out[number] for number in range(len(pairs))]


def draw_masks(length: int, count: int, rng: random.Random) -> np.ndarray:
    """Which of `length` tokens each of `count` draws masks, as booleans [count, length]."""
    first = rng.randint(1, length)
    out = np.zeros((count, length), dtype=bool)
    for i, row in enumerate(out):
        masks = (round(first + i * length / count) - 1) % length + 1
        row[rng.sample(range(length), masks)] = True
    return out


def seed_of(*content: object) -> int:
    """A number that depends on this content alone, on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(json.dumps(content).encode()).digest()[:8], "big") >> 1


def _draws(number: int, pair: Pair, mask: int, mc_num: int, seed: int) -> Iterator[Draw]:
    """The different draws of a pair; one that comes k times of `mc_num` has k times the weight."""
    context, continuation = ([int(token) for token in ids] for ids in pair)
    if not continuation:
        return
    rng = random.Random(seed_of(seed, context, continuation))
    patterns, times = np.unique(draw_masks(len(continuation), mc_num, rng), axis=0, return_counts=True)
    for pattern, k in zip(patterns, times.tolist(), strict=True):
        masked = len(context) + np.flatnonzero(pattern)
        tokens = np.array([*context, *continuation], dtype=np.int64)
        tokens[masked] = mask
        yield Draw(number, tokens, masked, k / mc_num * len(continuation) / len(masked))


def _losses(model: Model, draws: Sequence[Draw], pairs: Sequence[Pair]) -> list[float]:
    """The cross-entropy of the masked tokens of each draw, summed; all draws in one packed pass."""
    borders = np.cumsum([0, *(len(draw.tokens) for draw in draws)])
    rows = np.concatenate([begin + draw.masked for begin, draw in zip(borders, draws, strict=False)])
    truth = np.concatenate([_truth(draw, *pairs[draw.number]) for draw in draws])
    packed = np.concatenate([draw.tokens for draw in draws])
    places = np.concatenate([np.arange(len(draw.tokens)) for draw in draws])
    tokens, positions = torch.from_numpy(np.stack([packed, places])).to(model.device)
    hidden = model(tokens, positions, torch.from_numpy(borders.astype(np.int32)).to(model.device))
    chosen = torch.from_numpy(rows - model.config.shifted).to(model.device)
    losses = _cross_entropy(model, hidden, chosen, torch.from_numpy(truth).to(model.device)).tolist()
    ends = np.cumsum([0, *(len(draw.masked) for draw in draws)]).tolist()
    return [sum(losses[begin:end]) for begin, end in pairwise(ends)]


def _truth(draw: Draw, context: Sequence[int], continuation: Sequence[int]) -> np.ndarray:
    """What the masks of a draw stand for."""
    out: np.ndarray = np.array(continuation, dtype=np.int64)[draw.masked - len(context)]
    return out


@torch.no_grad()
def _cross_entropy(model: Model, hidden: Tensor, rows: Tensor, truth: Tensor) -> Tensor:
    """The cross-entropy of every row, in float32 or better."""
    out = []
    for chosen, tokens in zip(rows.split(ROWS_AT_ONCE), truth.split(ROWS_AT_ONCE), strict=True):
        head = model.lm_head
        logits = F.linear(hidden[chosen], head) if isinstance(head, Tensor) else head(hidden[chosen])
        exact = torch.promote_types(logits.dtype, torch.float32)
        out.append(F.cross_entropy(logits.to(exact), tokens, reduction="none"))
    return torch.cat(out)


__all__ = ["MC_NUM", "Likelihood", "decode_exactly", "log_likelihoods"]

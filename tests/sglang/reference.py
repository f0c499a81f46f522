"""What an engine has to answer: blocks decoded one after the other, without a batch and without a cache.

The rule is written once more, in plain Python on the margins of one block, for a rule with a floor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from tests.sglang.checkpoint import MASK

CLOSE = 1e-4  # what float32 may round differently in another order


class Model(Protocol):
    """From whole blocks of ids to the logits of the last one."""

    block_size: int

    def __call__(self, ids: list[int]) -> Tensor: ...


class AmbiguousError(Exception):
    """A margin so close to a bound that rounding decides; take another seed."""


@dataclass
class Answer:
    tokens: list[int]
    passes: int = 0
    runs: list[int] = field(default_factory=list)  # how many tokens were final after each pass
    islands: int = 0  # passes that committed behind an open mask


def scores(logits: Tensor, mask: int) -> tuple[list[int], list[float]]:
    """The best token of each row that is not the mask, and how far its logit is above the next; spoils the logits."""
    logits[:, mask] = -float("inf")
    best, tokens = logits.max(-1)
    logits[range(len(tokens)), tokens] = -float("inf")
    return tokens.tolist(), (best - logits.max(-1).values).tolist()


def reaches(margin: float, bound: float) -> bool:
    if abs(margin - bound) < CLOSE:
        raise AmbiguousError
    return margin >= bound


def chosen(masks: list[int], tokens: list[int], margins: list[float], floor: float, stops: set[int]) -> list[int]:
    """The positions of a block to commit; a stop ends the run, and one that is sure is committed anyway."""
    if any(margins[p] < CLOSE for p in masks):
        raise AmbiguousError
    sure = [p for p in masks if reaches(margins[p], floor)]
    if masks[0] in sure:
        run = [masks[0]]
        for p in masks[1:]:
            if p not in sure or tokens[run[-1]] in stops:
                break
            run.append(p)
    else:
        run = sure or masks[:1]
    return sorted({*run, *(p for p in sure if tokens[p] in stops)})


def decode(
    model: Model,
    prompt: list[int],
    new: int,
    floor: float,
    stops: set[int],
    ends: set[int] = frozenset(),
    mask: int = MASK,
) -> Answer:
    """At least `new` tokens or up to one of `ends`, cut to them."""
    ids, size = list(prompt), model.block_size
    answer = Answer([])
    while True:
        start = len(ids) // size * size
        block = ids[start:] + [mask] * (size - len(ids) + start)
        given = len(ids) - start
        while masks := [p for p in range(given, size) if block[p] == mask]:
            tokens, margins = scores(model(ids[:start] + block), mask)
            where = chosen(masks, tokens, margins, floor, stops)
            answer.passes += 1
            answer.islands += where != masks[: len(where)]
            for p in where:
                block[p] = tokens[p]
            if ended := [p for p in where if tokens[p] in stops]:
                block = [block[p] if p <= ended[0] or block[p] != mask else block[ended[0]] for p in range(size)]
            final = next((p for p in range(given, size) if block[p] == mask), size)
            answer.runs.append(min(new, start + final - len(prompt)))
        answer.passes += 1  # the pass that writes the K/V of the tokens
        ids = ids[:start] + block
        found = ids[len(prompt) :]
        end = next((i + 1 for i, token in enumerate(found) if token in ends), None)
        if end is not None or len(found) >= new:
            answer.tokens = found[: min(new, end or new)]
            return answer

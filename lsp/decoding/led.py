"""Decoding by several ranks that hold one model together: rank 0 chooses, and the others follow.

The scheduler runs on rank 0 alone, so ranks cannot disagree, whatever it goes by. The others hear what it asks, compute
their share of the answer, and commit what it has chosen.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lsp.decoding.scheduler import Chosen
from lsp.decoding.step import Ask, Step
from lsp.ranks import RankError, Ranks
from lsp_kernels import Vocabulary


class Choice(NamedTuple):
    """What rank 0 has chosen in a step, and whether the step cannot be used."""

    chosen: list[Chosen]
    broken: tuple[int, str] | None


class Failure(NamedTuple):
    """The scheduler raised on rank 0."""

    what: str


class Led:
    """A scheduler for the loop of every rank: it calls the given one on rank 0 alone."""

    def __init__(self, scheduler: Callable[[Step], list[Chosen]], ranks: Ranks) -> None:
        self.scheduler, self.ranks = scheduler, ranks

    def __call__(self, step: Step) -> list[Chosen]:
        return self._lead(step) if self.ranks.rank == 0 else self._follow(step)

    def _lead(self, step: Step) -> list[Chosen]:
        step.announce = self.ranks.tell
        try:
            chosen = self.scheduler(step)
            self.ranks.tell(Choice(chosen, step.broken))
        except RankError:  # nobody can be told
            raise
        except Exception as error:
            with suppress(RankError):  # they may have failed in the same way
                self.ranks.tell(Failure(f"{type(error).__name__}: {error}"))
            raise
        return chosen

    def _follow(self, step: Step) -> list[Chosen]:
        while isinstance(heard := self.ranks.hear(), Ask):
            step.ask(heard)
        if isinstance(heard, Failure):
            raise RuntimeError(f"rank 0 has ended decoding: {heard.what}")
        step.broken = heard.broken  # rank 0 may have asked for more than it goes by
        chosen: list[Chosen] = heard.chosen
        return chosen


def check_arguments(
    ranks: Ranks, prompts: Sequence[Sequence[int]], vocabulary: Vocabulary, seeds: Sequence[int], **others: Any
) -> None:
    """Raises on every rank if they were called with different arguments: their passes would not fit together."""
    ids = [[int(token) for token in prompt] for prompt in prompts]
    tables = vocabulary.flags.cpu().numpy().tobytes()
    given = {"prompts": ids, "vocabulary": tables, "seeds": list(seeds), **others}
    ranks.check_same(**{name: hashlib.sha256(pickle.dumps(value)).digest() for name, value in given.items()})

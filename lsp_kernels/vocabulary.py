"""What the operations know of a tokenizer: delimiters, stops and suppressed ids."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch

from .errors import as_integer, check_kind
from .rule import DELIMITER, SPAN, STOP, SUPPRESSED, SUPPRESSED_NEAR, PrefixRule


class Vocabulary:
    """Which ids end a clause, which end the text, and which may never be chosen, as tables on one device.

    Parameters
    ----------
    size : int
        The number of ids, V.
    delimiters : iterable of int
        Ids that end a clause, at which a rule with ``snap`` may end.
    stops : iterable of int
        Ids that end the text.
    suppress : iterable of int
        Ids that are never chosen. An id may be in more than one of the three.
    device : torch.device or str
        The device of the tables; `to` makes a copy on another one.

    Attributes
    ----------
    flags : Tensor, uint8 [V]
        A sum of bits per id: 1 for a delimiter, 2 for a stop, 4 for a suppressed id, 8 if any id of its span of 16384
        is suppressed.
    suppressed : Tensor, int32, or None
        The suppressed ids, sorted.
    lowest : int
        The lowest id that is not suppressed, which is chosen where no logit is larger than -inf.

    Examples
    --------
    >>> Vocabulary(10, delimiters=[3, 4], stops=[9], suppress=[0])
    Vocabulary(size=10, delimiters=2, stops=1, suppressed=1, device='cpu')
    """

    def __init__(
        self,
        size: int,
        delimiters: Iterable[int] = (),
        stops: Iterable[int] = (),
        suppress: Iterable[int] = (),
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = size = as_integer("size", size, 1)
        marked = _ids("delimiters", delimiters, size)
        final = _ids("stops", stops, size)
        hidden = _ids("suppress", suppress, size)
        if len(hidden) == size:
            raise ValueError(f"Invalid suppress: expected at least one of {size} ids to remain, got all of them")
        flags = torch.zeros(size, dtype=torch.uint8)
        flags[marked] |= DELIMITER
        flags[final] |= STOP
        flags[hidden] |= SUPPRESSED
        for span in {i // SPAN for i in hidden}:
            flags[span * SPAN : (span + 1) * SPAN] |= SUPPRESSED_NEAR
        self.flags = flags.to(device)
        self.suppressed = torch.tensor(hidden, dtype=torch.int32, device=device) if hidden else None
        self.lowest = next(i for i in range(size) if i >= len(hidden) or hidden[i] != i)
        self.has_delimiters = bool(marked)
        self._counts = f"delimiters={len(marked)}, stops={len(final)}, suppressed={len(hidden)}"

    @property
    def device(self) -> torch.device:
        return self.flags.device

    @property
    def tables(self) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        """Flags, suppressed ids and the lowest allowed id, as the operators take them."""
        return self.flags, self.suppressed, self.lowest

    def to(self, device: torch.device | str) -> Vocabulary:
        """The same vocabulary with its tables on `device`."""
        out = object.__new__(Vocabulary)
        out.__dict__.update(self.__dict__)
        out.flags = self.flags.to(device)
        out.suppressed = None if self.suppressed is None else self.suppressed.to(device)
        return out

    @property
    def stop_ids(self) -> list[int]:
        """The ids that end the text, sorted."""
        return self._having(STOP)

    def suppressing(self, *ids: int) -> Vocabulary:
        """The same vocabulary with these ids suppressed too."""
        delimiters, stops, hidden = map(self._having, (DELIMITER, STOP, SUPPRESSED))
        return Vocabulary(self.size, delimiters, stops, [*hidden, *ids], device=self.device)

    def shard(self, begin: int, end: int) -> Vocabulary | None:
        """The ids from `begin` to `end` - 1 as a vocabulary of their own, numbered from 0; None if all are suppressed.

        For the part of an LM head that one of several processes has: `linear_token_stats` with ``id_offset=begin``.

        >>> Vocabulary(10, delimiters=[3, 8], stops=[9], suppress=[0]).shard(4, 10)
        Vocabulary(size=6, delimiters=1, stops=1, suppressed=0, device='cpu')
        """
        if not 0 <= as_integer("begin", begin, 0) < as_integer("end", end, 1) <= self.size:
            raise ValueError(f"Invalid end: expected {begin} < end <= {self.size}, got {end}")
        kinds = (DELIMITER, STOP, SUPPRESSED)
        marked, final, hidden = ([i - begin for i in self._having(kind) if begin <= i < end] for kind in kinds)
        return (
            None if len(hidden) == end - begin else Vocabulary(end - begin, marked, final, hidden, device=self.device)
        )

    def _having(self, flag: int) -> list[int]:
        out: list[int] = torch.nonzero(self.flags & flag)[:, 0].tolist()
        return out

    def without_stops(self) -> Vocabulary:
        """The same vocabulary without stops: those ids end no text."""
        out = self.to(self.device)
        out.flags = self.flags & ~STOP
        return out

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, {self._counts}, device='{self.device}')"


def check_rule(rule: PrefixRule, vocabulary: Vocabulary | None) -> None:
    """Raises unless `rule` is a `PrefixRule` that can work with this vocabulary: ``snap`` needs delimiters."""
    check_kind("rule", rule, PrefixRule)
    if vocabulary is not None:
        check_kind("vocabulary", vocabulary, Vocabulary)
    if rule.snap and (vocabulary is None or not vocabulary.has_delimiters):
        raise ValueError(
            "Invalid rule: expected a vocabulary with delimiters for snap=True, got none (every pass would commit "
            "min_length); pass PrefixRule(snap=False) or Vocabulary(..., delimiters=...)"
        )


def _ids(name: str, ids: Iterable[int], size: int) -> list[int]:
    try:
        out = sorted({operator.index(i) for i in ids})
    except TypeError:
        raise TypeError(f"Invalid {name}: expected an iterable of integers, got {ids!r}") from None
    if out and not 0 <= out[0] <= out[-1] < size:
        wrong = out[0] if out[0] < 0 else out[-1]
        raise ValueError(f"Invalid {name}: expected ids from 0 to {size - 1}, got {wrong}")
    return out

"""What goes into the operations and what comes out of them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from lsp_kernels.rule import DELIMITER, SPAN, STOP, SUPPRESSED, SUPPRESSED_NEAR, as_integer


class TokenStats(NamedTuple):
    """The best token of every row, and how sure the model is of it. All have the shape of the logits without V.

    Attributes
    ----------
    tokens : Tensor, int64
        The lowest id that has the largest logit.
    top1, top2 : Tensor, float32
        The two largest logits. ``top2`` is NaN where the row holds a NaN.
    rest : Tensor, float32
        log of the sum of exp(z_j - top1) over the other ids: at least -80, or -inf where there is no other id. Rank by
        ``-rest``, which keeps the order that a float32 probability loses near 1.
    """

    tokens: Tensor
    top1: Tensor
    top2: Tensor
    rest: Tensor

    @property
    def margins(self) -> Tensor:
        """top1 - top2, and 0 where they are equal (also where both are infinite)."""
        return torch.where(self.top1 == self.top2, 0.0, self.top1 - self.top2)

    @property
    def confidence(self) -> Tensor:
        """The probability of the best token."""
        return torch.sigmoid(-self.rest)


class Commit(NamedTuple):
    """What a step commits.

    Attributes
    ----------
    lengths : Tensor, int32 [B]
        How many of the masked positions are committed; 0 where a scored row holds a NaN.
    finished : Tensor, bool [B]
        Whether the committed tokens end with a stop.
    tokens : Tensor, int64
        The best token of every scored row, else -1. Shape of the logits without V.
    margins : Tensor, float32
        Its margin, else -inf.
    """

    lengths: Tensor
    finished: Tensor
    tokens: Tensor
    margins: Tensor


class Workspace:
    """Memory that the programs of one launch share on a GPU. Hold one per stream and pass it to every call.

    Without one, each call allocates its own, which costs a memset. It grows when it must, resets itself, and serves
    calls of any shape, one after the other on one stream. CPU tensors need none and ignore it.

    Examples
    --------
    >>> workspace = Workspace()
    >>> workspace
    Workspace(partials=0, tickets=0, device=None)
    """

    def __init__(self) -> None:
        self.partials: Tensor | None = None
        self.tickets: Tensor | None = None
        self.stream: int | None = None
        self.captured: list[Tensor] = []  # what a CUDA graph may still use

    def reserve(self, device: torch.device, partials: int, tickets: int) -> tuple[Tensor, Tensor]:
        """Room for this many partials and tickets, on the current stream of `device`."""
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        if self.partials is None or self.tickets is None:
            self.stream = stream
        elif self.partials.device != device:
            raise ValueError(f"Invalid workspace: expected one on {device}, got one on {self.partials.device}")
        elif self.stream != stream:
            raise ValueError(
                f"Invalid workspace: expected the stream it was first used on ({self.stream:#x}), got {stream:#x}; "
                "hold one workspace per stream"
            )
        held, counters = self.partials, self.tickets
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if held is None or counters is None or held.numel() < partials or counters.numel() < tickets:
            if capturing:
                raise ValueError(
                    f"Invalid workspace: expected room for {partials} partials and {tickets} tickets before a capture, "
                    f"got {self}; make the same call once on the stream that will capture"
                )
            if held is not None and counters is not None:
                partials, tickets = max(partials, held.numel()), max(tickets, counters.numel())
            held = self.partials = torch.empty(partials, dtype=torch.int32, device=device)
            counters = self.tickets = torch.zeros(tickets, dtype=torch.int32, device=device)
        if capturing and not any(tensor is held for tensor in self.captured):
            self.captured += [held, counters]
        return held, counters

    def __repr__(self) -> str:
        if self.partials is None or self.tickets is None:
            return "Workspace(partials=0, tickets=0, device=None)"
        sizes = f"partials={self.partials.numel()}, tickets={self.tickets.numel()}"
        return f"Workspace({sizes}, device='{self.partials.device}')"


class Vocabulary:
    """Which ids end a clause, which end the text, and which may never be chosen; as tables on one device.

    Parameters
    ----------
    size : int
        The number of ids, V.
    delimiters, stops, suppress : iterable of int
        An id may be in more than one of them.
    device : torch.device or str
        Where the tables are; `to` gives a copy elsewhere.

    Attributes
    ----------
    flags : Tensor, uint8 [V]
        1 for a delimiter, 2 for a stop, 4 for a suppressed id, 8 for one with a suppressed id near it, added.
    suppressed : Tensor, int32, or None
        The suppressed ids, sorted.

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
            raise ValueError(f"Invalid suppress: expected an id of {size} to remain, got all of them")
        flags = torch.zeros(size, dtype=torch.uint8)
        flags[marked] |= DELIMITER
        flags[final] |= STOP
        flags[hidden] |= SUPPRESSED
        for span in {i // SPAN for i in hidden}:
            flags[span * SPAN : (span + 1) * SPAN] |= SUPPRESSED_NEAR
        self.flags = flags.to(device)
        self.suppressed = torch.tensor(hidden, dtype=torch.int32, device=device) if hidden else None
        self.has_delimiters = bool(marked)
        self._counts = f"delimiters={len(marked)}, stops={len(final)}, suppressed={len(hidden)}"

    @property
    def device(self) -> torch.device:
        return self.flags.device

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
        out: list[int] = torch.nonzero(self.flags & STOP)[:, 0].tolist()
        return out

    def suppressing(self, *ids: int) -> Vocabulary:
        """The same vocabulary, in which these ids may not be chosen either."""
        delimiters, stops, hidden = (
            torch.nonzero(self.flags & flag)[:, 0].tolist() for flag in (DELIMITER, STOP, SUPPRESSED)
        )
        return Vocabulary(self.size, delimiters, stops, [*hidden, *ids], device=self.device)

    def without_stops(self) -> Vocabulary:
        """The same vocabulary, in which the stops are ids like any other."""
        out = self.to(self.device)
        out.flags = self.flags & ~STOP
        return out

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, {self._counts}, device='{self.device}')"


def _ids(name: str, ids: Iterable[int], size: int) -> list[int]:
    try:
        out = sorted({operator.index(i) for i in ids})
    except TypeError:
        raise TypeError(f"Invalid {name}: expected an iterable of integers, got {ids!r}") from None
    if out and not 0 <= out[0] <= out[-1] < size:
        wrong = out[0] if out[0] < 0 else out[-1]
        raise ValueError(f"Invalid {name}: expected ids from 0 to {size - 1}, got {wrong}")
    return out

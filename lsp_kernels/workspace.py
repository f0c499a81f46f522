"""Memory that the programs of one GPU launch share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import check_kind
from .triton.configs.device import unknown_architecture


class Room(NamedTuple):
    """What one launch at a time uses: results that its programs leave for each other, and counters that are zero."""

    partials: Tensor
    tickets: Tensor

    def has(self, partials: int, tickets: int) -> bool:
        return self.partials.numel() >= partials and self.tickets.numel() >= tickets


class Workspace:
    """Memory that the programs of one launch share on a GPU. Hold one, and pass it to every call.

    Without one, each call allocates its own, which costs a memset. It grows when a call needs more room, its tickets
    are zero again after every call, and it serves calls of any shape. Every stream has room of its own, and so have
    calls that are captured in CUDA graphs: they share one room, so replay the graphs of a workspace one after the
    other. A capture cannot grow it: make the same call once before, on any stream. Compiled code and calls on CPU
    tensors ignore it.

    Examples
    --------
    >>> workspace = Workspace()
    >>> workspace
    Workspace(partials=0, tickets=0, device=None)
    """

    def __init__(self) -> None:
        self._by_stream: dict[int, Room] = {}
        self._captured: Room | None = None  # for calls that are captured
        self._outgrown: list[Room] = []  # a captured graph may still use them

    def reserve(self, device: torch.device, partials: int, tickets: int) -> Room:
        """At least this many partials and tickets, on the current stream of `device`."""
        for held in self.rooms():
            if held.partials.device != device:
                raise ValueError(f"Invalid workspace: expected one on {device}, got one on {held.partials.device}")
        if is_capturing(device):
            if self._captured is None or not self._captured.has(partials, tickets):
                raise ValueError(
                    f"Invalid workspace: expected room for {partials} partials and {tickets} tickets before a capture, "
                    f"got {self}; make the same call once before the capture"
                )
            return self._captured
        stream = stream_of(device)
        room = self._by_stream.get(stream)
        if room is None or not room.has(partials, tickets):
            room = self._by_stream[stream] = _grown(room, device, partials, tickets)
        if self._captured is None or not self._captured.has(partials, tickets):
            if self._captured is not None:
                self._outgrown.append(self._captured)
            self._captured = _grown(self._captured, device, partials, tickets)
        return room

    def rooms(self) -> Iterator[Room]:
        """All memory that it holds."""
        yield from self._by_stream.values()
        if self._captured is not None:
            yield self._captured
        yield from self._outgrown

    def reset(self) -> None:
        """Makes all tickets zero again, after a launch that was aborted. Waits until the device is idle."""
        for room in self.rooms():
            wait_for(room.tickets.device)
            room.tickets.zero_()
            wait_for(room.tickets.device)

    def __repr__(self) -> str:
        if self._captured is None:  # it is never smaller than the others
            return "Workspace(partials=0, tickets=0, device=None)"
        partials, tickets = self._captured
        return f"Workspace(partials={partials.numel()}, tickets={tickets.numel()}, device='{partials.device}')"


def _grown(old: Room | None, device: torch.device, partials: int, tickets: int) -> Room:
    """Room for this many partials and tickets, and for as many as the old one has."""
    if old is not None:
        partials, tickets = max(partials, old.partials.numel()), max(tickets, old.tickets.numel())
    return Room(
        torch.empty(partials, dtype=torch.int32, device=device), torch.zeros(tickets, dtype=torch.int32, device=device)
    )


def stream_of(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reserve(
    workspace: Workspace | None, device: torch.device, needed: Callable[..., tuple[int, int]], *arguments: Any
) -> tuple[Tensor | None, Tensor | None]:
    """Partials and tickets of the caller's workspace for one launch; None without a workspace or a GPU.

    `needed` gives the numbers of partials and tickets from `arguments`. It is called on a GPU only, and not on one
    whose architecture the kernels do not serve. Compiled code gets none either: what a workspace holds may change
    between two calls of it, so there the operator allocates.
    """
    if workspace is None:
        return None, None
    check_kind("workspace", workspace, Workspace)
    if device.type != "cuda" or torch.compiler.is_compiling() or unknown_architecture(device):
        return None, None
    return workspace.reserve(device, *needed(*arguments))

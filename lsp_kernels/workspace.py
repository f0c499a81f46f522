"""Memory that the programs of one GPU launch share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .errors import check_kind
from .triton.configs.device import unknown_architecture


class Workspace:
    """Memory that the programs of one launch share on a GPU. Hold one per stream and pass it to every call.

    Without one, each call allocates its own, which costs a memset. It grows when a call needs more room, its tickets
    are zero again after every call, and it serves calls of any shape, one after the other on one stream. Calls on CPU
    tensors need none and ignore it.

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
        self.captured: list[Tensor] = []  # kept alive, because a CUDA graph may still use them

    def reserve(self, device: torch.device, partials: int, tickets: int) -> tuple[Tensor, Tensor]:
        """At least this many partials and tickets, on the current stream of `device`."""
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


def reserve(
    workspace: Workspace | None, device: torch.device, needed: Callable[..., tuple[int, int]], *arguments: Any
) -> tuple[Tensor | None, Tensor | None]:
    """Partials and tickets of the caller's workspace for one launch; None without a workspace or a GPU.

    `needed` gives the numbers of partials and tickets from `arguments`. It is called on a GPU only, and not on one
    whose architecture the kernels do not serve.
    """
    if workspace is None:
        return None, None
    check_kind("workspace", workspace, Workspace)
    if device.type != "cuda" or unknown_architecture(device):
        return None, None
    return workspace.reserve(device, *needed(*arguments))

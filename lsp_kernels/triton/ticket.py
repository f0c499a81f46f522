"""How the programs of one launch share results: publish them, take a ticket, and the last one reads them all.

Nobody waits for anybody: a program takes its ticket from an atomic counter, and the program that takes the last one
knows that all others have published. It also sets the counter back to zero for the next launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._checks import check_table


@triton.jit
def publish(WAIT: tl.constexpr):
    """A barrier; after it, stores of all threads of the program can be released to others or read by the program."""
    if WAIT:
        zero = tl.arange(0, 1)
        tl.inline_asm_elementwise("s_waitcnt vmcnt(0)\n v_mov_b32 $0, $1", "=v,v", [zero], tl.int32, False, 1)
    tl.debug_barrier()


def shared_memory(
    partials: Tensor | None, tickets: Tensor | None, n_partials: int, n_tickets: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The caller's partials and tickets, or fresh ones of these sizes if there are none; tickets are zero."""
    if partials is None or tickets is None:
        partials = torch.empty(n_partials, dtype=torch.int32, device=device)
        tickets = torch.zeros(n_tickets, dtype=torch.int32, device=device)
    for name, table in (("partials", partials), ("tickets", tickets)):
        check_table(name, table, torch.int32)
        if table.device != device:
            raise ValueError(f"Invalid device of {name}: expected {device}, got {table.device}")
    if partials.numel() < n_partials or tickets.numel() < n_tickets:
        raise ValueError(
            f"Invalid workspace: expected room for {n_partials} partials and {n_tickets} tickets, "
            f"got {partials.numel()} and {tickets.numel()}"
        )
    return partials, tickets

"""How the programs of one launch hand their results over: publish, take a ticket, and the last one reads them all."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def publish(WAIT: tl.constexpr):
    """A barrier after which the stores of all threads of the program can be released, or read by the program."""
    if WAIT:
        zero = tl.arange(0, 1)
        tl.inline_asm_elementwise("s_waitcnt vmcnt(0)\n v_mov_b32 $0, $1", "=v,v", [zero], tl.int32, False, 1)
    tl.debug_barrier()

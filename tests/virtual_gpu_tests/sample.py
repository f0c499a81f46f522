"""A small kernel of the kind this project ships: the last program done merges the partial results.

Row maxima of a matrix, each row split over several programs. Used to test the emulator, the
interpreter harness and the ordering gates.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from lsp_kernels.triton.aot import Compiled, compile_kernel


@triton.jit
def row_max_kernel(
    x_ptr,
    partial_ptr,
    ticket_ptr,
    out_ptr,
    n,
    stride,
    per,
    splits,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    SEM: tl.constexpr = "acq_rel",
    WAIT: tl.constexpr = False,
):
    i_s, i_r = tl.program_id(0), tl.program_id(1)
    row = x_ptr + i_r.to(tl.int64) * stride
    end = tl.minimum(i_s * per + per, n)
    b_max = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(i_s * per, end, BLOCK):
        o_x = start + tl.arange(0, BLOCK)
        b_x = tl.load(row + o_x, mask=o_x < end, other=float("-inf"))
        b_max = tl.maximum(b_max, b_x.to(tl.float32))
    tl.store(partial_ptr + i_r * splits + i_s, tl.max(b_max, 0))
    if WAIT:  # a barrier of gfx9 does not wait for the stores of other waves
        tl.inline_asm_elementwise(
            "s_waitcnt vmcnt(0)\n v_mov_b32 $0, $1",
            "=v,v",
            [tl.arange(0, BLOCK)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    tl.debug_barrier()
    if tl.atomic_add(ticket_ptr + i_r, 1, sem=SEM, scope="gpu") == splits - 1:
        o_s = tl.arange(0, SPLITS)
        p_part = partial_ptr + i_r * splits + o_s
        b_part = tl.load(p_part, mask=o_s < splits, other=float("-inf"), cache_modifier=".cg")
        tl.store(out_ptr + i_r, tl.max(b_part, 0))
        tl.store(ticket_ptr + i_r, 0)


SIGNATURE = {
    "x_ptr": "*fp32",
    "partial_ptr": "*fp32",
    "ticket_ptr": "*i32",
    "out_ptr": "*fp32",
    "n": "i32",
    "stride": "i32",
    "per": "i32",
    "splits": "i32",
}
CONSTEXPRS = {"BLOCK": 256, "SPLITS": 128, "SEM": "acq_rel", "WAIT": False}
ALIGNED = ("x_ptr", "partial_ptr", "ticket_ptr", "out_ptr", "n", "stride", "per")
NUM_WARPS = 4


def compiled(target: str, aligned: Collection[str] = ALIGNED, **constexprs: object) -> Compiled:
    """`row_max_kernel` for a target. All its tensors are smaller than 2 GB."""
    constants, pointers = CONSTEXPRS | constexprs, [name for name in SIGNATURE if name.endswith("_ptr")]
    options = {"num_warps": NUM_WARPS, "aligned": aligned, "within_2gb": pointers}
    return compile_kernel(row_max_kernel, target, SIGNATURE, constants, **options)


@dataclass
class RowMaxLaunch:
    """Inputs and outputs of one launch of `row_max_kernel`."""

    x: torch.Tensor
    splits: int
    partial: torch.Tensor
    ticket: torch.Tensor
    out: torch.Tensor

    @classmethod
    def make(cls, rows: int = 3, n: int = 1500, splits: int = 5, seed: int = 0) -> RowMaxLaunch:
        x = torch.randn(rows, n, generator=torch.Generator().manual_seed(seed))
        nan = float("nan")
        partial, out = torch.full((rows, splits), nan), torch.full((rows,), nan)
        return cls(x, splits, partial, torch.zeros(rows, dtype=torch.int32), out)

    @property
    def grid(self) -> tuple[int, int]:
        return self.splits, self.x.shape[0]

    @property
    def args(self) -> list:
        """The kernel's run-time arguments."""
        _rows, n = self.x.shape
        per = -(-n // self.splits // 16) * 16
        numbers = [n, self.x.stride(0), per, self.splits]
        return [self.x, self.partial, self.ticket, self.out, *numbers]

    def check(self) -> None:
        assert torch.equal(self.out, self.x.max(1).values)
        assert (self.ticket == 0).all()

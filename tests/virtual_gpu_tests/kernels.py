"""Small Triton kernels that are launched through the JIT."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, bias_ptr, n, stride, factor, BLOCK: tl.constexpr):
    """A row per program, times a factor, plus a bias if there is one."""
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    b = tl.load(x_ptr + row * stride + o, mask=o < n).to(tl.float32) * factor
    if bias_ptr is not None:
        b += tl.load(bias_ptr + o, mask=o < n)
    tl.store(out_ptr + row * n + o, b.to(out_ptr.dtype.element_ty), mask=o < n)


@triton.jit
def sum_kernel(x_ptr, partial_ptr, ticket_ptr, out_ptr, rows, n, BLOCK: tl.constexpr, BARRIER: tl.constexpr):
    """Sums over rows: each program publishes its row, and the last one to finish adds them."""
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    b = tl.load(x_ptr + row * n + o, mask=o < n)
    tl.store(partial_ptr + row * n + o, b, mask=o < n)
    if BARRIER:
        tl.debug_barrier()
    if tl.atomic_add(ticket_ptr, 1, sem="acq_rel", scope="gpu") == rows - 1:
        total = tl.zeros((BLOCK,), tl.float32)
        for i in range(rows):
            total += tl.load(partial_ptr + i * n + o, mask=o < n)
        tl.store(out_ptr + o, total, mask=o < n)
        tl.store(ticket_ptr, 0)


@triton.jit
def transpose_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Through shared memory, of which it needs as much as the matrix has."""
    o = tl.arange(0, N)
    tl.store(out_ptr + o[:, None] * N + o[None, :], tl.trans(tl.load(x_ptr + o[:, None] * N + o[None, :])))

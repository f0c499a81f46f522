"""Operands of matrix instructions in shared memory, laid out by hand from the pictures of the PTX manual."""

from __future__ import annotations

import torch
from torch import Tensor

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
LINES = [128, 64, 32]  # bytes of a swizzled line
COPY_THREADS = 128


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def swizzled(lines: Tensor) -> Tensor:
    """Lines [count, elements] of 16 bits whose pieces of 16 bytes have traded places as the manual draws it: by the
    line's number in lines of 128 bytes, by half of it in 64, by a quarter of it in 32."""
    count, width = lines.shape
    pieces = width // 8
    number = torch.arange(count) * pieces // 8 % pieces
    place = torch.arange(pieces)[None, :] ^ number[:, None]
    out = torch.empty(count, pieces, 8, dtype=lines.dtype)
    out[torch.arange(count)[:, None], place] = lines.view(count, pieces, 8)
    return out.flatten()


def k_major(matrix: Tensor) -> Tensor:
    """A matrix [rows, K] whose rows are one line each."""
    return swizzled(matrix)


def mn_major(matrix: Tensor, line: int) -> Tensor:
    """A matrix [rows, 16]: blocks of as many rows as fit a line, each of 16 lines, one for each k."""
    blocks = matrix.split(line // 2)
    return torch.cat([swizzled(block.T.contiguous()) for block in blocks])


def copied(source: str, offset: int, size: int) -> str:
    """PTX by which 128 threads copy `size` bytes from a pointer to an offset of shared memory."""
    body = f"mad.wide.u32 %rd20, %r0, 16, {source};\nshl.b32 %r50, %r0, 4;\n"
    for start in range(0, size, 16 * COPY_THREADS):
        some = f"setp.lt.u32 %p20, %r0, {(size - start) // 16};\n"
        load = f"@%p20 ld.global.v4.b32 {{%r51, %r52, %r53, %r54}}, [%rd20 + {start}];\n"
        body += some + load + f"@%p20 st.shared.v4.b32 [%r50 + {1024 + offset + start}], {{%r51, %r52, %r53, %r54}};\n"
    return body


def registers(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"

"""Matrix instructions of a warp: mma.sync, ldmatrix and stmatrix.

Products accumulate in float32 in numpy's order; the hardware's own order and rounding are not
published, so results agree to rounding, not bit for bit. wgmma and tcgen05 have their own files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .dtypes import Array, bf16_to_f32, f16_to_f32
from .errors import UnsupportedPtx
from .loadstore import scatter
from .operands import Operands
from .parse import Instruction, Operand, Vector
from .table import Mask, Modifiers, Step, opcode
from .warp import WARP, whole_warps

if TYPE_CHECKING:
    from .cta import Cta

_ROW = 16  # bytes in a row of an 8x8 matrix of 16-bit elements


def _registers(operand: Operand, count: int) -> tuple[Operand, ...]:
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise UnsupportedPtx(f"expected {count} registers")
    return operand.items


def _matrix_rows(cta: Cta, addresses: Array, matrix: int, mask: Mask) -> tuple[Array, Array]:
    """Warps and shared offsets [warps, 8] of a matrix's rows, given by lanes 8m to 8m + 7."""
    warps = np.unique(cta.warps if mask is None else cta.warps[mask])
    lanes = warps[:, None] * WARP + 8 * matrix + np.arange(8)
    offsets = cta.shared.locate(addresses[lanes].reshape(-1), _ROW, "matrix access")
    return warps, offsets.reshape(-1, 8)


@opcode("ldmatrix.sync.aligned.m8n8.x(?P<count>1|2|4)(?P<trans>.trans)?.shared.b16")
def _ldmatrix(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    results, source = instruction.operands
    puts = [operands.target(r, "b32") for r in _registers(results, int(found["count"]))]
    address = operands.address(source)

    def step(cta: Cta, mask: Mask) -> None:
        whole_warps(mask)
        addresses = address(cta)
        for matrix, put in enumerate(puts):
            warps, offsets = _matrix_rows(cta, addresses, matrix, mask)
            if cta.shared_order:
                cta.shared_order.load(np.repeat(warps, 8), offsets.reshape(-1), _ROW)
            values = cta.shared.rows(_ROW)[offsets // _ROW].view(np.uint16)  # [warps, 8, 8]
            if found["trans"]:
                values = np.ascontiguousarray(values.transpose(0, 2, 1))
            out = np.zeros((cta.threads.size // WARP, WARP), np.uint32)
            out[warps] = values.view(np.uint32).reshape(-1, WARP)  # lane 4 * row + column / 2
            put(cta, out.reshape(-1), mask)

    return step


@opcode("stmatrix.sync.aligned.m8n8.x(?P<count>1|2|4)(?P<trans>.trans)?.shared.b16")
def _stmatrix(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    target, values = instruction.operands
    sources = [operands.source(r, "b32") for r in _registers(values, int(found["count"]))]
    address = operands.address(target)

    def step(cta: Cta, mask: Mask) -> None:
        whole_warps(mask)
        addresses = address(cta)
        for matrix, source in enumerate(sources):
            warps, offsets = _matrix_rows(cta, addresses, matrix, mask)
            if cta.shared_order:
                cta.shared_order.store(np.repeat(warps, 8), offsets.reshape(-1), _ROW)
            rows = source(cta).reshape(-1, 8, 4)[warps].view(np.uint16)  # [warps, 8, 8]
            if found["trans"]:
                rows = np.ascontiguousarray(rows.transpose(0, 2, 1))
            scatter(
                cta.shared.rows(_ROW),
                offsets.reshape(-1) // _ROW,
                rows.view(np.uint8).reshape(-1, _ROW),
            )

    return step


@opcode(
    "mma.sync.aligned.m16n8k16.row.col.f32.(?P<type>bf16).bf16.f32",
    "mma.sync.aligned.m16n8k16.row.col.f32.(?P<type>f16).f16.f32",
)
def _mma(instruction: Instruction, found: Modifiers, operands: Operands) -> Step:
    """D[16, 8] = A[16, 16] B[16, 8] + C[16, 8]. Lane 4g + t holds row g and columns 2t, 2t + 1 of
    each 8x8 block of A, C and D, and column g, rows 2t, 2t + 1 of each block of B."""
    d, a, b, c = instruction.operands
    puts = [operands.target(r, "f32") for r in _registers(d, 4)]
    left = [operands.source(r, "b32") for r in _registers(a, 4)]
    right = [operands.source(r, "b32") for r in _registers(b, 2)]
    addend = [operands.source(r, "f32") for r in _registers(c, 4)]
    widen = bf16_to_f32 if found["type"] == "bf16" else f16_to_f32

    def block(values: Array) -> Array:
        return widen(values.view(np.uint16)).reshape(-1, 8, 8)

    def step(cta: Cta, mask: Mask) -> None:
        whole_warps(mask)
        upper_left, lower_left, upper_right, lower_right = (block(r(cta)) for r in left)
        tile = np.concatenate(
            [
                np.concatenate([upper_left, upper_right], 2),
                np.concatenate([lower_left, lower_right], 2),
            ],
            1,
        )
        columns = np.concatenate([block(r(cta)) for r in right], 2)  # [warps, n, k]
        product = tile @ columns.transpose(0, 2, 1)  # [warps, 16, 8]
        pieces = product.reshape(-1, 2, 8, 4, 2)  # [warps, half, g, t, parity]
        for index, (put, start) in enumerate(zip(puts, addend, strict=True)):
            piece = np.ascontiguousarray(pieces[:, index // 2, :, :, index % 2]).reshape(-1)
            put(cta, piece + start(cta), mask)

    return step

"""add_norm, rotate_ and silu_mul, one launch each: every program has rows, heads or a part of a row of its own.

Nothing is shared between programs. Values are computed in float32 and rounded once. Strides of aligned tensors are in
units of 16 elements, so that the compiler makes wide loads; nothing else about integers is compiled in.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .._checks import FLOATS
from .._operands import check_add_norm, check_rotate_, check_silu_mul
from .configs import block as configs
from .configs.device import device_of

UNIT = 16


@triton.jit
def rows_at(i, inner, s_outer, s_inner):
    """Offsets of rows number i of a tensor [T, inner, d], of 64 bits."""
    return (i // inner).to(tl.int64) * s_outer + (i % inner).to(tl.int64) * s_inner


@triton.jit(do_not_specialize=["s_x", "s_xh", "s_r", "s_rh", "rows", "inner", "eps"])
def add_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    s_x: tl.int64,
    s_xh: tl.int64,
    s_r: tl.int64,
    s_rh: tl.int64,
    rows,
    inner,
    eps,
    D: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """STEP: elements of a unit of the strides."""
    first = tl.program_id(0) * ROWS
    o_r = tl.arange(0, ROWS)
    o_d = tl.arange(0, BLOCK)
    m_r = o_r < rows - first
    m_d = o_d < D
    m = m_r[:, None] & m_d[None, :]
    i = first + tl.where(m_r, o_r, 0)  # [ROWS]
    x = tl.load(x_ptr + (rows_at(i, inner, s_x, s_xh) * STEP)[:, None] + o_d[None, :], mask=m, other=0.0)
    if residual_ptr is not None:
        p_r = residual_ptr + (rows_at(i, inner, s_r, s_rh) * STEP)[:, None] + o_d[None, :]
        before = tl.load(p_r, mask=m, other=0.0)
        x = (before.to(tl.float32) + x.to(tl.float32)).to(x.dtype)  # rounded: what is normalised is what is stored
        tl.store(p_r, x, mask=m)
    x = x.to(tl.float32)  # [ROWS, BLOCK]
    factor = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
    weight = tl.load(weight_ptr + o_d, mask=m_d, other=0.0).to(tl.float32)
    out = x * factor[:, None] * weight[None, :]
    tl.store(out_ptr + i.to(tl.int64)[:, None] * D + o_d[None, :], out, mask=m)


@triton.jit
def turn_heads(
    x_ptr,
    weight_ptr,
    first,
    heads,
    s_h,
    cos,
    sin,
    eps,
    D: tl.constexpr,
    STEP: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Turns HEADS heads of one token from the first on, in place, with a weight after their norm."""
    o_j = tl.arange(0, BLOCK)
    o_h = first + tl.arange(0, HEADS)
    m_j = o_j < D // 2
    m = (o_h < heads)[:, None] & m_j[None, :]
    p_a = x_ptr + (o_h.to(tl.int64) * s_h * STEP)[:, None] + o_j[None, :]  # [HEADS, BLOCK]
    p_b = p_a + D // 2
    a = tl.load(p_a, mask=m, other=0.0).to(tl.float32)
    b = tl.load(p_b, mask=m, other=0.0).to(tl.float32)
    if weight_ptr is not None:
        factor = tl.rsqrt(tl.sum(a * a + b * b, 1) / D + eps)[:, None]  # [HEADS, 1]
        a *= factor * tl.load(weight_ptr + o_j, mask=m_j, other=0.0).to(tl.float32)[None, :]
        b *= factor * tl.load(weight_ptr + D // 2 + o_j, mask=m_j, other=0.0).to(tl.float32)[None, :]
    tl.store(p_a, a * cos - b * sin, mask=m)
    tl.store(p_b, b * cos + a * sin, mask=m)


@triton.jit(do_not_specialize=["s_qt", "s_qh", "s_kt", "s_kh", "n_q", "n_k", "eps"])
def rotate_kernel(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    s_qt: tl.int64,
    s_qh: tl.int64,
    s_kt: tl.int64,
    s_kh: tl.int64,
    n_q,
    n_k,
    eps,
    D: tl.constexpr,
    STEP: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program has some heads of Q of one token, or some of K."""
    tiles_q = tl.cdiv(n_q, HEADS)
    tiles = tiles_q + tl.cdiv(n_k, HEADS)
    i_t = (tl.program_id(0) // tiles).to(tl.int64)
    i = tl.program_id(0) % tiles
    o_j = tl.arange(0, BLOCK)
    p = i_t * (D // 2) + o_j
    cos = tl.load(cos_ptr + p, mask=o_j < D // 2, other=0.0)[None, :]
    sin = tl.load(sin_ptr + p, mask=o_j < D // 2, other=0.0)[None, :]
    if i < tiles_q:
        p_q = q_ptr + i_t * s_qt * STEP
        turn_heads(p_q, q_norm_ptr, i * HEADS, n_q, s_qh, cos, sin, eps, D, STEP, HEADS, BLOCK)
    else:
        p_k = k_ptr + i_t * s_kt * STEP
        turn_heads(p_k, k_norm_ptr, (i - tiles_q) * HEADS, n_k, s_kh, cos, sin, eps, D, STEP, HEADS, BLOCK)


@triton.jit(do_not_specialize=["s_row", "size"])
def silu_mul_kernel(x_ptr, out_ptr, s_row: tl.int64, size, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """A program has a part of a row. STEP is the unit of `size`, the number of gates, too."""
    size = size * STEP
    tiles = tl.cdiv(size, BLOCK)
    i = (tl.program_id(0) // tiles).to(tl.int64)
    o = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    m = o < size
    p_gate = x_ptr + i * s_row * STEP
    gate = tl.load(p_gate + o, mask=m, other=0.0).to(tl.float32)
    up = tl.load(p_gate + size + o, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + i * size + o, gate / (1.0 + tl.exp(-gate)) * up, mask=m)


def add_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """The operator ``add_norm``."""
    check_add_norm(x, residual, weight, eps, floats=FLOATS)
    out = x.new_empty(x.shape)
    if out.numel() == 0:
        return out
    size, strides = x.size(-1), [strides_of(x), strides_of(x if residual is None else residual)]
    step = unit_of(size, *strides[0], *strides[1])
    rows, options = x.numel() // size, config_of(x).norm(size)
    add_norm_kernel[(triton.cdiv(rows, options["ROWS"]),)](
        x,
        residual,
        weight,
        out,
        *(stride // step for pair in strides for stride in pair),
        rows,
        x.size(1) if x.dim() == 3 else 1,
        eps,
        D=size,
        STEP=step,
        **options,
    )
    return out


def rotate_(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, eps: float
) -> None:
    """The operator ``rotate_``."""
    check_rotate_(q, k, cos, sin, q_norm, k_norm, eps, floats=FLOATS)
    (tokens, n_q, size), n_k = q.shape, k.size(1)
    if tokens * (n_q + n_k) == 0:
        return
    strides = [*strides_of(q), *strides_of(k)]
    step, options = unit_of(*strides), config_of(q).rotation(size)
    tiles = triton.cdiv(n_q, options["HEADS"]) + triton.cdiv(n_k, options["HEADS"])
    rotate_kernel[(tokens * tiles,)](
        q,
        k,
        cos,
        sin,
        q_norm,
        k_norm,
        *(stride // step for stride in strides),
        n_q,
        n_k,
        eps,
        D=size,
        STEP=step,
        **options,
    )


def silu_mul(gate_up: Tensor) -> Tensor:
    """The operator ``silu_mul``."""
    check_silu_mul(gate_up, floats=FLOATS)
    rows, size = gate_up.size(0), gate_up.size(1) // 2
    out = gate_up.new_empty(rows, size)
    if rows == 0:
        return out
    step, options = unit_of(size, gate_up.stride(0)), config_of(gate_up).gate()
    grid = (rows * triton.cdiv(size, options["BLOCK"]),)
    silu_mul_kernel[grid](gate_up, out, gate_up.stride(0) // step, size // step, STEP=step, **options)
    return out


def strides_of(x: Tensor) -> tuple[int, int]:
    """Of the rows of [T, d] or [T, H, d]."""
    return x.stride(0), x.stride(1) if x.dim() == 3 else 0


def unit_of(*distances: int) -> int:
    """The largest unit that the kernels know in which all of them are whole numbers."""
    return 1 if any(distance % UNIT for distance in distances) else UNIT


def config_of(x: Tensor) -> configs.BlockConfig:
    return configs.BLOCK[device_of(x.device).architecture][x.dtype]

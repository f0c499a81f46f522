"""Cases for the operations of a block, their definition in numpy's float64, and what compares a backend with it.

A backend may err as much as torch's own code in the same dtype plus 1e-5. The sum of a residual is torch's to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.strategies import DTYPES
from tests.support import same

SIZES = (1, 2, 7, 8, 15, 16, 17, 33, 64, 100, 257)
ROWS = (0, 1, 2, 5, 19)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int, spread: float = 1.0, gap: int = 0) -> Tensor:
    """Random rows; with a gap they are a view of wider ones, whose other values are NaN."""
    wide = torch.full((*shape[:-1], shape[-1] + 2 * gap), torch.nan, dtype=dtype)
    out = wide[..., gap : gap + shape[-1]]
    return out.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread)


def wide(x: Tensor) -> np.ndarray:
    return x.double().numpy()


def as_exact_as_torch(got: Tensor, torchs: Tensor, expected: np.ndarray, slack: float = 1e-5) -> None:
    """The largest error is at most that of torch's code plus some slack."""
    assert (got.shape, got.dtype) == (torchs.shape, torchs.dtype)
    assert got.is_contiguous()
    if got.numel():
        ours, theirs = (float(np.abs(wide(x) - expected).max()) for x in (got, torchs))
        assert ours <= theirs + slack, (ours, theirs, slack)


@dataclass(frozen=True)
class NormCase:
    """Rows, what they are added to if there is something, and the weight of the norm."""

    x: Tensor
    residual: Tensor | None
    weight: Tensor
    eps: float

    def check(self, backend: Any) -> None:
        before, x = None if self.residual is None else self.residual.clone(), self.x.clone()
        out = backend.add_norm(self.x, self.weight, eps=self.eps, residual=self.residual)
        rows = x if before is None else before + x
        same(self.x, x)
        if self.residual is not None:
            same(self.residual, rows)
        exact = wide(rows)
        size = np.sqrt((exact * exact).mean(-1, keepdims=True) + self.eps)
        torchs = F.rms_norm(rows, rows.shape[-1:], self.weight, self.eps).contiguous()
        as_exact_as_torch(out, torchs, exact / size * wide(self.weight))


@dataclass(frozen=True)
class RotationCase:
    """Heads of a fused projection, all of it, the angles of the tokens, and the weights of the heads' norms if any."""

    fused: Tensor
    heads: tuple[int, int]
    angles: Tensor
    norms: tuple[Tensor, Tensor] | None = None
    eps: float = 0.0

    def check(self, backend: Any) -> None:
        n_q, n_k = self.heads
        before, turned = self.fused.clone(), n_q + n_k
        cos, sin = self.angles.cos(), self.angles.sin()
        named = dict(zip(("q_norm", "k_norm"), self.norms or (), strict=False))
        backend.rotate_(self.fused[:, :n_q], self.fused[:, n_q:turned], cos, sin, **named, eps=self.eps)
        same(self.fused[:, turned:], before[:, turned:])
        half, torchs, exact = before.shape[-1] // 2, before[:, :turned], wide(before[:, :turned])
        if self.norms is not None:
            weights = [w.expand(n, -1) for w, n in zip(self.norms, self.heads, strict=True)]
            kinds = zip(torchs.split(self.heads, dim=1), self.norms, strict=True)
            torchs = torch.cat([F.rms_norm(x, x.shape[-1:], w, self.eps) for x, w in kinds], dim=1)
            exact = exact / np.sqrt((exact * exact).mean(-1, keepdims=True) + self.eps) * wide(torch.cat(weights))
        z = exact[..., :half] + 1j * exact[..., half:]
        z = z * (wide(cos) + 1j * wide(sin))[:, None]  # a turn is a product of complex numbers
        a, b = torchs.float().chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]
        torchs = torch.cat([a * c - b * s, b * c + a * s], dim=-1).to(before.dtype)
        got = self.fused[:, :turned].contiguous()
        as_exact_as_torch(got, torchs, np.concatenate([z.real, z.imag], axis=-1))


@dataclass(frozen=True)
class GateCase:
    """A fused projection to gates and what they are multiplied by."""

    gate_up: Tensor

    def check(self, backend: Any) -> None:
        before = self.gate_up.clone()
        out = backend.silu_mul(self.gate_up)
        same(self.gate_up, before)
        half = before.shape[1] // 2
        gate, up = wide(before)[:, :half], wide(before)[:, half:]
        torchs = F.silu(before[:, :half]) * before[:, half:]
        as_exact_as_torch(out, torchs, gate / (1 + np.exp(-gate)) * up)


seeds, dtypes, gaps = st.integers(0, 2**31), st.sampled_from(DTYPES), st.sampled_from([0, 1, 8])


@st.composite
def norm_cases(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> NormCase:
    size, dtype, seed = draw(st.sampled_from(sizes)), draw(dtypes), draw(seeds)
    shape = (draw(st.sampled_from(ROWS)), *draw(st.sampled_from([(), (1,), (3,)])), size)
    x = values(shape, dtype, seed, draw(st.sampled_from([0.01, 1.0, 40.0])), draw(gaps))
    residual = values(shape, dtype, seed + 1, 1.0, draw(gaps)) if draw(st.booleans()) else None
    return NormCase(x, residual, values((size,), dtype, seed + 2), draw(st.sampled_from([0.0, 1e-6, 1e-5])) + 1e-12)


@st.composite
def rotation_cases(draw: st.DrawFn) -> RotationCase:
    size, dtype, seed = draw(st.sampled_from([2, 6, 16, 32, 34, 80, 128, 256])), draw(dtypes), draw(seeds)
    tokens, heads = draw(st.sampled_from(ROWS)), draw(st.sampled_from([(1, 1), (4, 4), (7, 1), (3, 2)]))
    fused = values((tokens, sum(heads) + heads[1], size), dtype, seed, 2.0, draw(st.sampled_from([0, 4])))
    angles = values((tokens, size // 2), torch.float32, seed + 1, 30.0)
    norms = [values((size,), dtype, seed + i) for i in (2, 3)] if draw(st.booleans()) else None
    return RotationCase(fused, heads, angles, norms and tuple(norms), draw(st.sampled_from([1e-12, 1e-6, 1e-5])))


@st.composite
def gate_cases(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> GateCase:
    shape = (draw(st.sampled_from(ROWS)), 2 * draw(st.sampled_from(sizes)))
    return GateCase(values(shape, draw(dtypes), draw(seeds), draw(st.sampled_from([0.1, 2.0, 30.0])), draw(gaps)))

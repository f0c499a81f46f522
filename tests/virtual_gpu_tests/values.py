"""Numbers to try instructions on, and what some instructions give by numpy."""

from __future__ import annotations

import numpy as np

N = 128
EDGES = {
    "s": [0, 1, -1, 2, 31, 32, 33, -(2**31), 2**31 - 1],
    "u": [0, 1, 2, 31, 32, 33, 63, 64, 2**31, 2**32 - 1],
    "f": [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-40, 3.4e38, -2.5],
}


def numbers(dtype: str, seed: int) -> np.ndarray:
    """Random values of a type. The edge cases come first, in an order that depends on the seed."""
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        values = (random.standard_normal(N) * 10.0 ** random.integers(-3, 4, N)).astype(kind)
        with np.errstate(over="ignore"):
            edges = np.array(EDGES["f"]).astype(kind)
    else:
        limits = np.iinfo(kind)
        values = random.integers(limits.min, limits.max, N, kind, endpoint=True)
        edges = np.array(EDGES["s" if kind.kind == "i" else "u"]).astype(kind)
    values[: edges.size] = random.permutation(edges)
    return values


def fused(a, b, c):
    """The exact sum in extended precision, rounded once (128 samples do not hit its own ties)."""
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def zero_aware(function, sign):
    """minimum or maximum with -0 below +0."""

    def apply(a, b):
        chosen = function(a, b)
        tie = (a == 0) & (b == 0)
        zero = np.where(np.signbit(a) | np.signbit(b), -0.0, 0.0)
        if sign > 0:
            zero = np.where(np.signbit(a) & np.signbit(b), -0.0, 0.0)
        return np.where(tie, zero.astype(a.dtype), chosen)

    return apply


low, high = zero_aware(np.fmin, -1), zero_aware(np.fmax, 1)
low_nan, high_nan = zero_aware(np.minimum, -1), zero_aware(np.maximum, 1)

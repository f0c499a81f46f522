"""What is wrong with a result, in words; None if nothing is."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def different(names: Iterable[str], got: Iterable[Tensor | None], expected: Iterable[Tensor | None]) -> str | None:
    """Whether tensors differ in any bit; NaN equals NaN."""
    for name, ours, wanted in zip(names, got, expected, strict=True):
        if wanted is None or ours is None:
            if ours is not wanted:
                return f"{name}: expected {wanted}, got {ours}"
        elif ours.shape != wanted.shape or not bool(torch.equal(ours.nan_to_num(), wanted.nan_to_num())):
            count = int((ours != wanted).sum()) if ours.shape == wanted.shape else "all"
            return f"{name}: {count} of {wanted.numel()} differ from the reference"
    return None


def farther(name: str, got: Tensor, truth: Tensor, allowed: float) -> str | None:
    """Whether any element is farther from the truth than it may be. NaN is."""
    error = float((got.double() - truth.double()).abs().max()) if truth.numel() else 0.0
    return None if error <= allowed else f"{name}: wrong by {error:.3g}, expected at most {allowed:.3g}"


def first(*found: str | None) -> str | None:
    return next((each for each in found if each is not None), None)

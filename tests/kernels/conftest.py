"""Every CPU path as one parameter, and fresh memory that holds NaN."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import lsp_kernels
from lsp_kernels import _ops
from tests.support import poisoned_memory

PATHS = ("reference", "scalar", "avx2", "avx512", "avx512bf16")


def available(path: str) -> bool:
    if path == "reference":
        return True
    widest = "none" if _ops.cpp is None else _ops.cpp.best_isa()
    return widest in PATHS and PATHS.index(path) <= PATHS.index(widest)


@pytest.fixture(params=PATHS)
def backend(request: pytest.FixtureRequest) -> Iterator[object]:
    """An object with the package's operations, served by one path."""
    if not available(request.param):
        pytest.skip(f"no {request.param} on this machine")
    if request.param == "reference":
        yield lsp_kernels.reference
        return
    before = os.environ.get("LSP_CPU_ISA")
    os.environ["LSP_CPU_ISA"] = request.param
    yield lsp_kernels
    os.environ.pop("LSP_CPU_ISA")
    if before is not None:
        os.environ["LSP_CPU_ISA"] = before


@pytest.fixture(autouse=True, scope="session")
def _poisoned_memory() -> Iterator[None]:
    with poisoned_memory():
        yield

"""Damaged copies of the Triton package's sources, importable side by side with the real ones.

A defect is a patch of one file and the names of the cases that must notice it.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lsp_kernels.triton
from tests.virtual_gpu import AccessError, RaceError

PACKAGE = Path(lsp_kernels.triton.__file__).parent
FILES = {
    "commit": ("ticket", "noise", "top2", "odds", "rule", "rows", "launch", "stats", "commit"),
    "attention": ("ticket", "attention"),
    "block": ("block",),
    "head": ("ticket", "noise", "top2", "odds", "rule", "rows", "launch", "tiles", "head"),
}
NOTICED = (AssertionError, AccessError, RaceError)  # what running a damaged kernel may raise
_serial = itertools.count()


@dataclass(frozen=True)
class Defect:
    """Replaces `old`, which occurs once in the named file, by `new`."""

    name: str
    file: str
    old: str
    new: str
    cases: tuple[str, ...]


def tried(defects: Sequence[Defect]) -> list[Any]:
    """Every third defect; with LSP_EXAMPLES of 1 or more (make test-fuzz) all of them."""
    every = 1 if float(os.environ.get("LSP_EXAMPLES", "0.5")) >= 1 else 3
    later = pytest.mark.skip(reason="one defect in three: make test-fuzz tries all")
    marks: list[Any] = [() if i % every == 0 else later for i in range(len(defects))]
    return [pytest.param(defect, id=defect.name, marks=mark) for defect, mark in zip(defects, marks, strict=True)]


def damaged(defect: Defect, directory: Path, family: str = "commit") -> ModuleType:
    """A family's module with a defect in it or in what it imports, as files: Triton reads its kernels' source."""
    prefix = f"lsp_damaged_{next(_serial)}"
    module = None
    for name in FILES[family]:
        text = (PACKAGE / f"{name}.py").read_text()
        if name == defect.file:
            assert text.count(defect.old) == 1, f"{defect.name}: {defect.old!r} occurs {text.count(defect.old)} times"
            text = text.replace(defect.old, defect.new)
        for other in FILES[family]:
            text = text.replace(f"from .{other} import", f"from .{prefix}_{other} import")
        path = directory / f"{prefix}_{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"{lsp_kernels.triton.__name__}.{prefix}_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    assert module is not None
    return module

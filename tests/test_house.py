"""The order of the house: who may import whom, and that no name of a package hides one of its modules."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import lsp
import lsp_kernels
from tests.support import ROOT, import_or_skip, modules_of

FOLDERS = ("lsp", "lsp_kernels", "tests", "bench", "docs")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))] + sorted(ROOT.glob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Every module that a file may import, dotted; of ``from a import b`` both ``a`` and ``a.b``."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


IMPORTS = [(path.relative_to(ROOT), name) for path in FILES for name in imported(path)]


def test_imports_are_found() -> None:
    assert (Path("tests/test_house.py"), "tests.support.modules_of") in IMPORTS
    assert (Path("tests/virtual_gpu/cta.py"), "tests.virtual_gpu.races") in IMPORTS


def test_nobody_imports_a_test_or_a_benchmark() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
    private = {name for name in modules if name.rsplit(".", 1)[-1].startswith(("test_", "bench_"))}
    assert [(str(path), name) for path, name in IMPORTS if name in private] == []


def test_benchmarks_import_nothing_from_the_tests() -> None:
    found = [(str(path), name) for path, name in IMPORTS if path.parts[0] == "bench" and name.split(".")[0] == "tests"]
    assert found == []


def test_private_modules_of_the_kernels_are_imported_by_them_and_by_tests_alone() -> None:
    private = {name for name in modules_of(lsp_kernels) if name.rsplit(".", 1)[-1].startswith("_")}
    assert [
        (str(p), name) for p, name in IMPORTS if name in private and p.parts[0] not in ("lsp_kernels", "tests")
    ] == []


@pytest.mark.parametrize("name", [*modules_of(lsp), *modules_of(lsp_kernels)])
def test_no_name_of_a_package_hides_its_module(name: str) -> None:
    """``import lsp.x as x`` and ``lsp.x`` give the same: the module."""
    package, _, last = name.rpartition(".")
    module = import_or_skip(name)
    assert getattr(importlib.import_module(package), last) is module

"""Every Python block of the README and of docs/ runs as it is written, and so does every example in a docstring."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import lsp
import lsp.integrations
import lsp_kernels

MODULES = [f"lsp_kernels.{name}" for name in ("attention", "cache", "commit", "rule", "vocabulary", "workspace")]
MODULES += [
    "lsp.adapt",
    "lsp.delimiters",
    "lsp.generate",
    "lsp.intervals",
    "lsp.trace",
    "lsp.models.load",
    "lsp.models.transformer",
    "lsp.settings",
]
MODULES += [f"lsp.integrations.{name}" for name in lsp.integrations.__all__]
ROOT = Path(__file__).parents[1]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{i}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block: str) -> None:
    exec(compile(block, "<documentation>", "exec"), {"__name__": "documentation"})


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_links_lead_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target


PACKAGES = [lsp_kernels, lsp, lsp.models, lsp.integrations]
PACKAGES += [getattr(lsp.integrations, name) for name in lsp.integrations.__all__]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.__name__)
def test_everything_public_is_documented(package) -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    for name in package.__all__:
        assert getattr(package, name).__doc__, name
        assert name in text, f"{name} is not in docs/"

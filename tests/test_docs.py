"""Every Python block of the README and of docs/ runs as it is written, and so does every example in a docstring."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import lsp_kernels
from lsp_kernels import commit, rule, types

ROOT = Path(__file__).parents[1]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{i}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block: str) -> None:
    exec(compile(block, "<documentation>", "exec"), {"__name__": "documentation"})


@pytest.mark.parametrize("module", [commit, rule, types], ids=lambda m: m.__name__)
def test_docstring_examples_hold(module) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_everything_public_is_documented() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    for name in lsp_kernels.__all__:
        assert getattr(lsp_kernels, name).__doc__, name
        assert name in text, f"{name} is not in docs/"

"""docs/virtual_gpu.md: every block prints what the page says it prints."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.support import ROOT

PAGE = (ROOT / "docs" / "virtual_gpu.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)


def test_every_block_has_its_output() -> None:
    assert len(BLOCKS) == PAGE.count("```python") == 3


@pytest.mark.parametrize(("block", "output"), BLOCKS, ids=["run", "wrong", "race"])
def test_a_block_prints_what_the_page_says(
    block: str, output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "example.py"  # a file, because Triton reads its kernels' source
    path.write_text(block)
    runpy.run_path(str(path))
    assert capsys.readouterr().out == output

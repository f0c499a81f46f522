"""The README's example runs as it is written, and fails as the README says when its mask is forgotten."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests import virtual_gpu
from tests.virtual_gpu import AccessError

FOLDER = Path(virtual_gpu.__file__).parent
README = (FOLDER / "README.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(text: str, folder: Path) -> None:
    """As a file: Triton reads its kernels' source."""
    path = folder / "example.py"
    path.write_text(text)
    runpy.run_path(str(path))


def test_the_example_runs(tmp_path: Path) -> None:
    run(EXAMPLE, tmp_path)


def test_the_example_without_its_mask_is_out_of_bounds(tmp_path: Path) -> None:
    unmasked = EXAMPLE.replace("tl.load(x_ptr + o, mask=o < n)", "tl.load(x_ptr + o)")
    (message,) = re.findall("`AccessError: (.*?)`", README)
    with pytest.raises(AccessError, match=message):
        run(unmasked, tmp_path)


def test_the_map_names_every_file() -> None:
    files = {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", README.split("## Map")[1])) == files

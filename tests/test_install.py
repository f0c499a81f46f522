"""The package installs without a compiler and imports without anything but torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.abuse("install")
@pytest.mark.parametrize("compiler", ["/nonexistent/cc", "false"], ids=["no compiler", "a compiler that fails"])
def test_build_goes_on_without_the_extension(tmp_path: Path, compiler: str) -> None:
    result = run(
        "setup.py",
        "-q",
        "build",
        "--build-base",
        str(tmp_path),
        "--build-lib",
        str(tmp_path / "lib"),
        CC=compiler,
        CXX=compiler,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the C++ kernels were not built") == 1
    assert (tmp_path / "lib/lsp_kernels/commit.py").exists()
    assert (tmp_path / "lib/lsp_kernels/py.typed").exists()
    assert not list((tmp_path / "lib").rglob("_C*"))


BLOCKED = """
import importlib.abc, sys, warnings
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("triton", "transformers", "numpy") or name == "lsp_kernels._C":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import torch
with warnings.catch_warnings(record=True) as caught:
    import lsp_kernels
    for _ in range(3):
        stats = lsp_kernels.token_stats(torch.eye(3))
assert stats.tokens.tolist() == [0, 1, 2]
caught = [str(w.message) for w in caught if "reference serves" in str(w.message)]
assert len(caught) == 1, caught
"""


@pytest.mark.abuse("install")
def test_torch_alone_is_enough_and_the_reference_serves_with_one_warning() -> None:
    result = run("-c", BLOCKED)
    assert result.returncode == 0, result.stderr


def test_info_says_who_serves_what() -> None:
    result = run("-m", "lsp_kernels.info")
    assert result.returncode == 0
    for word in ("torch", "commit_prefix", "instruction set", "CPU: C++"):
        assert word in result.stdout


@pytest.mark.abuse("install")
def test_info_never_fails() -> None:
    result = run(
        "-c",
        BLOCKED.split("import torch")[0] + "sys.modules['torch'] = None\nimport runpy, types\n"
        "package = sys.modules['lsp_kernels'] = types.ModuleType('lsp_kernels')\n"
        "package.__path__ = ['lsp_kernels']\n"
        "runpy.run_module('lsp_kernels.info', run_name='__main__')",
    )
    assert result.returncode == 0, result.stderr
    assert "unavailable" in result.stdout

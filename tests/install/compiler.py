"""The C++ compiler of this machine, for tests that ask it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.support import ROOT


def compiler() -> list[str]:
    """The command of the C++ compiler that setuptools would use. The test is skipped where there is none."""
    command = (os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++").split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"no C++ compiler here ({command[0]})")
    return command


def syntax_errors(code: str, *include: Path) -> str:
    """What the compiler says of some code, which it does not translate; empty if it has nothing to say."""
    folders = [f"-I{folder}" for folder in (ROOT / "csrc", *include)]
    command = [*compiler(), "-std=c++17", "-fsyntax-only", "-Wall", "-DLSP_NAMESPACE=lsp", *folders, "-x", "c++", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=False).stderr

"""Virtual environments to install into, and a copy of this repository to install from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support import ROOT

TORCH = re.search(r"^torch==.*", (ROOT / "requirements-dev.txt").read_text(), re.MULTILINE)[0]
NO_COMPILER = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}
BUILT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.so")


def copy_of_the_source(folder: Path) -> Path:
    """The files of this repository without what was built from them."""
    return shutil.copytree(ROOT, folder, ignore=BUILT)


class Environment:
    """A new virtual environment. With `packages` it also sees what is installed in that folder."""

    def __init__(self, folder: Path, packages: Path | None = None, python: str = sys.executable) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        (self.packages,) = folder.glob("lib/python*/site-packages")
        if packages is not None:
            (self.packages / "more.pth").write_text(f"{packages}\n")
        self.constraints = folder / "constraints.txt"
        self.constraints.write_text(f"{TORCH}\n")  # any other version may be many times larger

    def run(self, command: str | Sequence[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command, by a shell if it is one string, where this environment's programs come first."""
        own = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(self.constraints),
            "OMP_NUM_THREADS": "1",
        }
        outer = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run(
            command,
            cwd=cwd,
            env=outer | own | environment,
            shell=isinstance(command, str),
            capture_output=True,
            text=True,
            check=False,
        )

    def out(self, command: str | Sequence[str], cwd: Path, **environment: str) -> str:
        """What a command that must succeed prints."""
        result = self.run(command, cwd, **environment)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout

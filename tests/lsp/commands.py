"""The lsp command in this process and in another one."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Any

from lsp.cli import options
from tests.support import ROOT

load_model: Any = cache(options.load_model)
"""Each model is loaded once for all tests."""


class Ran:
    """What a command returned and printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def process(*arguments: str, code: str = "from lsp.cli import main; main()", **more: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, text=True, **pipes)

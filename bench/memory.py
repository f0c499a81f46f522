"""Peak memory of a piece of code, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEASURABLE = Path("/proc/self/clear_refs").exists()

STATUS = """
import sys
def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
"""
BEGIN = """
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
"""
END = """
print(status("VmHWM") - before)
"""


def peak_of(setup: str, code: str, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """How many bytes `code` adds at its peak to what `setup` has left in memory, and the words that both printed.

    Both are Python; `sys.argv[1:]` are the arguments, and `environment` is added to this process's own.
    """
    script = "\n".join([STATUS, setup, BEGIN, code, END])
    command = [sys.executable, "-c", script, *arguments]
    how = {"cwd": ROOT, "env": os.environ | environment, "stdout": subprocess.PIPE, "text": True}
    *printed, peak = subprocess.run(command, check=True, **how).stdout.split()
    return int(peak), printed


def peaks_of_ranks(size: int, port: int, setup: str, code: str, *arguments: str) -> list[tuple[int, list[str]]]:
    """The same for `size` processes at once, with the variables that torchrun gives its processes."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with ThreadPoolExecutor(size) as pool:
        runs = [pool.submit(peak_of, setup, code, *arguments, RANK=str(rank), **shared) for rank in range(size)]
        return [run.result() for run in runs]

"""Peak memory of a piece of code, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
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


def peak_of(setup: str, code: str, *arguments: str) -> tuple[int, list[str]]:
    """How many bytes `code` adds at its peak to what `setup` has left in memory, and the words that both printed.

    Both are Python; `sys.argv[1:]` are the arguments.
    """
    script = "\n".join([STATUS, setup, BEGIN, code, END])
    command = [sys.executable, "-c", script, *arguments]
    *printed, peak = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return int(peak), printed

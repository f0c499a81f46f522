"""Which processor, versions and commit a run was made with. What is unknown says so."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path

from lsp_kernels.info import processor, versions

ROOT = Path(__file__).parents[2]
MEASURED = ("setup.py", "csrc", "lsp", "lsp_kernels", "bench")
UNMEASURED = (
    "lsp/tiny/checkpoint",
    "lsp/tiny/training",
    "bench/report",
    "bench/roofline",
    "bench/example.py",
    "bench/llada_8b.py",
)
"""Folders that times depend on, and what in them they do not depend on. New weights change answers, and the same ones
for all who answer."""
OWN = "bench/bench_*.py"
"""On each of these only its own benchmarks depend."""


def machine() -> dict[str, str]:
    """Everything that a reader of the figures must know, and nothing of where it is on this machine."""
    found = {"processor": name_of_processor(), "cores": str(os.cpu_count()), "memory": memory()}
    found |= dict(processor())
    found["C++ extension"] = re.sub(r"^/\S+, ", "", found["C++ extension"])  # not where it is
    return found | dict(versions()) | {"commit": commit()}


def name_of_processor() -> str:
    """As Linux knows it; elsewhere what Python does."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or "unknown"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or "unknown"


def memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (AttributeError, OSError, ValueError):
        return "unknown"


def commit() -> str:
    """The commit of the source, and whether files differ from it."""
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return f"{head}, with changes" if git("status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def sources() -> dict[str, str]:
    """A digest of all that is measured, with its uncommitted changes, by folder: other ones may give other times.

    The files of the benchmarks have digests of their own, so that one that was mended makes no other one run again.
    """
    shared = [f":(exclude,glob){OWN}", *(f":(exclude){name}" for name in UNMEASURED)]
    try:
        own = git("ls-files", "--", f":(glob){OWN}").splitlines()
        return {folder: digest(folder, shared) for folder in MEASURED} | {file: digest(file, []) for file in own}
    except (OSError, subprocess.CalledProcessError):
        return {}


def digest(name: str, others: list[str]) -> str:
    """Of a file or a folder without `others`."""
    files = git("ls-files", "-s", "--", name, *others)
    changes = git("diff", "HEAD", "--no-ext-diff", "--binary", "--", name, *others)
    return hashlib.sha256(f"{files}\n{changes}".encode()).hexdigest()[:12]


def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

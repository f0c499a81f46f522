"""How much memory a device has left, so that a cache that cannot fit is refused before it is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path("/")


def free_bytes(device: torch.device, root: Path = ROOT) -> float:
    """The free memory of a device in bytes; infinity where it is not known. `root` holds the files of the system."""
    if device.type == "cuda":
        return _free_on_gpu(device)
    if device.type == "cpu":
        return min(_available(root / "proc/meminfo"), *_left_in_cgroups(root), math.inf)
    return math.inf


def _free_on_gpu(device: torch.device) -> float:
    """What the driver has left, and what torch's allocator holds without using it.

    The allocator may be limited to a part of the device (`torch.cuda.set_per_process_memory_fraction`).
    """
    free, total = torch.cuda.mem_get_info(device)
    used, held = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total - used
    return min(free + held - used, allowed)


def _available(meminfo: Path) -> float:
    if not meminfo.exists():
        return math.inf
    lines = (line.split() for line in meminfo.read_text().splitlines())
    return next((int(words[1]) * 1024.0 for words in lines if words[0] == "MemAvailable:"), math.inf)


def _left_in_cgroups(root: Path) -> Iterator[float]:
    """What the limit of each control group that this process is in leaves it: its own group and all above it."""
    for folder, limit, used, cache in _groups(root):
        if (most := _number(folder / limit)) is None or (now := _number(folder / used)) is None:
            continue
        stat = folder / "memory.stat"
        words = (line.split() for line in stat.read_text().splitlines()) if stat.exists() else ()
        given_back = next((int(value) for name, value in words if name == cache), 0)  # files that can be dropped
        yield max(0.0, float(most - now + given_back))


def _groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Folders of control groups, and the names of limit, usage and droppable file cache there (version 2 or 1)."""
    listed = root / "proc/self/cgroup"
    for line in listed.read_text().splitlines() if listed.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = base / path.lstrip("/")
        for folder in (own, *own.parents):
            yield (folder, *names)
            if folder == base:
                break


def _number(file: Path) -> int | None:
    """The number in a file; None without one, or where it says "max"."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def readable(size: int) -> str:
    """A size in bytes in words, such as 1.5 MiB."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}"

"""How much memory is free: what the system, control groups, the driver and torch's allocator say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from lsp_kernels import PrefixCache
from lsp_kernels._memory import free_bytes

CPU, GPU = torch.device("cpu"), torch.device("cuda")
GIB = 2**30


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 999 kB\nMemAvailable: 8388608 kB\n"}
V2 = {
    "proc/self/cgroup": "0::/user/job\n",
    "sys/fs/cgroup/user/job/memory.max": "max\n",
    "sys/fs/cgroup/user/job/memory.current": f"{GIB}\n",
    "sys/fs/cgroup/user/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/user/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/user/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
}
V1 = {
    "proc/self/cgroup": "5:devices:/\n4:cpu,memory:/docker/abc\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",  # a container sees its own group at the top
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
}


def test_without_files_nothing_is_known(tmp_path: Path) -> None:
    assert free_bytes(CPU, tmp_path) == math.inf


def test_the_system_says_what_is_available(tmp_path: Path) -> None:
    assert free_bytes(CPU, system(tmp_path, MEMINFO)) == 8 * GIB


def test_the_limit_of_a_control_group_above_counts_and_droppable_files_do_not(tmp_path: Path) -> None:
    assert free_bytes(CPU, system(tmp_path, MEMINFO | V2)) == 1.5 * GIB


def test_the_first_version_of_control_groups_counts_too(tmp_path: Path) -> None:
    assert free_bytes(CPU, system(tmp_path, MEMINFO | V1)) == GIB


def test_a_group_beyond_its_limit_has_nothing_left(tmp_path: Path) -> None:
    over = {"sys/fs/cgroup/user/memory.max": f"{GIB}\n"}
    assert free_bytes(CPU, system(tmp_path, MEMINFO | V2 | over)) == 0


def test_a_cache_that_a_control_group_has_no_room_for_is_refused(tmp_path: Path, monkeypatch) -> None:
    root = system(tmp_path, MEMINFO | V2 | {"sys/fs/cgroup/user/memory.max": f"{3 * GIB + 100_000}\n"} | {
        "sys/fs/cgroup/user/memory.stat": ""})  # fmt: skip
    monkeypatch.setattr("lsp_kernels.cache.free_bytes", lambda device: free_bytes(device, root))
    PrefixCache(1, 1, 1, 300, 32)
    with pytest.raises(MemoryError, match="got 100000 free on cpu"):
        PrefixCache(1, 1, 1, 400, 32)


class Driver:
    """What torch says of a GPU: bytes of the driver, of the allocator, and the part that it may use."""

    def __init__(self, monkeypatch, *, free: int, used: int, held: int, fraction: float = 1.0) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 80 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: used)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: held)
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: fraction)


def test_memory_that_the_allocator_holds_and_does_not_use_is_free(monkeypatch) -> None:
    Driver(monkeypatch, free=1 * GIB, used=10 * GIB, held=70 * GIB)
    assert free_bytes(GPU) == 61 * GIB


def test_the_allocator_may_have_a_part_of_the_device_only(monkeypatch) -> None:
    Driver(monkeypatch, free=70 * GIB, used=8 * GIB, held=8 * GIB, fraction=0.5)
    assert free_bytes(GPU) == 32 * GIB

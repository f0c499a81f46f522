"""Tests in this directory run kernels under Triton's interpreter, which is chosen at import.

They need a process of their own: ``TRITON_INTERPRET=1 pytest tests/triton/interpreted``. Tiles are small here, so that
small inputs cross their borders, and fresh memory holds NaN, so that an unwritten output is noticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lsp_kernels import vocabulary
from lsp_kernels.triton import configs
from tests.support import poisoned_memory

HERE = os.path.dirname(__file__)
SMALL = configs.commit.CommitConfig(block=32, rows=8)
SMALL_HEAD = configs.head.HeadConfig(rows=16, ids=16, depth=16)
SMALL_BLOCK = configs.block.BlockConfig(values=64)
SMALL_ATTENTION = configs.attention.AttentionConfig(rows=32, keys=16)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    reason = "needs its own process: TRITON_INTERPRET=1 pytest tests/triton/interpreted"
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "SPAN", 4 * SMALL.block)
    for table in (configs.commit.COMMIT, configs.commit.STATS):
        monkeypatch.setitem(table, "sm_80", dict.fromkeys(configs.device.DTYPES, SMALL))
    by_noise = {noise: [SMALL_HEAD] for noise in (False, True)}
    monkeypatch.setitem(configs.head.HEAD, "sm_80", dict.fromkeys(configs.device.DTYPES, by_noise))
    monkeypatch.setattr(configs.head, "MERGED", 4 * SMALL_HEAD.rows)
    monkeypatch.setattr(configs.head, "CHUNK", 8)
    monkeypatch.setitem(configs.block.BLOCK, "sm_80", dict.fromkeys(configs.device.DTYPES, SMALL_BLOCK))
    by_head_dim = {size: [SMALL_ATTENTION] for size in (32, 64, 128, 256)}
    monkeypatch.setitem(configs.attention.ATTENTION, "sm_80", dict.fromkeys(configs.device.DTYPES, by_head_dim))
    monkeypatch.setattr(configs.attention, "LEAST_KEYS", SMALL_ATTENTION.keys)
    monkeypatch.setattr(configs.attention, "BORDERS", 2)


@pytest.fixture(autouse=True, scope="session")
def _poisoned_memory() -> Iterator[None]:
    with poisoned_memory():
        yield

"""One thread: waking a second one takes longer than the embedded model's products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

for package in ("transformers", "starlette", "uvicorn", "httpx"):
    pytest.importorskip(package)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

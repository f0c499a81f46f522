"""Checkpoints of a module's `case`, and one thread: waking a second one takes longer than small models' products."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lsp
from lsp.models import Transformer
from tests.lsp.checkpoints import Case


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case.save(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def exact(folder: Path) -> Transformer:
    return lsp.load(folder, dtype=torch.float64)

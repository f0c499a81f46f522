"""Checkpoints of a module's `case`, the lsp command, and one thread: waking a second one takes longer than small
models' products."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import lsp
from lsp.models import Transformer
from tests.lsp.checkpoints import Case

if TYPE_CHECKING:
    from tests.lsp.commands import Ran


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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs a command in this process, with models that are loaded once."""
    from lsp import cli
    from lsp.cli import options
    from tests.lsp.commands import Ran, load_model

    monkeypatch.setattr(options, "load_model", load_model)

    def call(*arguments: object, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = cli.run([str(argument) for argument in arguments])
        return Ran(code, *capsys.readouterr())

    return call


@pytest.fixture
def fails(run: Callable[..., Ran]) -> Callable[..., None]:
    """Runs a command that is to say in one line why it fails."""

    def check(code: int, message: str, *arguments: object) -> None:
        ran = run(*arguments)
        assert (ran.code, ran.out) == (code, "")
        assert ran.err.startswith("lsp: error: ")
        assert ran.err.count("\n") == 1
        assert message in ran.err

    return check

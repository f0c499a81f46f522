"""``lsp info``: versions, backends, the embedded model, the schedulers."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from lsp.cli import settings
from lsp.schedulers import NAMES
from lsp_kernels.info import Report, report, targets


def info(
    compiled: Annotated[
        bool, typer.Option("--targets", help="Compile every kernel for every GPU instead and print the table.")
    ] = False,
) -> None:
    """Says what serves each operation here and why, and which schedulers and settings there are.

    \b
      lsp info
      lsp info --targets
    """
    if compiled:
        return targets()
    report({"Embedded model": embedded, "Schedulers, for --scheduler, and what --set knows of them": schedulers})


def embedded() -> Report:
    import lsp

    model = lsp.load("tiny")
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    yield "tiny", f"{millions:.2f} M parameters, a context of {model.config.max_length}, in {model.source}"


def schedulers() -> Report:
    for name, kind in NAMES.items():
        yield name, (inspect.getdoc(kind) or "").splitlines()[0]
        yield "", settings.known(name)

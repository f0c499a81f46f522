"""``lsp demo``: held-out problems, decoded before your eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lsp import demo as show
from lsp.cli.compare import check_output


def demo(
    page: Annotated[Path, typer.Option(metavar="PATH", help="Where to write the trace of one problem.")] = Path(
        "lsp-trace.html"
    ),
    problems: Annotated[int, typer.Option(metavar="N", min=1, help="Problems of each task, e.g. --problems 10.")] = 4,
) -> None:
    """Solves held-out problems of the embedded model's four tasks under several schedulers, and compares them.

    \b
      lsp demo
      lsp demo --problems 20 --page trace.html
    """
    check_output(page, (".html",))
    show.run(Console(highlight=False), problems, page)

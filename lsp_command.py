"""What the installed `lsp` command runs.

It is outside of the package `lsp`, which cannot be imported where a package that it needs is missing: then this says so
in one line.
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from lsp.cli import main as run
    except ImportError as error:
        sys.exit(f"lsp: error: {error}")
    run()

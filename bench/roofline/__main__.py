"""``python -m bench.roofline`` writes docs/roofline.md. Nothing is measured, and no GPU is needed."""

from __future__ import annotations

from pathlib import Path

from bench.roofline.page import text
from lsp.files import write_whole

PAGE = Path(__file__).parents[2] / "docs" / "roofline.md"

if __name__ == "__main__":
    write_whole(PAGE, text())

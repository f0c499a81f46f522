"""``python -m bench.report RUN.json`` writes docs/benchmarks.md, its plots and the tables of the README from a run.

Nothing is measured, so it can be done again at any time; without a file it is done from the run that the page has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench import llada_8b
from bench.report.markdown import with_sections
from bench.report.page import text
from bench.report.plots import plots
from bench.report.run import ROOT, Run, check_whole
from bench.report.short import short
from lsp.files import write_whole

DOCS, README = ROOT / "docs", ROOT / "README.md"
NO_SECTIONS = {"ratios": "", "loop": "", "growth": ""}


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench.report", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="by default the run that the page shows")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of the page")
    parser.add_argument("--readme", type=Path, default=README, help="a text with sections between comments")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    given = options().parse_args(arguments)
    run = taken_over(given.docs) if given.run is None else Run.read(given.run)
    if run is not None:
        if given.docs == DOCS:
            check_whole(run)
        run.write(kept(given.docs))
        plots(run, given.docs / "benchmarks")
    write_whole(given.docs / "benchmarks.md", page(given.docs, run))
    write_whole(given.readme, readme(run, given.readme.read_text("utf-8")))
    print(f"wrote {given.docs / 'benchmarks.md'} and the sections of {given.readme}")


def page(docs: Path, run: Run | None) -> str:
    """The page of a run, and of what bench.llada_8b found if that is in the same folder."""
    return text(run, llada_8b.read(docs / "benchmarks" / "llada_8b.json"))


def kept(docs: Path) -> Path:
    return docs / "benchmarks" / "run.json"


def taken_over(docs: Path) -> Run | None:
    """The run that the page shows, if there is one."""
    return Run.read(kept(docs)) if kept(docs).exists() else None


def readme(run: Run | None, before: str) -> str:
    """The README with the sections of this run."""
    return with_sections(before, NO_SECTIONS if run is None else short(run, "docs/benchmarks"))


if __name__ == "__main__":
    main()

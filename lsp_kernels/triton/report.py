"""The table of compiled facts: kernel by architecture, with registers, spills, shared memory, loads and occupancy.

``docs/targets.md`` stores it together with a fingerprint per kernel family, taken over the kernels' intermediate code,
the options of every build and the Triton version, so that a table that no longer describes the kernels can be told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lsp_kernels.triton import builds
from lsp_kernels.triton.aot import TARGETS, fingerprint

DOCUMENT = Path(__file__).parents[2] / "docs" / "targets.md"
HEADER = ("architecture", "build", "registers", "spills", "shared", "widest load", "occupancy")


def rows_of(made: Iterable[builds.Build], inspect: Callable[..., None] = lambda *_: None) -> Iterator[tuple[str, ...]]:
    """One line of the table per build; `inspect` sees each build and what the compiler made of it."""
    for one in made:
        compiled = one.compile()
        inspect(one, compiled)
        yield (
            one.architecture,
            one.name,
            str(compiled.registers),
            str(compiled.spills),
            f"{compiled.shared} B",
            f"{compiled.widest_load} bit",
            f"{compiled.occupancy:.2f}",
        )


def text_table(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Lines for a terminal, each printed as soon as it is known."""
    widths = (12, 62, 9, 6, 7, 11, 9)
    for row in (HEADER, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def fingerprint_of(family: str) -> str:
    """Over what every build of a family is made of, and the TTIR of one architecture's."""
    made = [b for name in TARGETS for b in builds.shipped(name) if b.family == family]
    recipes = (f"{b.architecture} {b.name} {b.constants} {b.options} {b.signature} {b.aligned}" for b in made)
    return fingerprint([*recipes, *(b.lower() for b in made if b.architecture == "sm_90")])


def stored_fingerprint(family: str) -> str | None:
    found = re.search(rf"^{family}: `(\w+)`$", DOCUMENT.read_text(), re.MULTILINE) if DOCUMENT.exists() else None
    return found[1] if found else None


def write_document(rows: Iterable[tuple[str, ...]], families: Iterable[str]) -> None:
    """Renews docs/targets.md."""
    lines = [
        "# Compiled facts",
        "",
        "Every configuration that ships, compiled for every architecture by `make test-targets`, which also checks",
        "that nothing spills to memory, that aligned loads are 128 bits wide and that the ticket recipe is there.",
        "A fingerprint of each kernel family's intermediate code; `make test` fails when it no longer fits:",
        "",
        *(f"{family}: `{fingerprint_of(family)}`" for family in families),
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{'---|' * len(HEADER)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    DOCUMENT.write_text("\n".join(lines) + "\n")


def print_targets() -> None:
    """``python -m lsp_kernels.info --targets``."""
    for line in text_table(rows_of(b for name in TARGETS for b in builds.representative(name))):
        print(line, flush=True)

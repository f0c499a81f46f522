"""The table of compiled facts: kernel by architecture, with registers, spills, shared memory, loads, tensor cores.

``docs/targets.md`` stores it together with a fingerprint per kernel family, taken over the kernels' intermediate code,
the options of every build and the Triton version, so that a table that no longer describes the kernels can be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lsp_kernels.triton import builds
from lsp_kernels.triton.aot import TARGETS, Compiled, fingerprint

DOCUMENT = Path(__file__).parents[2] / "docs" / "targets.md"
HEADER = ("architecture", "build", "registers", "spills", "shared", "widest load", "occupancy", "tensor cores")
MATRIX = ("mma.sync", "wgmma.mma_async", "tcgen05.mma", "v_mfma", "v_wmma")  # opcodes of tensor cores


def tensor_cores(compiled: Compiled) -> str:
    """Which tensor-core instructions a kernel has, and how many: "wgmma.mma_async 12"."""
    counts = {name: compiled.count(name) for name in MATRIX}
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def row_of(made: builds.Build, compiled: Compiled) -> tuple[str, ...]:
    """A build's line of the table."""
    return (
        made.architecture,
        made.name,
        str(compiled.registers),
        str(compiled.spills),
        f"{compiled.shared} B",
        f"{compiled.widest_load} bit",
        f"{compiled.occupancy:.2f}",
        tensor_cores(compiled),
    )


def text_table(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Lines for a terminal, each printed as soon as it is known."""
    widths = (12, 62, 9, 6, 8, 11, 9, 12)
    for row in (HEADER, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def fingerprint_of(family: str) -> str:
    """Over what every build of a family is made of, and the TTIR of one architecture's."""
    made = [b for name in TARGETS for b in builds.shipped(name, family)]
    recipes = (
        f"{b.architecture} {b.name} {b.constants} {b.options} {b.signature} {b.aligned}{b.near or ''}" for b in made
    )
    return fingerprint([*recipes, *(b.lower() for b in made if b.architecture == "sm_90")])


def stored_fingerprint(family: str) -> str | None:
    found = re.search(rf"^{family}: `(\w+)`$", DOCUMENT.read_text(), re.MULTILINE) if DOCUMENT.exists() else None
    return found[1] if found else None


def write_section(family: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Renews a family's part of docs/targets.md; a last column that is empty is left out."""
    columns = len(HEADER) if any(row[-1] for row in rows) else len(HEADER) - 1
    lines = [
        f"## {family}",
        "",
        f"{family}: `{fingerprint_of(family)}`",
        "",
        f"| {' | '.join(HEADER[:columns])} |",
        f"|{'---|' * columns}",
        *(f"| {' | '.join(row[:columns])} |" for row in rows),
    ]
    introduction, *sections = DOCUMENT.read_text().rstrip("\n").split("\n\n## ")
    held = {section.split("\n", 1)[0]: f"## {section}" for section in sections} | {family: "\n".join(lines)}
    DOCUMENT.write_text("\n\n".join([introduction, *(held[f] for f in builds.FAMILIES if f in held)]) + "\n")


def print_targets() -> None:
    """``python -m lsp_kernels.info --targets``."""
    made = (b for name in TARGETS for b in builds.representative(name))
    for line in text_table(row_of(b, b.compile()) for b in made):
        print(line, flush=True)

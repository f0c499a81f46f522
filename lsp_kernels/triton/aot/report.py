"""Compiled facts of every build: a table for the terminal, and the files of ``docs/targets``.

Each kernel family has a CSV file with one row per build, and a fingerprint over its kernels' TTIR, the options of every
build and the Triton version. A table that no longer describes the kernels has a stale fingerprint. To lower them all
takes a minute, so a fingerprint over their source is compared first. ``docs/targets.md`` summarises the CSV files.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import builds
from .compile import fingerprint
from .facts import Compiled
from .targets import TARGETS

FOLDER = Path(__file__).parents[3] / "docs" / "targets"
MATRIX = ("mma.sync", "wgmma.mma_async", "tcgen05.mma", "v_mfma", "v_wmma")  # opcodes of tensor cores
INTRODUCTION = """# Compiled facts

Every configuration that ships, compiled for every architecture by `make test-targets`, which also checks what each
kernel family promises ([verification.md](verification.md)). `make test-targets KERNEL=attention` renews one family.
This page is a summary; every build has a row in [commit.csv](targets/commit.csv),
[attention.csv](targets/attention.csv), [head.csv](targets/head.csv) or [block.csv](targets/block.csv). `make test`
fails when a fingerprint in [fingerprints.json](targets/fingerprints.json) no longer describes the kernels.

Spills are bytes of thread-local memory on NVIDIA, those plus spilled vector registers on AMD. Occupancy is an estimate.
"""
HEADER = (
    "architecture", "kernel", "builds", "registers", "most spills", "most shared", "widest load", "lowest occupancy",
    "tensor cores",
)  # fmt: skip


class Row(NamedTuple):
    """The facts of one build."""

    architecture: str
    kernel: str
    variant: str
    registers: int
    spills: int
    shared_bytes: int
    load_bits: int
    occupancy: float
    tensor_cores: str


KINDS = (str, str, str, int, int, int, int, float, str)  # of the fields of Row


def tensor_cores(compiled: Compiled) -> str:
    """Which tensor-core instructions a kernel has, and how many of each, like "wgmma.mma_async 12"."""
    counts = {name: compiled.count(name) for name in MATRIX}
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def row_of(made: builds.Build, compiled: Compiled) -> Row:
    """The facts of a compiled build."""
    kernel = made.kernel.__name__
    return Row(
        made.architecture,
        kernel,
        made.name.removeprefix(f"{kernel} "),
        compiled.registers,
        compiled.spills,
        compiled.shared,
        compiled.widest_load,
        round(compiled.occupancy, 2),
        tensor_cores(compiled),
    )


def text_table(rows: Iterable[Row]) -> Iterator[str]:
    """Lines for a terminal. Each is yielded as soon as its build has been compiled."""
    widths = (12, 16, 45, 9, 6, 12, 9, 9, 12)
    for row in itertools.chain([Row._fields], rows):
        yield "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def is_fresh(family: str) -> bool:
    """Whether the table of a family describes its kernels as they are: by their source or, if that has changed, by what
    it is lowered to."""
    held = stored_fingerprints()[family]
    return held["source"] == source_of(family) or held["ttir"] == fingerprint_of(family)


def source_of(family: str) -> str:
    """A hash over the options of every build of a family, and over the source of its kernels and of all they call."""
    made = [b for name in TARGETS for b in builds.shipped(name, family)]
    return fingerprint([*recipes(made), *sorted({b.kernel.cache_key for b in made})])


def fingerprint_of(family: str) -> str:
    """A hash over the options of every build of a family, over the TTIR of its builds for sm_90, and over that of one
    build for each other setting of the kernels' switches, such as those for tensor memory."""
    made = [b for name in TARGETS for b in builds.shipped(name, family)]
    main = [b for b in made if b.architecture == "sm_90"]
    others = {switches(b): b for b in reversed(made)}
    for b in main:
        others.pop(switches(b), None)
    return fingerprint([*recipes(made), *(b.lower() for b in (*main, *others.values()))])


def recipes(made: Iterable[builds.Build]) -> Iterator[str]:
    """How each build is made, but for its kernel."""
    for b in made:
        yield f"{b.architecture} {b.name} {b.constants} {b.options} {b.signature} {b.aligned}{b.near or ''}"


def switches(made: builds.Build) -> tuple[object, ...]:
    """What decides which lines of a kernel are compiled."""
    set_to = (
        (name, value) for name, value in sorted(made.constants.items()) if value is None or value in (False, True)
    )
    return made.kernel, *set_to, *made.signature


def stored_fingerprints() -> dict[str, dict[str, str]]:
    """The fingerprints of each family at the time its table was written."""
    path = FOLDER / "fingerprints.json"
    out: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    return out


def stored_rows(family: str) -> list[Row]:
    """The stored table of a family."""
    with (FOLDER / f"{family}.csv").open(newline="") as file:
        _header, *lines = csv.reader(file)
    return [Row._make(kind(cell) for kind, cell in zip(KINDS, line, strict=True)) for line in lines]


def write_family(family: str, rows: Iterable[Row]) -> None:
    """Renews the table and the fingerprint of one family, and the summary."""
    with (FOLDER / f"{family}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *rows])
    now = {"source": source_of(family), "ttir": fingerprint_of(family)}
    held = stored_fingerprints() | {family: now}
    (FOLDER / "fingerprints.json").write_text(json.dumps(held, indent=2, sort_keys=True) + "\n")
    FOLDER.with_suffix(".md").write_text(summary())


def summary() -> str:
    """The text of ``docs/targets.md``: one line per architecture and kernel, from the stored tables."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for family in builds.FAMILIES:
        for row in stored_rows(family):
            groups.setdefault((row.architecture, row.kernel), []).append(row)
    order = {name: i for i, name in enumerate(TARGETS)}
    lines = [_summary_line(*key, groups[key]) for key in sorted(groups, key=lambda key: order[key[0]])]
    return "\n".join([INTRODUCTION, f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}", *lines]) + "\n"


def _summary_line(architecture: str, kernel: str, rows: Sequence[Row]) -> str:
    registers = [row.registers for row in rows]
    opcodes = {part.split()[0] for row in rows for part in row.tensor_cores.split(", ") if part}
    cells = (
        architecture,
        kernel,
        len(rows),
        f"{min(registers)} to {max(registers)}",
        max(row.spills for row in rows),
        f"{max(row.shared_bytes for row in rows)} B",
        f"{max(row.load_bits for row in rows)} bit",
        f"{min(row.occupancy for row in rows):.2f}",
        ", ".join(name for name in MATRIX if name in opcodes),
    )
    return f"| {' | '.join(map(str, cells))} |"


def print_targets() -> None:
    """``python -m lsp_kernels.info --targets``."""
    made = (b for name in TARGETS for b in builds.representative(name))
    for line in text_table(row_of(b, b.compile()) for b in made):
        print(line, flush=True)

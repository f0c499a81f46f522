"""The file of results that `lsp tune` fills: JSON lines, a header first, then one row for each task and setting.

The header says whose file it is: nothing else is ever shortened or appended to. It may hold fields that all rows
share. One process writes a file at a time.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsp.evaluation.intervals import wilson
from lsp.files import write_whole

FORMAT = "lsp tune 1"
HEADER = json.dumps({"format": FORMAT}) + "\n"
LONGEST_HEADER = 1000
TEXTS, NUMBERS = ("task", "family", "name"), ("passes", "positions")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Keeps other processes from writing to the file, and makes it end with a whole line, the header at least.

    May be nested. The lock is a file beside it that stays: it cannot be removed without a race.
    """
    from filelock import FileLock, Timeout

    target = path.resolve()
    lock = FileLock(target.with_name(f".{target.name}.lock"), timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise RuntimeError(f"Cannot write {path}: another process is writing it") from None
    try:
        check_ours(path)
        if path.exists() and path.stat().st_size:
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # a line that was cut off makes room
        else:
            write_whole(path, HEADER)
        yield
    finally:
        lock.release()


def check_ours(path: Path) -> None:
    """Refuses a file that `lsp tune` has not begun. None, or an empty one, can be begun."""
    if not path.exists():
        return
    with path.open("rb") as file:
        first = file.readline(LONGEST_HEADER)
    if first and _header(first) is None:
        expected = f"a file whose first line is {HEADER.strip()}"
        raise ValueError(f"Invalid {path}: expected {expected}, got another one, which is not changed")


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, with accuracies and their intervals. A last line that was cut off does not count.

    Files of version 0.1, which have no header, can be read too.
    """
    rows: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n")[:-1]
    shared = _header(lines[0] + b"\n") if lines else None
    for number, line in enumerate(lines, 1):
        if number == 1 and shared is not None:
            continue
        try:
            rows.append(_row((shared or {}) | json.loads(line.decode(), parse_constant=_no_number)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            got = f"{type(error).__name__}: {error}"[:200]
            raise ValueError(f"Invalid {path}, line {number}: expected a result of lsp tune, got {got}") from None
    return rows


def _header(line: bytes) -> dict[str, Any] | None:
    """The fields of a header besides its format; None if the line is none."""
    try:
        out = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return out if isinstance(out, dict) and out.pop("format", None) == FORMAT else None


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose fields are what they should be."""
    for name in TEXTS:
        if not isinstance(row[name], str):
            raise TypeError(f"Invalid {name}: expected a text, got {row[name]!r}")
    for name in NUMBERS:
        if isinstance(row[name], bool) or not isinstance(row[name], int | float) or not 0 <= row[name] < math.inf:
            raise TypeError(f"Invalid {name}: expected a number of at least 0, got {row[name]!r}")
    n, right = row["n"], row["right"]
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise TypeError(f"Invalid n: expected an integer of at least 1, got {n!r}")
    if not isinstance(right, str) or len(right) != n or set(right) - {"0", "1"}:
        raise TypeError(f"Invalid right: expected {n} times 0 or 1, got {right!r}")
    solved = right.count("1")
    low, high = wilson(solved, n)
    return row | {"low": low, "high": high, "accuracy": solved / n}


def _no_number(word: str) -> None:
    raise ValueError(f"expected numbers, got {word}")

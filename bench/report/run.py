"""A run: everything that one measurement found, and on which machine, as a file that can be continued and rendered."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from bench.ratios import Report, Row, Target
from lsp.files import write_whole

ROOT = Path(__file__).parents[2]
LATEST = ROOT / ".benchmarks" / "run.json"
FORMAT = "lsp bench 2"


@dataclass
class Run:
    """What each benchmark found, by its name.

    Attributes
    ----------
    machine : dict
        Processor, versions and commit. A run that was continued may have several commits, of the same `sources`.
    sources : dict
        Digests of the folders that the times depend on.
    sessions : list of dict
        When it was measured. There are several where a run was interrupted and continued.
    tests : dict
        Of each benchmark that passed: `seconds` that it took, its `rows` and its `targets`.
    left : list of str
        Benchmarks that were to run and did not pass yet.
    all_families : bool
        Whether the last session was to run everything that no session before it had run.
    """

    machine: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)
    sessions: list[dict[str, str]] = field(default_factory=list)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    all_families: bool = False

    @classmethod
    def read(cls, path: Path) -> Run:
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            got = found.get("format") if isinstance(found, dict) else type(found).__name__
            raise ValueError(f"Invalid format of {path.name}: expected {FORMAT!r}, got {got!r}")
        return cls(**{name: value for name, value in found.items() if name != "format"})

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    def add(self, name: str, seconds: float, report: Report) -> None:
        """What a benchmark found that has passed."""
        rows = [asdict(row) | {"values": rounded(row.values), "facts": rounded(row.facts)} for row in report.rows]
        self.tests[name] = {"seconds": rounded(seconds), "rows": rows, "targets": rounded(report.targets)}
        self.left = [other for other in self.left if other != name]

    def rows(self, family: str | None = None) -> Iterator[Row]:
        """In the order in which they were measured; those of bench_commit.py are of the family "commit"."""
        for name in self.tests:
            if family in (None, family_of(name)):
                yield from self.rows_of(name)

    def rows_of(self, test: str) -> list[Row]:
        return [Row(**row) for row in self.tests[test]["rows"]]

    @property
    def is_new(self) -> bool:
        """Whether nothing of it can be in a file yet."""
        return len(self.sessions) == 1 and "ended" not in self.sessions[0]

    @property
    def is_whole(self) -> bool:
        return self.all_families and not self.left

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(map(family_of, self.tests)))

    @property
    def targets(self) -> list[Target]:
        return [Target(*each) for found in self.tests.values() for each in found["targets"]]

    @property
    def minutes(self) -> float:
        return sum(found["seconds"] for found in self.tests.values()) / 60


def check_whole(run: Run) -> None:
    """What the project shows and compares with are whole runs of real sizes, and no other."""
    if not run.is_whole:
        got = f"{len(run.left)} benchmarks left" if run.left else f"{', '.join(run.families)} alone"
        raise SystemExit(f"Invalid run: expected a whole one (make bench RESUME=1 goes on with it), got {got}")
    if "sizes" in run.machine:
        raise SystemExit("Invalid run: expected real sizes, got tiny ones")


def put_aside(path: Path) -> None:
    """Gives the file of an older run the next free number: run.json becomes run.1.json, then run.2.json."""
    if path.exists():
        names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count(1))
        os.replace(path, next(name for name in names if not name.exists()))


def family_of(test: str) -> str:
    """Of a benchmark, by its file.

    Examples
    --------
    >>> family_of("bench/bench_commit.py::bench_noise[flat]")
    'commit'
    """
    return Path(test.split("::")[0]).stem.removeprefix("bench_")


def tables(rows: Iterator[Row]) -> dict[str, list[Row]]:
    """Rows by the title of their table."""
    out: dict[str, list[Row]] = {}
    for row in rows:
        out.setdefault(row.title, []).append(row)
    return out


def rounded(value: Any) -> Any:
    """The same with five significant digits, in dicts and lists too."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value

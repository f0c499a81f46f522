"""``make bench-check``: which ratios of a run became worse by more than 15 % than those of the baseline.

A ratio is a time of ours over the limit of its own run or, where there is no limit, over a rival in its own run. So two
runs are compared although neither machine nor hour are the same. The exit status is 1 if anything became worse.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.ratios import LIMIT, Row
from bench.report.run import LATEST, ROOT, Run, check_whole, rounded
from lsp.files import write_whole

BASELINE = ROOT / "docs" / "benchmarks" / "baseline.json"
FORMAT = "lsp bench ratios 1"
ALLOWED = 1.15


@dataclass
class Ratios:
    """Ratios of a run by name, and where it was measured."""

    machine: dict[str, str]
    ratios: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> Ratios:
        return cls(run.machine, {name: rounded(ratio) for row in run.rows() for name, ratio in ratios_of(row)})

    @classmethod
    def read(cls, path: Path) -> Ratios:
        """Of a file of ratios or of a run."""
        found = json.loads(path.read_text("utf-8"))
        if isinstance(found, dict) and found.get("format") == FORMAT:
            return cls(found["machine"], found["ratios"])
        return cls.of(Run.read(path))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"format": FORMAT, **vars(self)}, indent=1) + "\n")


def ratios_of(row: Row) -> Iterator[tuple[str, float]]:
    """What is ours over the limit; else over each rival; else, where all are ours, over the one that is shown.

    A 0 is a size too small to be measured, and has no ratio.
    """
    rivals = [name for name in row.values if name not in row.ours]
    bases = [LIMIT] if LIMIT in row.values else rivals or [row.over]
    for ours in row.ours:
        for base in bases:
            if ours != base and row.values.get(ours) and row.values[base]:
                yield f"{row.title}, {row.case}: {ours} / {base}", row.values[ours] / row.values[base]


def compare(old: Ratios, new: Ratios) -> tuple[list[str], list[str]]:
    """What became worse, and remarks: what is in one run alone, and whether the machine is another one."""
    both = [name for name in old.ratios if name in new.ratios]
    grown = {name: new.ratios[name] / old.ratios[name] for name in both}
    worse = [
        f"worse by {100 * (grown[name] - 1):.0f} %: {name} was {old.ratios[name]:.3g}, is {new.ratios[name]:.3g}"
        for name in sorted(both, key=lambda name: -grown[name])
        if grown[name] > ALLOWED
    ]
    remarks = [f"{len(both)} ratios compared"]
    for one, other, where in ((old, new, "the baseline"), (new, old, "the new run")):
        remarks += [f"not compared, only in {where}: {name}" for name in one.ratios if name not in other.ratios]
    if old.machine.get("processor") != new.machine.get("processor"):
        remarks.append(f"the machines differ: {old.machine.get('processor')} and {new.machine.get('processor')}")
    return worse, remarks


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("make bench-check", description=__doc__)
    parser.add_argument(
        "--baseline", type=Path, default=BASELINE, help="ratios or a run; by default the committed ones"
    )
    parser.add_argument("--run", type=Path, default=LATEST, help="a run; by default the last one of make bench")
    parser.add_argument("--accept", action="store_true", help="make the ratios of the run the baseline")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = options().parse_args(arguments)
    for path in [given.run] if given.accept else [given.run, given.baseline]:
        if not path.exists():
            print(f"bench-check: no such file: {path} (make bench writes a run, --accept a baseline)", file=sys.stderr)
            return 2
    new = Ratios.read(given.run)
    if given.accept:
        if given.baseline == BASELINE:
            check_whole(Run.read(given.run))
        new.write(given.baseline)
        print(f"wrote {len(new.ratios)} ratios into {given.baseline}")
        return 0
    worse, remarks = compare(Ratios.read(given.baseline), new)
    print("\n".join([*remarks, *worse]))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m bench.example`` renews the picture of the first example and its numbers in README and docs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import lsp
from lsp.files import write_whole
from lsp.tracing.headline import headline

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "results" / "trace.svg"
PASS = 4  # that `lsp trace` draws unless told otherwise
TOLD = {
    ROOT / "README.md": r"(?<=!\[)[^]]*(?=\]\(docs/results/trace\.svg\))",
    ROOT / "docs" / "play.md": r"(?<=\*)\d[\d,]* pass(es)? and [^*]*(?=\*)",
    ROOT / "docs" / "traces.md": r"(?<=\*)\d[\d,]* pass(es)? and [^*]*(?=\*)",
}
"""Where the pages say the numbers."""


def traces() -> list[lsp.Trace]:
    """What `lsp trace` decodes if nothing is asked."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "example.jsonl"
        command = [sys.executable, "-m", "lsp", "trace", str(path)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return [lsp.Trace.load(path), lsp.Trace.load(path.with_suffix(".full.jsonl"))]


def caption(given: Sequence[lsp.Trace]) -> str:
    """What the picture shows, for who does not see it."""
    counts = [sum(0 <= number < PASS for number in one.committed_in) for one in given]
    first, second = (f"{count} of its {len(one.tokens)}" for count, one in zip(counts, given, strict=True))
    return f"After pass {PASS} the longest stable prefix has {first} tokens, Full {second}"


def renewed(path: Path, given: Sequence[lsp.Trace]) -> str:
    """A page with the numbers of these traces."""
    words = caption(given) if path.name == "README.md" else headline(given)
    text, found = re.subn(TOLD[path], words, path.read_text("utf-8"))
    if found != 1:
        raise ValueError(f"Invalid {path.name}: expected the numbers of the example once, got {found}")
    return text


def main() -> None:
    given = traces()
    for path in TOLD:
        write_whole(path, renewed(path, given))
    subprocess.run([sys.executable, "-m", "lsp", "trace", str(PICTURE)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()

"""The chunks of a comparison, divided over the processes that torchrun has started, each with the whole model.

A chunk is decoded under all settings by one process, so that their times can be compared. With a journal, a run that
was stopped goes on: what it holds is not decoded again, whatever the number of processes is then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from lsp.ranks import Ranks

Chunk = list[dict[str, list[Any]]]
"""For every setting, what a chunk of problems gave: lists with one item per problem, and the seconds."""

PATIENCE = timedelta(days=30)  # a process that is done waits for those that are not


class Workers:
    """This process among those that share the problems.

    Parameters
    ----------
    ranks : Ranks, optional
        The processes; by default this one alone.
    journal : path, optional
        A folder that keeps every chunk that is done.
    about : tuple
        What else results depend on, such as the weights; chunks of other runs are left alone.
    """

    def __init__(self, ranks: Ranks | None = None, journal: Path | None = None, about: Sequence[object] = ()) -> None:
        self.ranks = ranks
        self.rank, self.size = (0, 1) if self.ranks is None else (self.ranks.rank, self.ranks.size)
        self.journal, self.about = journal, about

    def share(self, thing: Any) -> Any:
        """The object of the first process, in every one."""
        return thing if self.ranks is None else self.ranks.share(thing)

    def begin(self, count: int, *about: object) -> Work:
        """Divides `count` chunks of the problems, settings and options in `about`."""
        key = hashlib.sha256(repr((*self.about, *about)).encode()).hexdigest()[:16]
        found = self._read(key) if self.rank == 0 else {}
        if self.ranks is not None:
            self.ranks.check_same(arguments=key)
            found = self.ranks.share(found)
        return Work(self, key, {number: chunk for number, chunk in found.items() if number < count}, count)

    def _read(self, key: str) -> dict[int, Chunk]:
        files = [] if self.journal is None else sorted(self.journal.glob(f"compare-{key}-*.jsonl"))
        return {number: chunk for file in files for number, chunk in _whole_lines(file)}


class Work:
    """The chunks of one comparison.

    Attributes
    ----------
    mine : list of int
        The chunks that are left for this process.
    """

    def __init__(self, workers: Workers, key: str, found: dict[int, Chunk], count: int) -> None:
        self._workers, self._found, self._own = workers, found, dict[int, Chunk]()
        left = [number for number in range(count) if number not in found]
        self.mine = left[workers.rank :: workers.size]
        self._file = None if workers.journal is None else workers.journal / f"compare-{key}-{workers.rank}.jsonl"
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)

    def done(self, number: int, chunk: Chunk) -> None:
        """Keeps a chunk."""
        self._own[number] = chunk
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps([number, chunk]) + "\n")  # after a line that was cut off, if there is one

    def gather(self, flips: dict[int, float]) -> tuple[list[Chunk], dict[int, float]]:
        """All chunks in their order, and the flip rates of all settings, on every rank."""
        ranks = self._workers.ranks
        parts = [(self._own, flips)] if ranks is None else ranks.gather((self._own, flips))
        chunks = self._found | {number: chunk for own, _ in parts for number, chunk in own.items()}
        return [chunks[number] for number in sorted(chunks)], {i: rate for _, each in parts for i, rate in each.items()}


def _whole_lines(file: Path) -> Iterator[tuple[int, Chunk]]:
    """The chunks of a file; a line that was cut off is none."""
    for line in file.read_text("utf-8").splitlines():
        try:
            number, chunk = json.loads(line) if line else (None, None)
        except ValueError:
            continue
        if isinstance(number, int) and isinstance(chunk, list):
            yield number, chunk

"""Tensor memory (sm_100): 128 lanes of 512 columns of 32 bits, and the mmas that are going to write it.

An address is lane << 16 | column. What is written when, and who may look at it, is in `tensor_order.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .dtypes import Array
from .errors import AccessError, PtxError
from .shared_order import WARPS, Reader

LANES, COLUMNS = 128, 512
GARBAGE = 0xFFBADBAD
Place = tuple[Array, Array]  # lanes and columns that index the memory together


@dataclass(frozen=True)
class Tile:
    """A matrix of an mma: 128 rows in all lanes, or 64 rows in 16 of every 32 lanes, from lane 0 or 16 on."""

    rows: int
    lane: int
    column: int
    width: int

    @classmethod
    def at(cls, address: int, rows: int, width: int) -> Tile:
        lane, column = address >> 16, address & 0xFFFF
        if lane not in ((0, 16) if rows == 64 else (0,)):
            raise PtxError(f"a matrix of {rows} rows at lane {lane} of tensor memory")
        return cls(rows, lane, column, width)

    @property
    def place(self) -> Place:
        i = np.arange(self.rows)
        lanes = i // 16 * 32 + i % 16 + self.lane if self.rows == 64 else i
        return lanes[:, None], self.column + np.arange(self.width)[None, :]

    def covers(self, place: Place) -> Array:
        lanes, columns = place
        inside = (columns >= self.column) & (columns < self.column + self.width)
        return inside if self.rows == LANES else inside & (lanes % 32 // 16 == self.lane // 16)


@dataclass(eq=False)
class Batch:
    """The mmas that a thread issued until its commit, and which warps know that they are done."""

    thread: int
    products: list[Callable[[], None]] = field(default_factory=list)  # run in their order when the batch is done
    operands: set[Tile] = field(default_factory=set)  # A in tensor memory
    targets: set[Tile] = field(default_factory=set)
    readers: list[Reader] = field(default_factory=list)  # of shared memory
    known: Array = field(default_factory=lambda: np.zeros(WARPS, bool))
    known_at: Array = field(default_factory=lambda: np.zeros(WARPS, np.int64))

    def run(self) -> None:
        products, self.products = self.products, []
        for product in products:
            product()


class TensorMemory:
    """The tensor memory of one CTA, with at most one allocation at a time."""

    def __init__(self) -> None:
        self.words = np.full((LANES, COLUMNS), GARBAGE, np.uint32)
        self.written = np.zeros((LANES, COLUMNS), bool)
        self.allocated: tuple[int, int] | None = None  # first column and number of columns
        self.may_allocate = True
        self.loads: list[tuple[int, Array]] = []  # registers that tcgen05.wait::ld will fill, with their values
        self.open: dict[int, Batch] = {}  # mmas without a commit, by thread
        self.committed: list[Batch] = []  # and not done

    def within(self, place: Place, what: str) -> None:
        lanes, columns = place
        first, count = self.allocated or (0, 0)
        if lanes.min() < 0 or lanes.max() >= LANES or columns.min() < first or columns.max() >= first + count:
            raise AccessError(f"tensor memory: {what} outside of what is allocated")

    def read(self, place: Place, what: str) -> Array:
        if not self.written[place].all():
            raise AccessError(f"tensor memory: {what} of a word that was never written")
        return self.words[place]

    def write(self, place: Place, values: Array) -> None:
        self.words[place] = values
        self.written[place] = True

    def commit(self, thread: int) -> list[Batch]:
        """All mmas of a thread that are not done."""
        if thread in self.open:
            self.committed.append(self.open.pop(thread))
        return [batch for batch in self.committed if batch.thread == thread]

    def finish(self, batches: list[Batch]) -> None:
        for batch in batches:
            batch.run()
        self.committed = [batch for batch in self.committed if batch.products]

    def check_finished(self) -> None:
        if self.open or self.committed:
            raise PtxError("the kernel ends before anybody has waited for all of its tcgen05.mma")
        if self.allocated is not None:
            raise PtxError("the kernel ends before it has freed its tensor memory")

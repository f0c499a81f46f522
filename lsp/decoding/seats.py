"""Which sequences are decoded together, if there are more than a batch holds. A finished one gives its seat away."""

from __future__ import annotations

from collections.abc import Sequence

from lsp.decoding.canvas import Canvas
from lsp_kernels import PrefixCache


class Seats:
    """One seat for each row of the cache: the canvas in seat b has row b. Canvases sit down in the order given.

    With guidance the rows are twice as many as the seats: the second half is that of the twins.

    Attributes
    ----------
    numbers : list of int
        Which canvas, by its number, sits in each seat.
    """

    def __init__(self, canvases: Sequence[Canvas], cache: PrefixCache) -> None:
        self._canvases, self._cache = canvases, cache
        self._guided = any(canvas.twin is not None for canvas in canvases)
        seats = min(cache.batch // (1 + self._guided), len(canvases))
        self.numbers = list(range(seats))
        self._waiting = iter(range(seats, len(canvases)))

    @property
    def canvases(self) -> list[Canvas]:
        """The canvas in each seat."""
        return [self._canvases[number] for number in self.numbers]

    def fill(self) -> bool:
        """Gives the seats of finished canvases to those that wait, and says whether there is anything left to decode.

        A finished canvas keeps its seat when nobody waits; a pass over it is empty.
        """
        free = [seat for seat, canvas in enumerate(self.canvases) if not canvas.active]
        for seat in free:
            self.canvases[seat].history.clear()
        taken = [seat for seat in free if self._seat_next(seat)]
        for row in self.rows(taken):
            self._cache.release(row)  # it still holds the prefix of the one who left
        return len(taken) > 0 or len(free) < len(self.numbers)

    def rows(self, seats: Sequence[int]) -> list[int]:
        """The rows of the cache that belong to these seats."""
        return [*seats, *(len(self.numbers) + seat for seat in seats if self._guided)]

    def _seat_next(self, seat: int) -> bool:
        """Seats the next canvas that has something to decode; says whether there is one."""
        number = next((number for number in self._waiting if self._canvases[number].active), None)
        if number is None:
            return False
        self.numbers[seat] = number
        return True

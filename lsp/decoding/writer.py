"""The text of a sequence while it is decoded: complete characters, and no further than a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lsp.decoding.canvas import Canvas

INCOMPLETE = "\ufffd"  # what a decoder gives for the bytes of an unfinished character


class Writer:
    """Follows the committed run of a canvas and ends it at a stop string, which counts after the last given token only.

    Attributes
    ----------
    text : str
        What is final so far.
    stopped : bool
        Whether a stop string has ended it.
    final_tokens : int
        How many tokens lie wholly within `text`: with stop strings, those that can no longer become part of one.
    """

    def __init__(self, canvas: Canvas, tokenizer: Any, stops: Sequence[str]) -> None:
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise ValueError(f"Invalid stop: expected texts that are not empty, got {list(stops)!r}")
        self.canvas, self.tokenizer, self.stops = canvas, tokenizer, stops
        self.text, self.stopped = "", False
        self._shown = self._seen = self._final = 0

    def update(self) -> None:
        """Reads what the last pass has committed."""
        run = self.canvas.run
        if self.tokenizer is None or self.stopped or (len(run) == self._seen and self.canvas.active):
            return
        self._seen = len(run)
        text = self._decode(len(run))
        begin = self._searched_from()
        if any(text.find(stop, begin) >= 0 for stop in self.stops):
            self._stop(begin)
        elif self.canvas.active:
            text = text.rstrip(INCOMPLETE)
            self.text = text[: len(text) - self._may_become_a_stop(text[begin:])]
        else:
            self.text = text

    @property
    def final_tokens(self) -> int:
        if not self.stops:
            return len(self.canvas.run)
        final = (n for n in range(self._seen, self._final, -1) if self.text.startswith(self._decode(n)))
        self._final = next(final, self._final)
        return self._final

    def piece(self) -> str:
        """What has become final since the last call."""
        begin, self._shown = self._shown, max(self._shown, len(self.text))
        return self.text[begin : self._shown]

    def _decode(self, length: int) -> str:
        out: str = self.tokenizer.decode(self.canvas.run[:length].tolist(), skip_special_tokens=True)
        return out

    def _searched_from(self) -> int:
        """Where the text begins that a stop string may end: after all that was given."""
        return len(self._decode(self.canvas.tail - self.canvas.start)) if self.stops else 0

    def _stop(self, begin: int) -> None:
        """Ends at the fewest tokens whose text holds a stop string, so it does not matter how many came at once."""
        for n in range(1, self._seen + 1):
            text = self._decode(n)
            if found := [at for stop in self.stops if (at := text.find(stop, begin)) >= 0]:
                self.text, self.stopped = text[: min(found)], True
                return self.canvas.finish(self.canvas.start + n)

    def _may_become_a_stop(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop string."""
        longest = max((len(stop) for stop in self.stops), default=0)
        for n in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self.stops):
                return n
        return 0

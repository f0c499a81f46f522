"""A trace while it is recorded: what a page needs after every pass, in the form of the file."""

from __future__ import annotations

from typing import Any

from lsp.generation import Run
from lsp.schedulers import scheduler_of
from lsp.tracing.compact import Shortener
from lsp.tracing.recorder import Recorder, traced, words_of
from lsp.tracing.records import Trace
from lsp.tracing.storage import head_of


class Live:
    """One prompt that is decoded pass by pass. Takes the arguments of `lsp.trace`.

    Examples
    --------
    >>> import lsp
    >>> live = Live(lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\\n", max_new_tokens=32)
    >>> while news := live.step():
    ...     last = news
    >>> (last["passes"], last["positions"]) == (live.trace.passes, live.trace.positions)
    True
    """

    def __init__(self, model: Any, prompt: Any, *, scheduler: Any = None, **arguments: Any) -> None:
        self._recorder = Recorder(scheduler_of(scheduler))
        self._run = Run(model, prompt, scheduler=self._recorder, **arguments)
        if len(self._run.prompts) != 1:
            raise ValueError(f"Invalid prompt: expected a single one, got {len(self._run.prompts)}")
        self._passes = iter(self._run)
        self._shorten = Shortener()
        self._known: set[int] = set()

    @property
    def trace(self) -> Trace:
        """All that has happened."""
        return traced(self._run, self._recorder, 0, self._run.generations()[0])

    @property
    def head(self) -> dict[str, Any]:
        """What concerns the whole, as the first line of the file has it; and `given`: offsets and tokens after a mask.

        Before the last pass it says what is known so far.
        """
        canvas = self._run.state.canvases[0]
        given = [
            [at, int(canvas.tokens[canvas.start + at])] for at in canvas.given[canvas.start :].nonzero()[0].tolist()
        ]
        head = head_of(self.trace)
        head["pieces"] |= self._words([token for _, token in given])["pieces"]
        self._known.update(head["pieces"])
        return {**head, "given": given}

    def step(self) -> dict[str, Any] | None:
        """Runs the next pass: its line, the texts of tokens that are new, and what the run has cost. None at the end.

        Seconds are those of decoding, without what the recording takes.
        """
        if next(self._passes, None) is None:
            return None
        record, canvas = self._recorder.steps[0][-1], self._run.state.canvases[0]
        seconds = sum(self._run.state.clock.seconds.values()) - self._recorder.seconds
        return {
            "line": self._shorten(record),
            **self._words([*record.tokens, *record.written]),
            "passes": canvas.passes,
            "positions": canvas.positions,
            "seconds": round(max(0.0, seconds), 4),
        }

    def _words(self, tokens: list[int]) -> dict[str, Any]:
        """Texts, delimiters and stops of the tokens that are new."""
        fresh = sorted({*tokens} - self._known)
        self._known.update(fresh)
        return words_of(self._run, fresh)

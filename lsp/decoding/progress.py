"""How far decoding has come, and an error that keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lsp.decoding.canvas import Canvas
from lsp.decoding.clock import Clock


@dataclass
class Progress:
    """What has happened so far; yielded after every pass.

    Attributes
    ----------
    canvases : list of Canvas
        One per prompt, in their order, also those that are finished and those that wait for a seat. Each counts its own
        passes.
    passes : int
        Passes of the loop, over whatever was seated. The field calls it NFE.
    in_pass : list of int
        The numbers of the prompts whose canvases the last pass went over.
    clock : Clock
    """

    canvases: list[Canvas]
    passes: int = 0
    in_pass: list[int] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    @contextmanager
    def kept(self, part: str) -> Iterator[None]:
        """If `part` of the model raises after something was committed, the error holds what was."""
        try:
            yield
        except DecodingError:  # an inner part has said it
            raise
        except Exception as error:
            if self.passes == 0:  # nothing to keep
                raise
            what = f"{part} raised {type(error).__name__} in pass {self.passes}: {error}"
            raise DecodingError(f"{what}; nothing of this pass was committed", self) from error


class DecodingError(RuntimeError):
    """A pass that failed or cannot be used. `progress` holds all that was committed before it."""

    def __init__(self, message: str, progress: Progress) -> None:
        super().__init__(message)
        self.progress = progress

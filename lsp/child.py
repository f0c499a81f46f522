"""A child process that answers one line of JSON with one line of JSON.

For what must not harm this process: the child sets its own limits, then says that it is ready, so that one that cannot
start is told from one that a question has killed. What it does is a script of its own that imports no `lsp`.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

READY = b"ready\n"


class CannotStartError(RuntimeError):
    """The child did not become ready."""


class GoneError(RuntimeError):
    """The child died of a question, or did not answer in time and was killed."""


class Child:
    """A running child, ready to be asked. Ends with its `with` block.

    Parameters
    ----------
    command : sequence of str
        Prints ``ready``, then for each line of JSON from stdin one line of JSON.
    seconds : float
        How long it may take to become ready.
    """

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        try:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors)
        except OSError as error:
            self._errors.close()
            raise CannotStartError(f"{command[0]}: {error.strerror}") from error
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        first = self._line(seconds)
        if first != READY:
            why = self._why() if first == b"" else f"expected {READY!r} within {seconds:g} s, got {first!r}"
            self.close()
            raise CannotStartError(why)

    def ask(self, question: Any, seconds: float) -> Any:
        """The answer to a question. A child that gives none within this time is killed."""
        asked = json.dumps(question).encode() + b"\n"
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(asked)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:  # a pipe that nobody reads, or that is closed
            self.close()
            raise GoneError("it has ended") from error
        line = self._line(seconds)
        if line is None or not line.endswith(b"\n"):
            self.close()
            raise GoneError(f"no answer within {seconds:g} s" if line is None else "it has ended")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # what it had not read yet has no reader
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read(self) -> None:
        """Passes on what the child prints, and an empty line when it has ended. Runs in a thread of its own."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(b"")

    def _line(self, seconds: float) -> bytes | None:
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def _why(self) -> str:
        """The last thing that a child which has ended said on stderr, or how it ended."""
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"it ended with code {code}" + (f": {said[-1]}" if said else "")

"""The `lsp` command: one line for every error, and the exit codes. The commands are the other files of this folder.

`import lsp` does not need typer and rich, which the commands need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from lsp.extras import needed_by
from lsp.tracing.printable import printable

USAGE, FAILURE, INTERRUPTED = 2, 1, 130


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code: 0, 1 for failures, 2 for bad usage, 130 for an interrupt."""
    try:
        with needed_by("the lsp command"):
            from lsp.cli.app import app

        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # an answer is not lost to a terminal that cannot show it
        code = app(list(arguments), prog_name="lsp", standalone_mode=False)
        sys.stdout.flush()
        return fail("interrupted", INTERRUPTED) if code == INTERRUPTED else code or 0
    except BrokenPipeError:
        return leave_quietly()
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except Exception as error:
        if (os.environ.get("LSP_DEBUG") or "--debug" in arguments) and not hasattr(error, "format_message"):
            raise
        return fail(in_words(error), USAGE if is_usage(error) else FAILURE)


def fail(what: object, code: int) -> int:
    """Says in one line what went wrong."""
    print(f"lsp: error: {printable((str(what).strip() or type(what).__name__).splitlines()[0])}", file=sys.stderr)
    return code


def is_usage(error: Exception) -> bool:
    """Whether the arguments are to blame: those that typer refuses, and those that the library does."""
    return hasattr(error, "format_message") or isinstance(error, ValueError | TypeError)


def in_words(error: Exception) -> object:
    if hasattr(error, "format_message"):  # of click, which some versions of typer bring along under another name
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return error


def leave_quietly() -> int:
    """The reader of the output is gone: redirect what is left, so that it does not raise again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILURE


__all__ = ["main", "run"]

"""What went wrong, as the status and the one sentence of an answer; our own failures are in the log, too."""

from __future__ import annotations

import logging
from typing import Any

from starlette.requests import ClientDisconnect

LOG = logging.getLogger(__name__)


class TooLarge(ValueError):
    """A request with more bytes than allowed."""


class NoSuchModel(ValueError):
    """Another model than the one that is here."""


class Busy(Exception):
    """The line is as long as it may be, or a picture is being drawn."""


class Left(Exception):
    """Nobody waits for the next event any longer."""


class Unread(Exception):
    """The events were not read for too long."""


STATUS = {
    NoSuchModel: 404,
    Unread: 408,
    TooLarge: 413,
    Left: 499,
    ClientDisconnect: 499,
    Busy: 503,
    ModuleNotFoundError: 501,
    ValueError: 400,
    TypeError: 400,
}


def status_of(error: Exception) -> int:
    """The status of an error: the question was wrong, or too large, or there are too many; or we have failed."""
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


def sentence(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def problem_of(error: Exception) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    kind = "invalid_request_error" if isinstance(error, ValueError | TypeError) else "server_error"
    code = "model_not_found" if isinstance(error, NoSuchModel) else None
    return {"error": {"message": sentence(error), "type": kind, "param": None, "code": code}}


def note(error: Exception) -> None:
    """Logs a failure of ours with its traceback, once, however often it is passed on."""
    if status_of(error) == 500 and not getattr(error, "noted", False):
        error.noted = True  # type: ignore[attr-defined]
        LOG.error("a request has failed", exc_info=error)

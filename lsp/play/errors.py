"""What went wrong, as the status and the one sentence of an answer."""

from __future__ import annotations


class TooLarge(ValueError):
    """A request with more bytes than allowed."""


class NoSuchModel(ValueError):
    """Another model than the one that is here."""


class Busy(Exception):
    """The line is as long as it may be."""


STATUS = {NoSuchModel: 404, TooLarge: 413, Busy: 503, ModuleNotFoundError: 501, ValueError: 400, TypeError: 400}


def status_of(error: Exception) -> int:
    """The status of an error: the question was wrong, or too large, or there are too many; or we have failed."""
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


def sentence(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

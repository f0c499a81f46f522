"""JSON of a request, read field by field: every field is checked, and one that nobody knows is refused."""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

T = TypeVar("T")

WORDS = {str: "a text", int: "an integer", float: "a number", bool: "true or false", list: "a list", dict: "an object"}


class Fields:
    """The fields of an object; each is taken once. One that is null is as good as absent."""

    def __init__(self, given: Any, what: str = "request") -> None:
        if not isinstance(given, dict):
            raise ValueError(f"Invalid {what}: expected an object, got {shown(given)}")
        self.left, self.what = {name: value for name, value in given.items() if value is not None}, what

    def take(self, name: str, kind: type[T], default: T | None = None) -> T | None:
        """The field, which may be absent."""
        value = self.left.pop(name, None)
        if value is None:
            return default
        if kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"Invalid {name}: expected {WORDS[kind]}, got {shown(value)}")
        return value  # type: ignore[no-any-return]

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int | None:
        """An integer in a range, which may be absent."""
        value = self.take(name, int, default)
        if value is not None and not least <= value <= most:
            raise ValueError(f"Invalid {name}: expected from {least} to {most}, got {value}")
        return value

    def text(self, name: str, most: int, default: str | None = None) -> str:
        """A text, which must be there if there is no default."""
        value = self.take(name, str, default)
        if value is None:
            raise ValueError(f"Invalid {name}: expected a text, got none")
        if len(value) > most:
            raise ValueError(f"Invalid {name}: expected at most {most} characters, got {len(value)}")
        return whole(name, value)

    def close(self) -> None:
        """Refuses fields that nobody took."""
        for name, value in self.left.items():
            raise ValueError(f"Invalid {self.what}: expected no field {name[:60]!r}, got {shown(value)}")


def parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Invalid request: expected JSON, got {error}") from None


def whole(name: str, text: str) -> str:
    """The text, if it can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"Invalid {name}: expected text in UTF-8, got {shown(text)}") from None
    return text


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"

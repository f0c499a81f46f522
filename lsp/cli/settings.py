"""Schedulers from text: a name, and ``name=value`` for their fields and for those of their rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lsp.decoding.scheduler import Scheduler
from lsp.schedulers import NAMES, scheduler_of

WORDS = {bool: "true or false", int: "an integer", float: "a number", NoneType: "none"}


def scheduler(name: str | None = None, settings: Sequence[str] = ()) -> Scheduler:
    """The scheduler of that name with these settings; without a name the default of `lsp.generate`.

    Examples
    --------
    >>> scheduler("threshold", ["p=0.95"])
    Threshold(p=0.95)
    >>> scheduler("paper", ["alpha=0.1"]).rule.alpha
    0.1
    """
    name = name or "lsp"
    out: Any = scheduler_of(name)
    own, of_rule = _hints(out), _hints(out.rule) if hasattr(out, "rule") else {}
    values: dict[str, Any] = {}
    rule_values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or (key not in own and key not in of_rule):
            raise ValueError(f"Invalid setting {setting!r} of {name}: expected name=value with {known(name)}")
        target, hints = (values, own) if key in own else (rule_values, of_rule)
        target[key] = value(key, hints[key], text)
    if of_rule:
        values["rule"] = replace(out.rule, **rule_values)
    changed: Scheduler = replace(out, **values)
    return changed


def known(name: str) -> str:
    """What can be set of a scheduler, with its defaults, in words."""
    return ", ".join(f"{key}={text}" for key, text in defaults(name).items())


def defaults(name: str) -> dict[str, str]:
    """What can be set of a scheduler: names, and the defaults as text."""
    out: Any = scheduler_of(name)
    found = {key: shown(getattr(out, key)) for key in _hints(out)}
    if hasattr(out, "rule"):
        found |= {key: shown(getattr(out.rule, key)) for key in _hints(out.rule)}
    return found


def names() -> str:
    return ", ".join(NAMES)


def _hints(instance: Any) -> dict[str, Any]:
    hints = get_type_hints(type(instance))
    return {f.name: hints[f.name] for f in fields(instance) if f.init and f.name != "rule"}


def shown(value: Any) -> str:
    """A value as it is written in a setting."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def value(name: str, hint: Any, text: str) -> Any:
    """A value of the type that a field is declared with."""
    try:
        return _value(hint, text)
    except ValueError:
        raise ValueError(f"Invalid {name}: expected {_words(hint)}, got {text!r}") from None


def _value(hint: Any, text: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if text.lower() == "none" and NoneType in arguments:
            return None
        return _value(next(a for a in arguments if a is not NoneType), text)
    if origin is tuple:
        return tuple(map(_value, arguments, _exactly(len(arguments), text.split(","))))
    if origin is Literal:
        return arguments[arguments.index(text)]
    if hint is bool:
        return {"true": True, "false": False}[_one_of({"true": True, "false": False}, text.lower())]
    return hint(text)


def _one_of(choices: Any, text: str) -> str:
    if text not in choices:
        raise ValueError(text)
    return text


def _exactly(n: int, parts: list[str]) -> list[str]:
    if len(parts) != n:
        raise ValueError(parts)
    return parts


def _words(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_words, arguments))
    if origin is tuple:
        return f"{len(arguments)} numbers with commas between"
    if origin is Literal:
        return " or ".join(arguments)
    return WORDS[hint]


__all__ = ["NAMES", "defaults", "known", "names", "scheduler", "shown", "value"]

"""The file of a trace: JSON lines, first what concerns the whole, then one line a pass (docs/traces.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from lsp.files import write_whole
from lsp.tracing.compact import LARGEST_POSITION, expand, shorten
from lsp.tracing.records import PassRecord, RuleRecord, Trace

FORMAT, FORMAT_2, FORMAT_1 = "lsp trace 3", "lsp trace 2", "lsp trace 1"


def save(trace: Trace, path: str | Path) -> None:
    """Writes the file; if that fails, an older one is kept."""
    write_whole(path, to_text(trace))


def to_text(trace: Trace) -> str:
    """What the file holds."""
    lines = [{"format": FORMAT, **head_of(trace)}, *shorten(trace.steps)]
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)


def head_of(trace: Trace) -> dict[str, Any]:
    """What concerns the whole: all but the passes."""
    return {f.name: getattr(trace, f.name) for f in fields(trace) if f.name != "steps"}


def load(path: str | Path) -> Trace:
    """Reads what `save` wrote, also in the two older formats. A file that is not whole, or none, is refused by name."""
    return from_bytes(Path(path).read_bytes(), str(path))


def from_bytes(data: bytes, name: str) -> Trace:
    """`load` for what a file of that name holds."""
    with _refused(name):
        head, *lines = (json.loads(line, parse_constant=_constant) for line in data.decode().strip("\r\n").split("\n"))
        return _trace(head, lines)


def from_lines(head: dict[str, Any], lines: list[dict[str, Any]], name: str) -> Trace:
    """`load` for lines that are read already."""
    with _refused(name):
        return _trace(head, lines)


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """What cannot be read inside is refused by this name."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"Invalid {name}: expected JSON lines of {FORMAT!r}, got {what}") from error


def _trace(head: dict[str, Any], lines: list[dict[str, Any]]) -> Trace:
    written_as = head.pop("format")
    if written_as not in (FORMAT, FORMAT_2, FORMAT_1):
        raise ValueError(f"the format {written_as!r}")
    if written_as == FORMAT_1:
        _upgrade(head, lines)
    if head["passes"] != len(lines):
        raise ValueError(f"{len(lines)} of {head['passes']} passes")
    head["pieces"] = {int(token): text for token, text in head["pieces"].items()}
    steps = expand(lines) if written_as == FORMAT else [_step(line) for line in lines]
    trace = Trace(**head, steps=steps)
    _check(trace)
    return trace


def _step(line: dict[str, Any]) -> PassRecord:
    """A pass of the first two formats, which wrote everything out."""
    return PassRecord(**line | {"rule": line["rule"] and RuleRecord(**line["rule"])})


def _upgrade(head: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Turns the first format into the second one, in place: it had no words of the scheduler."""
    head.update(name=head["scheduler"].partition("(")[0], notes=[])
    for line in lines:
        line.update(masks_in_pass=line.pop("positions"), reason="")
        if line["rule"]:
            line["rule"]["stopped"] = False


def _constant(word: str) -> float | None:
    """What is not JSON but may be in a file: a floor can be infinite; a number that is none is unknown."""
    return math.inf if word == "Infinity" else None


def _check(trace: Trace) -> None:
    """Every field has its type, lists that belong together have one length, and what is counted is there."""
    if not isinstance(trace.options, dict):
        raise TypeError(f"{trace.options!r:.60} for options")
    if trace.verdict not in (None, "right", "wrong"):
        raise ValueError(f"the verdict {trace.verdict!r:.60}")
    _check_types(trace)
    _check_lengths("tokens and committed_in", trace.tokens, trace.committed_in)
    _check_range("max_new_tokens", [trace.max_new_tokens], 0, LARGEST_POSITION)
    _check_range("the number of tokens", [len(trace.tokens)], 0, trace.max_new_tokens)
    _check_range("committed_in", trace.committed_in, -1, trace.passes)
    first, end = len(trace.prompt), len(trace.prompt) + trace.max_new_tokens
    for step in trace.steps:
        _check_types(step)
        if step.rule is not None:
            _check_types(step.rule)
        _check_lengths("masks and their values", step.masks_in_pass, step.tokens, step.margins, step.confidence)
        _check_lengths("chosen and written", step.chosen, step.written)
        for name in ("masks", "masks_in_pass", "chosen"):
            _check_range(name, getattr(step, name), first, end - 1)
        _check_range("end", [step.end], 0, end)
        for name in ("frozen", "begin"):
            _check_range(name, [getattr(step, name)], 0, step.end)
        if step.rule is not None:
            _check_rule(step.rule, len(step.masks))


def _check_rule(rule: RuleRecord, masks: int) -> None:
    for name in ("n", "lo", "hi", "candidate", "snap", "length"):
        _check_range(name, [getattr(rule, name) or 0], 0, masks)
    _check_range("the number of prefix_min", [len(rule.prefix_min)], 0, masks)


def _check_range(what: str, found: Sequence[int], least: int, most: int) -> None:
    for value in (min(found), max(found)) if found else ():
        if not least <= value <= most:
            raise ValueError(f"{value} for {what}, not from {least} to {most}")


def _check_lengths(what: str, *lists: Sequence[Any]) -> None:
    if len({len(each) for each in lists}) > 1:
        raise ValueError(f"different numbers of {what}: {[len(each) for each in lists]}")


def _check_types(record: Trace | PassRecord | RuleRecord) -> None:
    hints = get_type_hints(type(record))
    for f in fields(record):
        value, hint = getattr(record, f.name), hints[f.name]
        if f.name in ("steps", "rule", "options"):  # checked by themselves; values of options are shown as they are
            continue
        inner: Iterable[Any] = (value,)
        if get_origin(hint) in (list, dict):
            if not isinstance(value, get_origin(hint)):
                raise TypeError(f"{value!r:.60} for {f.name}")
            inner, hint = value.values() if isinstance(value, dict) else value, get_args(hint)[-1]
        allowed = _types(hint)
        for each in inner:
            if type(each) not in allowed:
                raise TypeError(f"{each!r:.60} for {f.name}")


def _types(hint: Any) -> set[type]:
    """The types that JSON has for a hint."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    out = {NoneType if kind is None else kind for kind in kinds}
    return out | {int} if float in out else out

"""``python -m bench.results`` writes the tables of docs/results.md from the results in docs/results.

Nothing is measured: `lsp tune`, `lsp growth` and `lsp compare` have written the files, by the commands on the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.report.markdown import table, with_sections
from bench.report.run import ROOT
from lsp.evaluation import growth, results, tables, verdict
from lsp.evaluation.grid import describe, variants
from lsp.files import write_whole
from lsp.schedulers import LongestStablePrefix
from lsp_kernels import PrefixRule

FILES = ("growth", "compare", "template")
PAGE = ROOT / "docs" / "results.md"
PRESET = LongestStablePrefix()
LOOPS = {
    "Fast-dLLM's loop, {cache} cache, the tail decoded": " cache={cache} stop_early=False",
    "the same in our loop, ended by a stop": " cache={cache}",
}
"""Threshold 0.9 in blocks of 32 as Fast-dLLM's authors run it, and what our loop alone changes."""


def main(page: Path = PAGE) -> None:
    write_whole(page, with_sections(page.read_text("utf-8"), sections(page.parent / "results")))
    print(f"wrote the tables of {page}")


def sections(folder: Path) -> dict[str, str]:
    """The tables by the names of their places on the page."""
    dev, test = (results.read(folder / f"{name}.jsonl") for name in ("dev", "test"))
    grown, compared, second = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in FILES)
    rows = compared.pop("rows")
    preset = describe(PRESET, PRESET.options)
    return {
        "neighbours": neighbours(dev),
        "dev": lower(verdict.over_all_tasks(dev, preset)),
        "judged": lower(verdict.verdict(test, preset)),
        "loop": loops(test, preset),
        "growth": growth.markdown(grown["rows"]),
        "templates": templates(rows, second["rows"]),
        "traces": wordings(test, results.read(folder / "template.jsonl")),
        "compare": lower(tables.markdown(rows, compared)),
    }


def lower(text: str) -> str:
    """Headings one level further down, as parts of a section."""
    return text.replace("## ", "### ").lstrip("\n")


def by_task(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of each task by the names of their settings."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        out.setdefault(row["task"], {})[row["name"]] = row
    return out


def cell(row: dict[str, Any] | None) -> str:
    """Solved in %, passes and positions."""
    return "" if row is None else f"{100 * row['accuracy']:.1f} / {row['passes']:.2f} / {row['positions']:.0f}"


def neighbours(dev: Sequence[dict[str, Any]]) -> str:
    """The preset and everything that differs from it in one thing or a few, on every task."""
    found, lines = by_task(dev), []
    for scheduler, options in variants(PRESET):
        name = describe(scheduler, options)
        words = ", ".join([*changes(scheduler, PRESET), *changes(options, PRESET.options)])
        words = words if scheduler.rule.floor is not None else "the paper's preset"
        lines.append([words or "**the preset**", *(cell(rows.get(name)) for rows in found.values())])
    return table(["", *found], lines)


def changes(thing: Any, other: Any) -> Iterator[str]:
    """The fields that are not as in the other, in words."""
    for field in fields(thing):
        value, usual = getattr(thing, field.name), getattr(other, field.name)
        if isinstance(value, PrefixRule):
            yield from changes(value, usual)
        elif field.compare and field.init and value != usual:
            yield f"{field.name.replace('_', ' ')} {str(value).lower()}"


def loops(test: Sequence[dict[str, Any]], preset: str) -> str:
    """What the loop gains over Fast-dLLM's, and what the scheduler gains on top of it."""
    found = by_task(test)
    names = [
        (
            words.format(cache={"block": "prefix"}.get(cache, cache)),
            f"Threshold block_length=32{end.format(cache=cache)}",
        )
        for cache in ("block", "dual")
        for words, end in LOOPS.items()
    ]
    lines = [
        [words, *(cell(of.get(name)) for of in found.values())] for words, name in (*names, ("the preset", preset))
    ]
    return table(["", *found], lines)


def templates(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> str:
    """What every setting of a comparison solves with each wording of the prompts, where the tail is dropped."""
    one, other = ({(row["task"], row["scheduler"]): row for row in rows if not row["tail"]} for rows in (first, second))
    tasks, names = (list(dict.fromkeys(key[i] for key in other if key in one)) for i in (0, 1))
    return table(
        ["", *tasks], ([name, *(both(one[task, name], other[task, name]) for task in tasks)] for name in names)
    )


def wordings(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> str:
    """The same for the settings that `lsp tune` has run with both wordings."""
    one, other = by_task(first), by_task(second)
    names = list(dict.fromkeys(row["name"] for row in second))
    pairs = ((name, [(one[task].get(name), rows.get(name)) for task, rows in other.items()]) for name in names)
    return table(
        ["", *other], ([name, *("" if a is None or b is None else both(a, b) for a, b in of)] for name, of in pairs)
    )


def both(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Solved in %, and in how many passes, with the first wording and with the second one."""
    return " → ".join(f"{100 * row['accuracy']:.0f} / {row['passes']:.1f}" for row in (first, second))


if __name__ == "__main__":
    main()

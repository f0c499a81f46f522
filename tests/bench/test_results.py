"""The tables of docs/results.md are what the results beside it say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lsp
from bench import results
from bench.report import markdown
from lsp_kernels import PrefixRule

PAGE = results.PAGE


def row(task: str, name: str, right: str, passes: float, positions: float) -> dict[str, object]:
    accuracy = right.count("1") / len(right)
    return {"task": task, "name": name, "right": right, "accuracy": accuracy, "passes": passes, "positions": positions}


def test_the_page_has_the_tables_of_the_results() -> None:
    on_page = markdown.sections(PAGE.read_text("utf-8"))
    assert on_page == results.sections(PAGE.parent / "results")


def test_a_page_is_written_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "results.md"
    page.write_text("a\n<!-- benchmarks: loop -->\nold\n<!-- benchmarks: end -->\nb\n")
    seen = []
    monkeypatch.setattr(results, "sections", lambda folder: seen.append(folder) or {"loop": "new\n"})
    results.main(page)
    assert page.read_text() == "a\n<!-- benchmarks: loop -->\nnew\n<!-- benchmarks: end -->\nb\n"
    assert seen == [tmp_path / "results"]


def test_what_differs_from_the_default_is_said_in_words() -> None:
    default = lsp.LongestStablePrefix()
    other = replace(default, rule=replace(default.rule, floor=2.0), islands=None)
    assert list(results.changes(other, default)) == ["floor 2.0", "islands none"]
    assert list(results.changes(default, default)) == []
    assert list(results.changes(PrefixRule(0.3), PrefixRule())) == ["alpha 0.3"]


def test_neighbours_have_a_line_each_and_a_cell_for_every_task() -> None:
    name = results.describe(results.PRESET, results.PRESET.options)
    lines = results.neighbours([row("a", name, "1101", 4, 100.4), row("b", name, "1", 2.5, 9)]).splitlines()
    assert lines[0] == "|  | a | b |"
    assert "| **the preset** | 75.0 / 4.00 / 100 | 100.0 / 2.50 / 9 |" in lines
    assert len(lines) == 2 + len(results.variants(results.PRESET))


def test_a_loop_is_compared_with_the_same_scheduler_in_ours() -> None:
    rows = [
        row("a", "Threshold block_length=32 cache=block stop_early=False", "10", 9, 90),
        row("a", "Threshold block_length=32 cache=block", "10", 5, 50),
        row("a", "best", "11", 4, 40),
    ]
    assert results.loops(rows, "best").splitlines()[2:] == [
        "| Fast-dLLM's loop, prefix cache, the tail decoded | 50.0 / 9.00 / 90 |",
        "| the same in our loop, ended by a stop | 50.0 / 5.00 / 50 |",
        "| Fast-dLLM's loop, dual cache, the tail decoded |  |",
        "| the same in our loop, ended by a stop |  |",
        "| the preset | 100.0 / 4.00 / 40 |",
    ]


def test_wordings_are_compared_where_both_were_run_and_the_tail_is_dropped() -> None:
    rows = [row("a", "", "1100", 2, 1) | {"scheduler": "one", "tail": tail} for tail in (False, True)]
    more = row("a", "", "1000", 3, 1) | {"scheduler": "one", "tail": False}
    text = results.templates([*rows, more | {"task": "b"}], [more, more | {"scheduler": "two"}])
    assert text.splitlines() == ["|  | a |", "|---|---:|", "| one | 50 / 2.0 → 25 / 3.0 |"]


def test_settings_of_two_files_are_compared_where_both_have_them() -> None:
    first, second = [row("a", "x", "1100", 2, 1)], [row("a", "x", "10", 3, 1), row("a", "y", "1", 1, 1)]
    assert results.wordings(first, second).splitlines()[2:] == ["| x | 50 / 2.0 → 50 / 3.0 |", "| y |  |"]

"""A grid has every scheduler on the same loops, goes on where it was stopped, and is judged by counting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lsp
from lsp.evaluation import grid, results, verdict
from lsp.evaluation.comparison import Setting
from lsp.evaluation.problems import load_problems

CANDIDATES = [
    grid.Candidate("Threshold", Setting.of("Threshold", lsp.Threshold())),
    grid.Candidate("LSP", Setting.of("ours", lsp.LongestStablePrefix())),
]


def row(name: str, family: str, right: str, passes: float, positions: float) -> dict[str, object]:
    solved = right.count("1") / len(right)
    return {
        "task": "t", "n": len(right), "family": family, "name": name, "right": right,
        "passes": passes, "positions": positions, "accuracy": solved, "low": solved, "high": solved,
    }  # fmt: skip


ROWS = [
    row("ours", "LSP", "1110", 5, 50),
    row("Full", "Full", "1111", 40, 400),
    row("Full block_length=8", "Full", "1100", 40, 300),
    row("fast", "Threshold", "1110", 5, 60),
    row("cheap", "Factor", "1110", 6, 40),
    row("wrong", "Threshold", "1000", 1, 10),
    row("Threshold block_length=16 cache=block", "Threshold", "1111", 6, 100),
]


def test_every_family_is_on_the_same_loops_under_its_own_name() -> None:
    candidates = grid.grid()
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    loops = {
        family: {c.setting.options for c in candidates if c.family == family}
        for family in ("Full", "LSP", "Threshold", "Factor", "Prophet")
    }
    assert loops["Threshold"] == loops["Factor"] == loops["LSP"]
    assert loops["Full"] - loops["LSP"] == {lsp.Options(block_length=8, cache=cache) for cache in ("prefix", "none")}
    assert loops["Prophet"] == {options for options in loops["LSP"] if options.lookahead is None}
    preset = lsp.LongestStablePrefix()
    assert grid.describe(preset, preset.options) in {candidate.name for candidate in candidates}


def test_a_name_says_what_is_not_the_default() -> None:
    assert grid.describe(lsp.Threshold(0.9), lsp.Options()) == "Threshold"
    assert grid.describe(lsp.Threshold(0.8), lsp.Options(lookahead=3)) == "Threshold p=0.8 lookahead=3"


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, problems, path = lsp.load("tiny"), load_problems("countdown", 2, split="dev", seed=3), tmp_path / "r.jsonl"
    given = {"max_new_tokens": 24, "about": {"seed": 3}}
    grid.run(model, problems, CANDIDATES[:1], path, **given)
    first = path.read_text()
    calls: list[None] = []
    grid.run(model, problems, CANDIDATES, path, advance=lambda: calls.append(None), **given)
    assert path.read_text().startswith(first)
    rows = results.read(path)
    assert [(r["name"], r["task"], r["n"], r["seed"]) for r in rows] == [
        ("Threshold", "countdown", 2, 3),
        ("ours", "countdown", 2, 3),
    ]
    assert len(calls) == 2
    out = lsp.generate(model, problems.prompts, max_new_tokens=24)
    assert json.loads(path.read_text().splitlines()[2])["positions"] == sum(o.positions for o in out) / 2


def test_only_the_frontiers_of_the_families_get_another_look() -> None:
    kept = {row["name"] for row in ROWS}
    assert verdict.worth_another_look(ROWS) == kept
    worse = row("worse", "Threshold", "1100", 6, 61)
    assert verdict.worth_another_look([*ROWS, worse]) == kept


def test_the_verdict_names_who_is_as_accurate_and_as_cheap() -> None:
    lines = verdict.verdict(ROWS, "ours").splitlines()
    assert "| the preset | 75.0 | 5.00 | 50 |  |" in lines
    assert any(
        line.startswith("| the best Full: Full | 100.0 | 40.00 (8.00x) | 400 (8.00x) | -25.0 [") for line in lines
    )
    assert any(line.startswith("| as accurate, no more passes: fast | 75.0 | 5.00 (1.00x)") for line in lines)
    assert any(line.startswith("| as accurate, no more positions: cheap |") for line in lines)
    assert any(line.startswith("| Fast-dLLM: Threshold block_length=16 cache=block |") for line in lines)
    assert not any("wrong" in line for line in lines)
    alone = verdict.verdict(ROWS[:2], "ours").splitlines()
    assert "| as accurate, no more passes: none | | | | |" in alone

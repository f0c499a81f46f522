"""A grid has every scheduler on the same loops, goes on where it was stopped, and is judged by counting."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

import lsp
from lsp.evaluation import grid, results, verdict
from lsp.evaluation.comparison import Setting
from lsp.evaluation.problems import load_problems
from lsp.schedulers import NAMES, scheduler_of
from lsp.schedulers.timed import DreamOrder

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
    row("both", "Less", "1111", 4.5, 50),
    row("cheap", "Factor", "1110", 6, 40),
    row("wrong", "Threshold", "1000", 1, 10),
    row("Threshold block_length=16 cache=block", "Threshold", "1111", 6, 100),
    row("Threshold block_length=32 cache=dual stop_early=False", "Fast-dLLM", "1111", 5.5, 200),
    *(row(f"Factor block_length={n} cache=dual stop_early=False", "Fast-dLLM", "1100", 6, 300) for n in (1, 2, 3, 4)),
]


def test_every_family_is_on_the_same_loops_under_its_own_name() -> None:
    candidates = grid.grid()
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    loops: dict[str, set[lsp.Options]] = {}
    for candidate in candidates:
        loops.setdefault(candidate.family, set()).add(candidate.setting.options)
    for family in ("Threshold", "Factor", "Frechet", "EntropyBound", "LocalLeap", "Less", "Klass"):
        assert loops[family] == set(grid.loops()) <= loops["LSP"], family
    assert loops["Full"] - set(grid.loops()) == {
        lsp.Options(block_length=8, cache=cache) for cache in ("prefix", "none")
    }
    for family in ("Prophet", "SchED"):
        assert loops[family] == {lsp.Options(), lsp.Options(cache="none"), lsp.Options(block_length=16)}
    assert {options.blocks for options in loops["AdaBlock"]} == {"delimiter"}
    assert {options.blocks for options in loops["SlidingBlock"]} == {"sliding", "growing"}
    preset = lsp.LongestStablePrefix()
    assert grid.describe(preset, preset.options) in {candidate.name for candidate in candidates}


def test_the_rivals_are_run_as_their_authors_run_them() -> None:
    pairs = {(each.setting.scheduler, each.setting.options) for each in grid.grid()}
    for length in (16, 32):
        for cache in ("none", "block", "dual"):
            blocks = {"block_length": length, "cache": cache}
            for scheduler in (lsp.Threshold(), lsp.Factor()):
                assert (scheduler, lsp.Options(stop_early=False, **blocks)) in pairs
            for scheduler in (lsp.Threshold(), lsp.Factor(), lsp.Frechet(), lsp.LocalLeap(), lsp.Less(), lsp.Klass()):
                assert (scheduler, lsp.Options(**blocks)) in pairs
    for scheduler in (*(lsp.EntropyBound(gamma) for gamma in (0.001, 0.01, 0.1, 1.0)), lsp.Klass(0.6, 0.015)):
        assert (scheduler, lsp.Options(cache="none")) in pairs
    for scheduler in (lsp.Prophet(), lsp.SchED(), lsp.SchED(7.5, 0.0, k=16.0)):
        assert (scheduler, lsp.Options(cache="none")) in pairs
    for own in (lsp.AdaBlock(), lsp.SlidingBlock(), lsp.LongestStablePrefix.paper()):
        assert (own, own.options) in pairs
    for blocks, cache in product(("sliding", "growing"), ("dual", "none")):
        window = 24 if cache == "dual" else 0
        assert (lsp.SlidingBlock(), lsp.Options(32, blocks, cache=cache, recompute=window)) in pairs
    by_line = [each.setting for each in grid.grid() if each.setting.delimiters == "line"]
    for length, cache in product((16, 32), ("none", "block", "dual", "prefix")):
        options = lsp.Options(length, "delimiter", cache=cache)
        assert (lsp.AdaBlock(), options) in {(each.scheduler, each.options) for each in by_line}
    assert (DreamOrder("entropy", 64), lsp.Options(cache="none")) in pairs
    assert (lsp.Full(), lsp.Options(16, cache="none")) in pairs


def test_no_family_has_more_than_sixty_settings_and_each_can_run() -> None:
    candidates = grid.grid()
    families = Counter(candidate.family for candidate in candidates)
    assert max(families.values()) <= 60, families
    shown = {type(scheduler) for scheduler in (candidate.setting.scheduler for candidate in candidates)}
    not_tuned = {lsp.FixedPrefix, lsp.ScatteredMargin}
    assert {type(scheduler_of(name)) for name in NAMES} - shown == not_tuned
    for candidate in candidates:
        candidate.setting.scheduler.check(candidate.setting.options)


def test_what_needs_a_small_vocabulary_is_left_out_for_a_large_one() -> None:
    possible = [candidate for candidate in grid.grid() if candidate.setting.possible(126464)]
    assert {candidate.family for candidate in grid.grid()} - {candidate.family for candidate in possible} == {"Klass"}
    assert all(candidate.setting.possible(195) for candidate in grid.grid())


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


def test_each_task_has_its_own_length_in_a_file_and_keeps_it(tmp_path: Path) -> None:
    model, path = lsp.load("tiny"), tmp_path / "r.jsonl"
    sets = [load_problems(task, 1, split="dev", seed=3) for task in ("countdown", "sudoku")]
    for problems, length in zip(sets, (24, 32), strict=True):
        grid.run(model, problems, CANDIDATES[:1], path, max_new_tokens=length, about={"seed": 3})
    assert [(r["task"], r["max_new_tokens"]) for r in results.read(path)] == [("countdown", 24), ("sudoku", 32)]
    assert len(grid.results(path, {"seed": 3}, sets[1], 32)) == 2
    with pytest.raises(ValueError, match=r"expected results with {'max_new_tokens': 24}, got some with"):
        grid.results(path, {"seed": 3}, sets[1], 24)


def test_results_with_another_wording_of_the_prompts_are_not_mixed(tmp_path: Path) -> None:
    path, rows = tmp_path / "r.jsonl", [row("a", "LSP", "10", 1, 1), row("a", "LSP", "10", 1, 1) | {"template": 1}]
    for each, fits, other in zip(rows, (0, 1), (1, 0), strict=True):
        path.write_text(results.HEADER + json.dumps(each) + "\n")
        assert len(grid.results(path, {"template": fits})) == 1
        with pytest.raises(ValueError, match=rf"expected results with {{'template': {other}}}"):
            grid.results(path, {"template": other})


def looked_at(rows: list[dict[str, object]], task: str = "t", more: tuple[tuple[str, str], ...] = ()) -> set[str]:
    """Of candidates with the names of these rows, and of some more, those that are run again on a task."""
    known = dict.fromkeys([*((str(each["family"]), str(each["name"])) for each in rows), *more])
    candidates = [grid.Candidate(family, Setting(name, lsp.Full(), lsp.Options())) for family, name in known]
    return {each.name for each in verdict.worth_another_look(candidates, rows, task, "ours")}


def test_only_the_frontiers_of_the_families_get_another_look() -> None:
    kept = {"ours", "Full", "fast", "both", "cheap", "Threshold block_length=16 cache=block"}
    kept |= {"Threshold block_length=32 cache=dual stop_early=False"}
    assert looked_at(ROWS) == kept
    assert looked_at([*ROWS, row("worse", "Threshold", "1100", 6, 61)]) == kept
    never_run = ("Threshold", "new"), ("LSP", "other"), ("Fast-dLLM", "Factor block_length=32 cache=block")
    assert looked_at(ROWS, more=never_run) == kept | {"Factor block_length=32 cache=block"}


def test_a_task_gets_what_was_good_on_it_and_all_that_was_good_of_ours() -> None:
    rows = [each | {"task": task} for task in "tu" for each in ROWS[:2]]
    rows += [row("a", "Threshold", "1110", 5, 60) | {"task": "t"}, row("b", "Threshold", "1110", 6, 61) | {"task": "t"}]
    rows += [row("a", "Threshold", "1110", 5, 60) | {"task": "u"}, row("b", "Threshold", "1111", 5, 60) | {"task": "u"}]
    rows += [row("low", "LSP", "1110", 4, 60) | {"task": "t"}, row("low", "LSP", "1110", 6, 60) | {"task": "u"}]
    assert looked_at(rows, "t") == {"ours", "Full", "a", "low"}
    assert looked_at(rows, "u") == {"ours", "Full", "b", "low"}
    assert looked_at(rows, "new") == {"ours", "Full", "a", "b", "low"}


def test_what_cannot_reach_the_preset_is_not_run_again_but_for_the_best_of_a_family() -> None:
    rows = [
        row("ours", "LSP", "1110", 5, 50),
        row("close", "Prophet", "1101", 6, 90),
        row("again", "Prophet", "1101", 6, 90),
        row("far", "Prophet", "1100", 4.5, 70),
        row("best", "SchED", "1111", 7, 70),
        row("dear", "SchED", "1110", 6.5, 65),
        row("few", "SchED", "1110", 6.5, 40),
        row("too dear", "TopK", "1111", 21, 301),
        row("slow", "Klass", "1000", 30, 300),
    ]
    assert looked_at(rows) == {"ours", "close", "best", "few", "slow"}


def test_rivals_that_cost_about_as_much_as_the_preset_are_run_again_even_if_others_seem_better() -> None:
    rows = [
        row("ours", "LSP", "1110", 5, 50),
        row("better", "LocalLeap", "1111", 5.2, 52),
        row("alike", "LocalLeap", "1110", 5.5, 55),
        row("dearer", "LocalLeap", "1110", 5.6, 56),
        row("far below", "LocalLeap", "1100", 5.3, 53),
    ]
    assert looked_at(rows) == {"ours", "better", "alike"}


def test_all_of_full_is_run_where_none_was_and_else_the_best_and_the_cheapest_as_good() -> None:
    bits = "1" * 97 + "000"
    rows = [row("ours", "LSP", bits, 5, 50), row("a", "Full", "1" * 100, 9, 99), row("b", "Full", bits, 9, 9)]
    rows += [
        row("c", "Full", "1" * 100, 9, 100),
        row("d", "Full", bits, 9, 10),
        row("e", "Full", bits.replace("1", "0", 2), 9, 1),
    ]
    assert looked_at(rows) == {"ours", "a", "b"}
    assert looked_at(rows[:1], more=(("Full", "c"),)) == {"ours", "c"}


def test_the_best_of_a_family_is_its_cheapest_setting_that_is_about_as_accurate_as_any() -> None:
    best = {"LSP": "ours", "Threshold": "Threshold block_length=16 cache=block", "Less": "both", "Factor": "cheap"}
    assert verdict.best_of_families(ROWS, "t") == best
    assert verdict.best_of_families(ROWS, "t", points=25)["Threshold"] == "fast"


def test_over_all_tasks_only_what_is_not_beaten_is_shown() -> None:
    def on(task: str, *rows: dict[str, object]) -> list[dict[str, object]]:
        return [each | {"task": task} for each in rows]

    rows = on(
        "t", row("Full", "Full", "1111", 40, 400), row("ours", "LSP", "1110", 5, 50), row("a", "LSP", "1111", 10, 50)
    )
    rows += on(
        "u", row("Full", "Full", "1100", 40, 400), row("ours", "LSP", "1100", 4, 40), row("a", "LSP", "1100", 16, 40)
    )
    rows += on(
        "t", row("worse", "LSP", "1110", 6, 50), row("alone", "LSP", "1111", 1, 1), row("x", "Factor", "1111", 1, 1)
    )
    rows += on("u", row("worse", "LSP", "1100", 4, 40), row("x", "Factor", "1111", 1, 1))
    lines = verdict.over_all_tasks(rows, "ours").splitlines()[5:]
    assert lines == ["| a | 75.0 | 2.83x | 1.00x | t +0.0 |", "| the preset | 62.5 | 1.00x | 1.00x | t -25.0 |"]
    assert "| x | 100.0 | 0.22x |" in verdict.over_all_tasks(rows, "ours", ["LSP", "Factor"])
    assert verdict.over_all_tasks(rows[:3], "x") == ""


def test_the_verdict_names_who_is_as_accurate_and_as_cheap() -> None:
    lines = verdict.verdict(ROWS, "ours").splitlines()
    assert "| the preset | 75.0 | 5.00 | 50 |  |" in lines
    assert any(
        line.startswith("| the best Full: Full | 100.0 | 40.00 (8.00x) | 400 (8.00x) | -25.0 [") for line in lines
    )
    assert [line[:43] for line in lines if "either" in line] == ["| as accurate, no more of either: both | 10"]
    assert any(line.startswith("| as accurate, no more passes: fast | 75.0 | 5.00 (1.00x)") for line in lines)
    assert any(line.startswith("| as accurate, no more positions: cheap |") for line in lines)
    ours, own = "Threshold block_length=16 cache=block", "Threshold block_length=32 cache=dual stop_early=False"
    assert any(line.startswith(f"| Fast-dLLM's caches, our loop: {ours} |") for line in lines)
    assert any(line.startswith(f"| Fast-dLLM's loop: {own} |") for line in lines)
    assert sum(line.startswith("| Fast-dLLM's loop: ") for line in lines) == 5  # all of them
    assert not any("wrong" in line for line in lines)
    alone = verdict.verdict(ROWS[:2], "ours").splitlines()
    assert "| as accurate, no more passes: none | | | | |" in alone

"""What `lsp growth` measures is what each length costs, and its exponents are those of the costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lsp
from lsp.cli.growth import settings
from lsp.evaluation import grid, growth
from lsp.evaluation.comparison import Setting
from lsp.evaluation.plot import plot_growth
from lsp.evaluation.problems import load_problems
from tests.lsp.commands import Ran


def rows_of(power: float, noise: float = 0.0) -> list[dict]:
    rng = np.random.default_rng(0)
    lengths = [np.linspace(a, 2 * a, 10) for a in (10, 20, 40)]
    costs = [3 * length**power * np.exp(noise * rng.standard_normal(10)) for length in lengths]
    return [
        {
            "name": "s", "problems": 10, "accuracy": 0.5, "length": length.mean(),
            **{name: cost.mean() for name in growth.COSTS},
            "points": {"length": length.tolist(), **{name: cost.tolist() for name in growth.COSTS}},
        }
        for length, cost in zip(lengths, costs, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7])
def test_an_exponent_is_that_of_the_cost_with_its_error(power: float) -> None:
    assert growth.exponent(rows_of(power), "passes") == pytest.approx((power, 0.0), abs=1e-6)
    assert np.isnan(growth.exponent([{"points": {"length": [9, 9], "passes": [1, 2]}}], "passes")).all()
    slope, error = growth.exponent(rows_of(power, noise=0.2), "seconds")
    assert 0.02 < error < 0.2
    assert abs(slope - power) < 3 * error


def test_one_token_a_pass_takes_as_many_passes_as_the_answer_has_tokens() -> None:
    model, scheduler = lsp.load("tiny"), lsp.FixedPrefix(1)
    levels = [load_problems("arithmetic", 3, split="dev", seed=2, level=level) for level in (3, 8)]
    calls: list[None] = []
    found = growth.measure(model, levels, [Setting.of("one", scheduler)], lambda: calls.append(None))
    assert len(calls) == 6
    for row, problems in zip(found, levels, strict=True):
        assert row["canvas"] % 32 == 0 < row["canvas"] - max(problems.lengths) - growth.ROOM + 1
        assert row["points"]["passes"] == pytest.approx(row["points"]["length"], abs=8)  # and the stop; other words
        assert min(row["points"]["seconds"]) > 0
    assert found[1]["length"] > found[0]["length"] + 20
    assert growth.exponent(found, "passes")[0] == pytest.approx(1.0, abs=0.1)


def test_the_table_and_the_picture_have_every_setting(tmp_path: Path) -> None:
    rows = [*rows_of(1.0), *({**row, "name": "LSP"} for row in rows_of(2.0))]
    lines = growth.markdown(rows).splitlines()
    assert lines[2].startswith("| s | 50.0 | 45.0 and 180.0 | 1.00 ± 0.00 |")
    assert lines[3].startswith("| LSP | 50.0 |")
    assert "default" not in lines[0]
    plot_growth(rows, tmp_path / "growth.svg")
    picture = (tmp_path / "growth.svg").read_text()
    labels = ("s (1.00, 1.00, 1.00)", "LSP (2.00, 2.00, 2.00)", "seconds per answer")
    assert all(f"<!-- {words} -->" in picture for words in labels)


def test_the_table_says_how_many_times_the_costs_of_the_default_each_has_at_the_longest_answers() -> None:
    default = [{**row, "name": growth.DEFAULT} for row in rows_of(1.0)]
    other = [{**row, "points": dict(row["points"])} for row in rows_of(1.0)]
    others = [2.0] * 5 + [3.0] + [50.0] * 4  # the median of the ratios, not the ratio of the means
    other[-1]["points"]["positions"] = [x * y for x, y in zip(others, default[-1]["points"]["positions"], strict=True)]
    head, _, *lines = growth.markdown([*other, *default]).splitlines()
    names = ("passes", "positions", "seconds")
    assert head.endswith(" | ".join(f"{name} at 60, x of the default" for name in names) + " |")
    assert [line.split(" | ")[-3:] for line in lines] == [["1.00", "2.50", "1.00 |"], ["1.00", "1.00", "1.00 |"]]


def test_the_settings_are_fast_dllms_the_best_of_the_rivals_and_the_default() -> None:
    default = lsp.LongestStablePrefix()
    best = {"Frechet": "Frechet delta=0.85 lookahead=32", "LSP": grid.describe(default, default.options)}
    names = [setting.name for setting in settings(best)]
    assert sum(name.startswith("best") for name in names) == 1
    assert names[0] == "Full, blocks of 16"
    assert "Fast-dLLM's loop, dual cache" in names
    assert "best Frechet: Frechet delta=0.85 lookahead=32" in names
    assert names[-1] == "LSP, the default"
    own = next(setting for setting in settings({}) if setting.name == "Fast-dLLM's loop, prefix cache")
    assert (own.scheduler, own.options) in grid.as_fast_dllm()


def test_the_command_writes_what_it_measured(
    run: Callable[..., Ran], fails: Callable[..., None], tmp_path: Path
) -> None:
    out, picture = tmp_path / "growth.json", tmp_path / "growth.png"
    how = ("--task", "countdown", "--problems", 1, "--template", 1)
    ran = run("growth", out, *how, "--plot", picture)
    assert ran.code == 0
    assert json.loads(out.read_text())["template"] == 1
    assert {row["name"] for row in json.loads(out.read_text())["rows"]} == {setting.name for setting in settings({})}
    assert "| LSP, the default |" in ran.out
    assert picture.stat().st_size > 1000
    fails(2, "Invalid task: expected one of arithmetic", "growth", out, "--task", "poems")

"""A comparison counts what `lsp.generate` counts, times settings alike, and its tables and plots say the same."""

from __future__ import annotations

import csv
import io
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lsp
from lsp.evaluation import comparison, tables
from lsp.evaluation.comparison import Result, Setting, compare, paper_settings, total_of, with_tail
from lsp.evaluation.plot import frontier, plot
from lsp.evaluation.problems import Problems, load_problems
from lsp.models import Transformer
from lsp.schedulers import NAMES, scheduler_of
from lsp.schedulers.timed import DreamOrder
from lsp.tracing import flip_rate

SETTINGS = [
    Setting.of("Full", lsp.Full()),
    Setting.of("LSP", lsp.LongestStablePrefix()),
    with_tail(Setting.of("Full", lsp.Full())),
    with_tail(Setting.of("Threshold", lsp.Threshold(0.9), block_length=8, cache="block")),
    Setting.of("AdaBlock", lsp.AdaBlock(), delimiters="line", block_length=4),
    Setting.of("AdaBlock", lsp.AdaBlock(), block_length=4),
]
LENGTH = {"max_new_tokens": 24}


@pytest.fixture(scope="module")
def model() -> Transformer:
    return lsp.load("tiny")


@pytest.fixture(scope="module")
def problems() -> Problems:
    return load_problems("countdown", 5, split="dev", seed=9)


@pytest.fixture(scope="module")
def results(model: Transformer, problems: Problems) -> list[Result]:
    return compare(model, problems, SETTINGS, batch=2, flips=3, **LENGTH)


def test_counts_and_verdicts_are_those_of_generate(
    model: Transformer, problems: Problems, results: list[Result]
) -> None:
    for setting, result in zip(SETTINGS, results, strict=True):
        out = lsp.generate(model, problems.prompts, **LENGTH, **setting.arguments)
        assert result.right == problems.judge([answer.text for answer in out])
        assert result.passes == [answer.passes for answer in out]
        assert result.positions == [answer.positions for answer in out]
        assert result.tokens == [len(answer.tokens) for answer in out]
    by_line, by_text = results[-2:]
    assert by_line.passes != by_text.passes  # a setting has delimiters of its own


def test_the_flip_rate_is_of_the_first_problems_and_of_the_tail_only_if_it_is_decoded(
    model: Transformer, problems: Problems, results: list[Result]
) -> None:
    for setting, result in zip(SETTINGS, results, strict=True):
        traces = lsp.trace(model, problems.prompts[:3], **LENGTH, **setting.arguments)
        assert result.flips == pytest.approx(flip_rate(traces, tail=not setting.options.stop_early), nan_ok=True)


def test_settings_take_turns_so_that_none_is_always_first(monkeypatch: pytest.MonkeyPatch, problems: Problems) -> None:
    order: list[str] = []

    def generate(model: object, prompts: list[str], *, scheduler: object, **_: object) -> list[Any]:
        order.append(scheduler)
        return lsp.generate(lsp.load("tiny"), prompts, scheduler="full", max_new_tokens=1)

    monkeypatch.setattr(comparison, "generate", generate)
    calls: list[None] = []
    settings = [Setting(name, name, lsp.Options()) for name in "abc"]
    compare(lsp.load("tiny"), problems, settings, batch=2, advance=lambda: calls.append(None), **LENGTH)
    assert "".join(order) == "a" + "abc" + "bca" + "cab"  # once to warm up
    assert len(calls) == total_of(problems, settings, 2, 0) == 9


def test_speed_is_the_median_ratio_over_chunks() -> None:
    ours, theirs = (Result(SETTINGS[0], seconds=seconds) for seconds in ([1.0, 1.0, 9.0], [4.0, 5.0, 6.0]))
    assert ours.speed_up(theirs) == 4.0


def test_the_rows_of_the_paper_are_there_and_full_comes_first() -> None:
    names = [setting.name for setting in paper_settings(32)]
    assert names[0] == "Full"
    assert len(set(names)) == len(names)
    for wanted in ("Full, blocks of 32", "Fixed prefix 1", "Fixed prefix 8", "Scattered-Margin", "Prophet"):
        assert wanted in names
    rivals = {type(setting.scheduler) for setting in paper_settings()}
    assert {type(scheduler_of(name)) for name in NAMES} - rivals == {
        lsp.TopK,
        DreamOrder,
    }  # of a given number of passes
    settings = [(repr(setting.scheduler), setting.options) for setting in paper_settings()]
    assert len(set(settings)) == len(settings)


def test_what_a_tokenizer_has_no_delimiters_for_is_left_out() -> None:
    words = types.SimpleNamespace(get_vocab=lambda: {"so": 0, ",": 1, "[MASK]": 2})
    left = comparison.possible(paper_settings(), 195, words)
    assert {setting.name for setting in paper_settings()} - {setting.name for setting in left} == {
        "AdaBlock, blocks of 16",
        "AdaBlock, blocks of 16, dual cache",
    }
    assert comparison.possible(paper_settings(), 195, lsp.load_tokenizer("tiny")) == paper_settings()


def test_every_format_says_the_same(results: list[Result]) -> None:
    rows, about = tables.rows("countdown", results), {"model": "tiny"}
    read = json.loads(tables.as_json(rows, about))
    assert (read["model"], read["rows"]) == ("tiny", rows)
    for row, line in zip(rows, csv.DictReader(io.StringIO(tables.as_csv(rows, about))), strict=True):
        assert float(line["accuracy"]) == row["accuracy"] == row["solved"] / 5
        assert float(line["positions"]) == row["positions"]
        assert json.loads(line["options"]) == row["options"]
    lines = tables.markdown(rows, about).splitlines()
    assert lines[:3] == ["model tiny", "", "## countdown"]
    assert [line[2:-2].split(" | ") for line in lines[-len(rows) :]] == [tables.cells(row) for row in rows]
    lengths = {"max_new_tokens": {"code": 96, "traces": 432}, "batch": 5}
    assert tables.markdown(rows, lengths).startswith("max_new_tokens 96 (code) and 432 (traces), batch 5\n")


def test_times_are_compared_with_the_full_that_treats_the_tail_alike(results: list[Result]) -> None:
    speeds = [row["speed_up"] for row in tables.rows("countdown", results)]
    assert speeds[0] == speeds[2] == 1.0
    assert speeds[3] == results[3].speed_up(results[2])


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_plot_is_a_picture_of_both_costs(results: list[Result], tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"plot{ending}"
    plot(tables.rows("a", results) + tables.rows("b", results), path)
    assert path.read_bytes().startswith(b"\x89PNG" if ending == ".png" else b"<?xml")
    if ending == ".svg":
        assert path.read_text().count("token positions per problem") >= 2


@pytest.mark.abuse("result files and traces")
def test_a_plot_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Invalid plot: expected a file name with .png, .svg, .pdf, got"):
        plot([], tmp_path / "plot.gif")


numbers = st.integers(0, 4)


@given(st.lists(st.fixed_dictionaries({"accuracy": numbers, "passes": numbers, "positions": numbers}), max_size=12))
def test_the_frontier_is_what_nothing_beats(rows: list[dict[str, int]]) -> None:
    best = frontier(rows, "passes", "positions")

    def beats(a: dict[str, int], b: dict[str, int]) -> bool:
        return a != b and a["accuracy"] >= b["accuracy"] and all(a[c] <= b[c] for c in ("passes", "positions"))

    for row in rows:
        assert (row in best) != any(beats(other, row) for other in rows)


@pytest.mark.abuse("result files and traces")
def test_nothing_of_a_failed_judge_is_hidden(model: Transformer, problems: Problems) -> None:
    def judge(texts: object) -> Callable[..., Any]:
        raise RuntimeError("the judge is ill")

    with pytest.raises(RuntimeError, match="the judge is ill"):
        compare(model, Problems("x", problems.prompts[:1], judge), SETTINGS[:1], **LENGTH)

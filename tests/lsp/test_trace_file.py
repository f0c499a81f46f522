"""A trace comes back from its file as it was, is short, and what is wrong with a file is named."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lsp
from lsp.tracing import PassRecord, RuleRecord, Trace, html, rounding
from lsp.tracing.compact import LARGEST_POSITION, expand, shorten, to_positions, to_ranges
from lsp.tracing.storage import FORMAT, FORMAT_1, FORMAT_2
from tests import traces

pytest.importorskip("transformers")
abuse = pytest.mark.abuse("result files and traces")


@pytest.fixture(scope="module")
def example() -> Trace:
    return traces.of("lsp")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Any JSON reader takes them: no NaN, no Infinity."""
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text("utf-8").splitlines()]


def rewrite(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# There and back


@pytest.mark.parametrize(
    "options", [{}, {"block_length": 8, "lookahead": 4}, {"cache": "block", "block_length": 8}], ids=str
)
@pytest.mark.parametrize("name", traces.SCHEDULERS)
def test_a_trace_comes_back_as_it_was(name: str, options: dict[str, object], tmp_path: Path) -> None:
    if name == "prophet" and "lookahead" in options:
        pytest.skip("Prophet has no lookahead")
    trace = traces.of(name, **options)
    trace.save(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == trace
    assert len(lines_of(tmp_path / "t.jsonl")) == 1 + trace.passes


def test_any_text_survives(example: Trace, tmp_path: Path) -> None:
    odd = replace(example, text="a\u2028b\u0085c\r\n", pieces=example.pieces | {1: "\u2029"}, level=math.inf)
    odd.save(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == odd


positions = st.lists(st.integers(0, 12), unique=True, max_size=8)
numbers = st.sampled_from([0.0, 0.5, 3.0, 12300.0, None])


@st.composite
def passes(draw: Callable[..., Any]) -> PassRecord:
    here = draw(positions)
    values = {name: [draw(kind) for _ in here] for name, kind in
              (("tokens", st.integers(0, 2)), ("margins", numbers), ("confidence", numbers))}  # fmt: skip
    masks = here[: draw(st.integers(0, len(here)))] if draw(st.booleans()) else draw(positions)
    chosen = draw(positions)
    rule = RuleRecord(3, 1, 2, draw(st.lists(numbers, max_size=4)), 0.5, 1, None, None, 1, False)
    return PassRecord(
        index=0, frozen=0, begin=0, end=draw(st.integers(0, 14)), masks=masks, masks_in_pass=here, **values,
        chosen=chosen, written=chosen, reason="", rule=draw(st.sampled_from([None, rule])),
    )  # fmt: skip


@given(st.lists(passes(), max_size=6))
def test_nothing_is_lost_whatever_the_passes_are(steps: list[PassRecord]) -> None:
    assert expand(json.loads(json.dumps(shorten(steps)))) == steps


@given(st.lists(st.integers(0, 30)))
def test_ranges_are_any_list_of_positions(some: list[int]) -> None:
    assert to_positions(to_ranges(some)) == some


def old(trace: Trace, number: int) -> list[dict[str, Any]]:
    """The lines of the first two formats, which wrote everything out."""
    head, *lines = json.loads(json.dumps([asdict(trace), *map(asdict, trace.steps)]))
    head = {"format": {1: FORMAT_1, 2: FORMAT_2}[number]} | {key: v for key, v in head.items() if key != "steps"}
    if number == 1:
        del head["name"], head["notes"]
        for line in lines:
            line["positions"] = line.pop("masks_in_pass")
            del line["reason"], line["rule"]["stopped"]
    return [head, *lines]


def test_a_file_from_before_seeds_and_fading_is_read(example: Trace, tmp_path: Path) -> None:
    example.save(tmp_path / "t.jsonl")
    head, *lines = lines_of(tmp_path / "t.jsonl")
    del head["seed"], head["fade"]
    assert Trace.load(rewrite(tmp_path / "old.jsonl", [head, *lines])) == replace(example, seed=None, fade=0.0)


def test_older_formats_are_read(example: Trace, tmp_path: Path) -> None:
    exact = replace(example.steps[0], margins=[x and x + 1 / 3 for x in example.steps[0].margins])
    second = replace(example, steps=[exact, *example.steps[1:]])
    assert Trace.load(rewrite(tmp_path / "2.jsonl", old(second, 2))) == second
    second.save(tmp_path / "3.jsonl")  # numbers that were not rounded stay as they are
    assert Trace.load(tmp_path / "3.jsonl") == second
    first = Trace.load(rewrite(tmp_path / "1.jsonl", old(example, 1)))
    assert (first.name, first.notes, first.tokens) == ("LongestStablePrefix", [], example.tokens)
    assert [step.masks_in_pass for step in first.steps] == [step.masks_in_pass for step in example.steps]
    assert "LongestStablePrefix" in html.page([first])


# Short


@given(st.floats(0, 1e9, width=32))
def test_numbers_are_rounded_down_to_what_is_shown(value: float) -> None:
    (margin,), (confidence,) = rounding.margins([value]), rounding.confidences([min(value, 1.0)])
    assert margin <= value <= margin * 1.01 + 1e-30
    assert confidence <= min(value, 1.0) < confidence + 1.0001e-4
    assert rounding.margins([margin]) == [margin]
    assert rounding.confidences([confidence]) == [confidence]
    assert len(f"{margin:.9e}".partition("e")[0].rstrip("0.")) <= len("1.23")


@given(st.floats(0, 1), st.integers(1, 999), st.integers(1, 9999), st.booleans())
def test_rounding_changes_no_side_of_a_level(value: float, thousandths: int, finer: int, at: bool) -> None:
    for rounded, level in ((rounding.margins, thousandths / 1000), (rounding.confidences, finer / 10000)):
        value = level if at else value
        assert (rounded([value])[0] < level) == (value < level)


@cache
def full(length: int) -> Trace:
    """Full on a model whose margins settle: a pass moves the values of a few neighbours only."""

    def forward(ids: torch.Tensor) -> torch.Tensor:
        place = torch.arange(ids.size(1))
        given = (ids[0] != 9).float()
        near = given + given.roll(1) + given.roll(-1)
        logits = torch.zeros(1, ids.size(1), 10)
        logits[0, place, place % 7] = 3 + near + (place * 37 % 101) / 101
        return logits

    model = lsp.adapt(forward, vocab_size=10, mask_id=9)
    (out,) = lsp.trace(model, [1], max_new_tokens=length, scheduler=lsp.Full())
    return out


def test_only_what_changes_is_in_the_file_and_the_page(tmp_path: Path) -> None:
    """Twice the tokens take about twice the room; everything written out they took four times as much."""
    sizes = {}
    for length in (64, 128, 256):
        full(length).save(tmp_path / "t.jsonl")
        page = len(html.page([full(length)])) - len(html.page([full(1)]))
        sizes[length] = (tmp_path / "t.jsonl").stat().st_size, page
    for small, large in ((64, 128), (128, 256)):
        assert all(b < 2.3 * a for a, b in zip(sizes[small], sizes[large], strict=True)), sizes
    whole = sum(len(json.dumps(line)) for line in old(full(256), 2))
    assert sizes[256][0] < whole / 10


# Numbers that are none


@abuse
@pytest.mark.parametrize(
    "scheduler", [lsp.FixedPrefix(1), lsp.Threshold(0.9), lsp.LongestStablePrefix(islands=None)], ids=str
)
def test_a_number_that_nobody_looked_at_does_not_stop_a_trace(scheduler: lsp.Scheduler, tmp_path: Path) -> None:
    trace = traces.broken_ahead(scheduler)
    assert (trace.steps[0].margins[-1], trace.steps[0].confidence[-1]) == (None, None)
    assert None not in trace.steps[-1].confidence
    trace.save(tmp_path / "t.jsonl")
    lines_of(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == trace
    assert "<html" in html.page([trace])


@abuse
def test_a_reason_is_given_no_number_that_is_none() -> None:
    class Curious(lsp.FixedPrefix):
        def reason(self, seen: PassRecord) -> str:
            return str(seen.confidence[-1])

    assert [step.reason for step in traces.broken_ahead(Curious(1)).steps][:2] == ["None", "None"]


@abuse
def test_a_number_that_the_scheduler_needs_stops_it_with_and_without_a_trace() -> None:
    def forward(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(1, ids.size(1), 7)
        logits[0, -1] = torch.nan
        return logits

    model = lsp.adapt(forward, vocab_size=7, mask_id=6)
    for decode in (lsp.generate, lsp.trace):
        with pytest.raises(lsp.DecodingError, match="sequence 0, pass 2"):
            decode(model, [1], max_new_tokens=3, scheduler=lsp.FixedPrefix(1))
        with pytest.raises(lsp.DecodingError, match="sequence 0, pass 0"):
            decode(model, [1], max_new_tokens=3, scheduler=lsp.Threshold(0.9))


@abuse
def test_a_second_format_with_nan_is_read_and_shown(example: Trace, tmp_path: Path) -> None:
    lines = old(example, 2)
    lines[1]["confidence"][0] = math.nan
    trace = Trace.load(rewrite(tmp_path / "t.jsonl", lines))
    assert trace.steps[0].confidence[0] is None
    assert "<html" in html.page([trace])


# Files that are none


@abuse
@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"not json", b"[1]", b"3", b"null", b"\xff\xfe\x00\x01", b"\x89PNG\r\n\x1a\n\0\0", b"[" * 10**5,
     *(json.dumps({"format": name}).encode() for name in ("x", FORMAT_1, FORMAT_2, FORMAT, None, ["x"]))],
    ids=lambda content: repr(content[:28]),
)  # fmt: skip
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path, content: bytes, fails: Callable[..., None]) -> None:
    (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=rf"Invalid .*t.jsonl: expected JSON lines of '{FORMAT}', got"):
        Trace.load(tmp_path / "t.jsonl")
    fails(2, "t.jsonl: expected JSON lines of", "trace", tmp_path / "out.html", "--from", tmp_path / "t.jsonl")
    assert not (tmp_path / "out.html").exists()


@abuse
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_trace_without_its_last_passes_is_refused(example: Trace, tmp_path: Path, number: int, cut: int) -> None:
    example.save(tmp_path / "t.jsonl")
    lines = lines_of(tmp_path / "t.jsonl") if number == 3 else old(example, number)
    rewrite(tmp_path / "t.jsonl", lines[:-cut])
    with pytest.raises(ValueError, match=rf"t.jsonl: .* got {example.passes - cut} of {example.passes} passes"):
        Trace.load(tmp_path / "t.jsonl")


@abuse
def test_a_trace_that_was_cut_off_in_a_line_is_refused(example: Trace, tmp_path: Path) -> None:
    example.save(tmp_path / "t.jsonl")
    text = (tmp_path / "t.jsonl").read_text()
    for end in (10, len(text) // 2, len(text) - 2):
        (tmp_path / "t.jsonl").write_text(text[:end])
        with pytest.raises(ValueError, match=r"Invalid .*t.jsonl: expected JSON lines"):
            Trace.load(tmp_path / "t.jsonl")


FIELDS = [f.name for f in dataclasses.fields(Trace) if f.name not in ("steps", "options")]


@abuse
@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_type_in_the_head_is_refused(example: Trace, tmp_path: Path, name: str) -> None:
    lines = old(example, 2)
    lines[0][name] = 3 if isinstance(lines[0][name], str | bool) or name in ("text", "pieces") else "three"
    with pytest.raises(ValueError, match=r"Invalid .*t.jsonl: expected JSON lines"):
        Trace.load(rewrite(tmp_path / "t.jsonl", lines))


@abuse
@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(PassRecord) if f.name != "rule"])
@pytest.mark.parametrize("number", [2, 3])
def test_a_wrong_type_in_a_pass_is_refused(example: Trace, tmp_path: Path, name: str, number: int) -> None:
    example.save(tmp_path / "t.jsonl")
    lines = old(example, 2) if number == 2 else lines_of(tmp_path / "t.jsonl")
    lines[1][name] = 3.5 if name == "reason" else ["three"] if isinstance(lines[1][name], list) else "three"
    with pytest.raises(ValueError, match=r"Invalid .*t.jsonl: expected JSON lines"):
        Trace.load(rewrite(tmp_path / "t.jsonl", lines))


@abuse
@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(RuleRecord)])
def test_a_wrong_type_in_a_rule_is_refused(example: Trace, tmp_path: Path, name: str) -> None:
    lines = old(example, 2)
    lines[1]["rule"][name] = {}
    with pytest.raises(ValueError, match=r"Invalid .*t.jsonl: expected JSON lines"):
        Trace.load(rewrite(tmp_path / "t.jsonl", lines))


@abuse
@pytest.mark.parametrize(
    "change",
    [
        {"masks_in_pass": [0, 10**12]},
        {"masks_in_pass": [0, LARGEST_POSITION] * 50},
        {"masks_in_pass": [-5, 3]},
        {"masks_in_pass": [1]},
        {"masks_in_pass": [10**5, 10**5 + 1]},
        {"chosen": [0, 10**12]},
        {"masks": [0, 10**12]},
        {"end": 10**12},
        {"end": None},
        {"tokens": [[0, 3], [1]]},
        {"margins": 3},
        {"written": []},
    ],
    ids=lambda change: str(change)[:40],
)
def test_ranges_that_lead_nowhere_are_refused_before_they_are_written_out(
    example: Trace, tmp_path: Path, change: dict[str, object]
) -> None:
    example.save(tmp_path / "t.jsonl")
    lines = lines_of(tmp_path / "t.jsonl")
    lines[-1].update(change)
    with pytest.raises(ValueError, match=r"Invalid .*t.jsonl: expected JSON lines"):
        Trace.load(rewrite(tmp_path / "t.jsonl", lines))


@abuse
def test_a_head_that_promises_too_much_is_refused(example: Trace, tmp_path: Path) -> None:
    lines = old(example, 2)
    lines[0]["max_new_tokens"] = 10**12
    with pytest.raises(ValueError, match="got 1000000000000 for max_new_tokens"):
        Trace.load(rewrite(tmp_path / "t.jsonl", lines))

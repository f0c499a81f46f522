"""Every scheduler, with every option of the loop, does what a brute-force simulation does, pass by pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lsp
from lsp.schedulers import NAMES, scheduler_of
from lsp_kernels import PrefixRule, Vocabulary
from tests.lsp.recorder import commits, scripted
from tests.lsp.simulation import Ambiguous, script, simulate

SIZE, MASK, DELIMITERS, STOPS = 13, 12, (0, 3, 4), (7, 12)  # the mask is a stop too, which it may not become
GUARDED = PrefixRule.guarded()
SCHEDULERS = {
    "paper": lsp.LongestStablePrefix(PrefixRule()),
    "paper keep": lsp.LongestStablePrefix(PrefixRule(0.3, 0.7, no_delimiter="keep", window=2)),
    "default": lsp.LongestStablePrefix(),
    "guarded": lsp.LongestStablePrefix(islands=None),
    "guarded half": lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=0.5, min_length=2, no_delimiter="minimum")),
    "islands": lsp.LongestStablePrefix(GUARDED, islands=3.0),
    "islands best": lsp.LongestStablePrefix(PrefixRule(floor=5.0, beta=1, snap=False), islands=8.0, stuck="best"),
    "islands all": lsp.LongestStablePrefix(PrefixRule(floor=math.inf, beta=1, snap=False), islands=0.0),
    "fixed": lsp.FixedPrefix(3),
    "full": lsp.Full(),
    "topk": lsp.TopK(3),
    "threshold": lsp.Threshold(0.7),
    "threshold high": lsp.Threshold(1.0),
    "factor": lsp.Factor(1.5),
    "factor low": lsp.Factor(0.2),
    "scattered": lsp.ScatteredMargin(),
    "scattered floor": lsp.ScatteredMargin(PrefixRule(floor=1.0, beta=0.8, min_length=4)),
    "prophet": lsp.Prophet(),
    "prophet region": lsp.Prophet(thresholds=(3.0, 4.0, 0.5), region=4),
}


@st.composite
def options(draw: st.DrawFn, lookahead: bool) -> dict:
    block = draw(st.sampled_from([None, None, 1, 3, 4, 50]))
    cache = draw(st.sampled_from(["prefix", "prefix", "block", "none"] if block else ["prefix", "prefix", "none"]))
    out = {"block_length": block, "cache": cache, "stop_early": draw(st.booleans())}
    if lookahead:
        out["lookahead"] = draw(st.sampled_from([None, None, 1, 2, 5, 0 if block else 3]))
    if cache != "block":
        out["refresh_every"] = draw(st.sampled_from([None, None, 1, 2, 3]))
        out["refresh_scattered"] = draw(st.booleans())
    return out


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_commits_windows_and_cache_slots_are_those_of_the_simulation(name: str, data: st.DataObject) -> None:
    """Also the provenance of every cache slot, after every pass: which pass wrote it, and from which token."""
    scheduler = SCHEDULERS[name]
    shifted = data.draw(st.booleans(), "shifted")
    chosen = data.draw(options(lookahead=not isinstance(scheduler, lsp.Prophet)), "options")
    new = data.draw(st.integers(0, 11), "new")
    lengths = data.draw(st.lists(st.integers(int(shifted), 6), min_size=1, max_size=3), "prompts")
    seed = data.draw(st.integers(0, 10**6), "seed")
    rows = script(seed, SIZE, MASK, ties=data.draw(st.booleans(), "ties"))
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, MASK, size=n).tolist() for n in lengths]
    try:
        expected = [
            simulate(
                rows, prompt, new, scheduler, mask=MASK, shifted=shifted, stops=STOPS, delimiters=DELIMITERS, **chosen
            )
            for prompt in prompts
        ]
    except Ambiguous:
        assume(False)

    model = scripted(rows, SIZE, MASK, shifted=shifted)
    vocabulary = Vocabulary(SIZE, DELIMITERS, STOPS, suppress=[MASK])
    for progress in lsp.decode(model, prompts, new, scheduler, vocabulary, lsp.Options(**chosen)):
        assert progress.passes == len(model.passes)
    assert progress.passes == max((len(e.passes) for e in expected), default=0)
    for b, (canvas, wanted) in enumerate(zip(progress.canvases, expected, strict=True)):
        got = [segments[b] for segments in model.passes]
        for index, step in enumerate(wanted.passes):
            assert got[index].positions == list(range(step.start, step.end)), f"pass {index}"
            assert (got[index].append, got[index].held) == (step.append, step.start), f"pass {index}"
            assert model.slots[index][b] == wanted.slots[index], f"pass {index}"
        assert all(not segment.tokens and not segment.append for segment in got[len(wanted.passes) :])
        assert canvas.run.tolist() == wanted.tokens
        assert commits(canvas) == [len(step.chosen) for step in wanted.passes]
        assert canvas.passes == len(wanted.passes)
        assert canvas.positions == sum(step.end - step.start for step in wanted.passes)


def first_commit(scheduler: object, rows: np.ndarray) -> list[int]:
    """Which of these masks the first step commits, after no prompt. The last id is the mask."""
    model = scripted(lambda _: rows, rows.shape[1], rows.shape[1] - 1)
    loop = lsp.decode(model, [[]], len(rows), scheduler, Vocabulary(rows.shape[1], range(1)))
    before, after = (next(loop).canvases[0].masked.copy() for _ in range(2))
    return np.flatnonzero(before & ~after).tolist()


def coin(*margins: float) -> np.ndarray:
    """Rows over two tokens and the mask: a confidence of 1 / (1 + exp(-margin))."""
    return np.array([[0.0, margin, 99.0] for margin in margins], dtype=np.float32)


def test_every_confidence_that_reaches_the_bound_counts_and_ties_go_to_the_left() -> None:
    assert first_commit(lsp.Threshold(0.4999), coin(0, 3, 0)) == [0, 1, 2]
    assert first_commit(lsp.Threshold(0.51), coin(0, 0, 0)) == [0]
    assert first_commit(lsp.Factor(1.501), coin(0, 0, 0, 0)) == [0, 1]  # just under 0.5, then 0.625
    assert first_commit(lsp.Factor(9.0), coin(0, 0, 0, 0)) == [0, 1, 2, 3]
    assert first_commit(lsp.Full(), coin(1, 2, 2)) == [1]
    assert first_commit(lsp.TopK(2), coin(1, 2, 2, 2)) == [1, 2]
    assert first_commit(lsp.TopK(9), coin(1, 2)) == [0, 1]


def test_confidence_is_ranked_where_a_probability_is_one() -> None:
    assert first_commit(lsp.Full(), coin(60, 61, 60.5)) == [1]
    assert first_commit(lsp.TopK(2), coin(60, 61, 60.5)) == [1, 2]


def test_a_scattered_margin_takes_as_many_as_the_candidate_prefix_is_long() -> None:
    rule = PrefixRule(0.25, 0.75)
    assert first_commit(lsp.ScatteredMargin(rule), coin(5, 4, 1, 9)) == [0, 3]  # a run of two, then the largest two
    assert first_commit(lsp.ScatteredMargin(rule), coin(1, 2, 3, 4)) == [1, 2, 3]  # no run ends: the most
    assert first_commit(lsp.ScatteredMargin(PrefixRule(floor=2.0, beta=1.0)), coin(1, 9, 3, 3)) == [1]


def test_a_prefix_takes_what_the_rule_says() -> None:
    floor = PrefixRule(floor=2.0, beta=1.0, snap=False)
    assert first_commit(lsp.LongestStablePrefix(floor), coin(3, 2, 1, 9)) == [0, 1]
    assert first_commit(lsp.LongestStablePrefix(floor), coin(1, 9, 9)) == [1, 2]
    assert first_commit(lsp.LongestStablePrefix(floor, islands=None), coin(1, 9, 9)) == [0]
    assert first_commit(lsp.LongestStablePrefix(PrefixRule(0.25, 0.75, snap=False)), coin(5, 4, 1, 9)) == [0, 1]
    assert first_commit(lsp.FixedPrefix(2), coin(0, 0, 9)) == [0, 1]


@pytest.mark.abuse("schedulers")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lsp.TopK(0), "Invalid k"),
        (lambda: lsp.FixedPrefix(0), "Invalid k"),
        (lambda: lsp.Threshold(0.0), "Invalid p: expected 0 < p <= 1, got 0.0"),
        (lambda: lsp.Threshold(math.nan), "Invalid p"),
        (lambda: lsp.Factor(0), "Invalid f: expected f > 0"),
        (lambda: lsp.Prophet((1, 2)), "Invalid thresholds: expected three numbers"),
        (lambda: lsp.Prophet(region=0), "Invalid region"),
        (lambda: lsp.LongestStablePrefix(islands=-1.0), "Invalid islands: expected a margin of at least 0"),
        (lambda: lsp.LongestStablePrefix(PrefixRule(), islands=1.0), "Invalid islands: expected a rule with a floor"),
        (
            lambda: lsp.LongestStablePrefix(PrefixRule(floor=1.0, beta=0.9), islands=1.0),
            "Invalid islands: expected a rule with a floor and beta = 1",
        ),
        (lambda: lsp.LongestStablePrefix(stuck="last"), "Invalid stuck: expected 'first' or 'best', got 'last'"),
        (lambda: lsp.LongestStablePrefix(islands=None, stuck="best"), "Invalid stuck: 'best' expects islands"),
    ],
)
def test_parameters_that_make_no_sense_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_every_name_is_a_scheduler() -> None:
    assert {type(scheduler_of(name)) for name in NAMES} == {type(s) for s in SCHEDULERS.values()}
    assert scheduler_of(None) == lsp.LongestStablePrefix()

"""Every scheduler, with every option of the loop, does what a brute-force simulation does, pass by pass."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lsp
from lsp.schedulers import NAMES, DreamOrder, scheduler_of
from lsp_kernels import PrefixRule, Vocabulary
from tests.lsp.agreement import check_agreement
from tests.lsp.recorder import scripted
from tests.lsp.simulation import RULES
from tests.support import examples

GUARDED = PrefixRule.guarded()
SCHEDULERS = {
    "paper": lsp.LongestStablePrefix(PrefixRule()),
    "paper keep": lsp.LongestStablePrefix(PrefixRule(0.3, 0.7, no_delimiter="keep", window=2)),
    "default": lsp.LongestStablePrefix(),
    "guarded": lsp.LongestStablePrefix(islands=None),
    "guarded half": lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=0.5, min_length=2, no_delimiter="minimum")),
    "fading": lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=0.8, window=3), fade=0.3),
    "islands": lsp.LongestStablePrefix(GUARDED, 3.0, "first", fade=0.0),
    "islands fading": lsp.LongestStablePrefix(PrefixRule(floor=1.0, beta=1, snap=False), 2.0, fade=0.25),
    "best": lsp.LongestStablePrefix(PrefixRule(floor=2.0, beta=1, window=4), None, "best"),
    "islands best": lsp.LongestStablePrefix(PrefixRule(floor=5.0, beta=1, snap=False), islands=8.0, stuck="best"),
    "islands all": lsp.LongestStablePrefix(PrefixRule(floor=math.inf, beta=1, snap=False), islands=0.0),
    "stable": lsp.LongestStablePrefix(PrefixRule(floor=1.0, beta=1, snap=False), stable=2),
    "stable snap": lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=0.8, window=3), stable=2),
    "stable best": lsp.LongestStablePrefix(PrefixRule(floor=1.0, beta=1, snap=False), stuck="best", stable=3),
    "less": lsp.Less(0.4),
    "klass": lsp.Klass(0.3, 3.0),
    "entropy": lsp.EntropyBound(0.5),
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


@pytest.mark.parametrize("name", SCHEDULERS)
@examples(25)
@given(data=st.data())
def test_commits_passes_and_cache_slots_are_those_of_the_simulation(name: str, data: st.DataObject) -> None:
    check_agreement(SCHEDULERS[name], data)


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
    assert first_commit(lsp.LongestStablePrefix(floor, fade=0), coin(3, 2, 1, 9)) == [0, 1]
    assert first_commit(lsp.LongestStablePrefix(floor), coin(1, 9, 9)) == [1, 2]
    assert first_commit(lsp.LongestStablePrefix(floor, islands=None), coin(1, 9, 9)) == [0]
    assert first_commit(lsp.LongestStablePrefix(PrefixRule(0.25, 0.75, snap=False)), coin(5, 4, 1, 9)) == [0, 1]
    assert first_commit(lsp.FixedPrefix(2), coin(0, 0, 9)) == [0, 1]


def test_a_margin_counts_less_for_every_mask_before_it() -> None:
    floor = PrefixRule(floor=2.0, beta=1.0, snap=False)
    prefix, islands = lsp.LongestStablePrefix(floor, None, fade=0.5), lsp.LongestStablePrefix(floor, 4.0, fade=0.5)
    assert first_commit(prefix, coin(2, 2.5, 3, 3.25, 9)) == [0, 1, 2]
    assert first_commit(islands, coin(1, 4.25, 5, 5.25, 9)) == [2, 4]
    assert first_commit(islands, coin(1, 1.25, 1.75, 2.75)) == [3]  # 1, 0.75, 0.75 and 1.25 count
    assert first_commit(islands, coin(1, 1.5, 2, 2.5)) == [0]  # all count as much
    everything = lsp.LongestStablePrefix(PrefixRule(floor=0.0, beta=1.0, snap=False), None, fade=0.5)
    assert first_commit(everything, coin(1, 0.25, 0.25)) == [0, 1, 2]  # none counts less than 0
    assert first_commit(lsp.LongestStablePrefix(floor, fade=1e6), coin(3, 9, 9, 9)) == [0]


def test_a_rule_on_the_host_has_the_tables_of_the_vocabulary_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be on a GPU: a copy from there in every pass, for every sequence, would cost more than the rule."""
    copies, to = [], Vocabulary.to
    monkeypatch.setattr(Vocabulary, "to", lambda self, device: copies.append(str(device)) or to(self, device))
    answers = lsp.generate(lsp.load("tiny"), ["Use 3, 5 and 7 to make 15.\n"] * 3, max_new_tokens=32)
    assert min(answer.passes for answer in answers) > 1
    assert len(copies) <= 2  # to the device of the model, and to the host


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
        (lambda: lsp.LongestStablePrefix(PrefixRule(), stuck="best"), "Invalid stuck: expected a rule with a floor"),
        (lambda: lsp.LongestStablePrefix(fade=-0.1), "Invalid fade: expected a number from 0 to 1e[+]06, got -0.1"),
        (lambda: lsp.LongestStablePrefix(fade=math.nan), "Invalid fade: expected a number from 0 to 1e[+]06, got nan"),
        (lambda: lsp.LongestStablePrefix(fade=1e39), "Invalid fade: expected a number from 0 to 1e[+]06, got 1e[+]39"),
        (lambda: lsp.LongestStablePrefix(fade=10**400), "Invalid fade: expected a number from 0 to 1e[+]06, got 1000"),
        (lambda: lsp.LongestStablePrefix(PrefixRule(), fade=0.1), "Invalid fade: expected 0 or a rule with a floor"),
        (lambda: lsp.LongestStablePrefix(stable=0), "Invalid stable: expected an integer from 1"),
        (lambda: lsp.LongestStablePrefix(PrefixRule(), stable=2), "Invalid stable: expected 1 or a rule with a floor"),
    ],
)
def test_parameters_that_make_no_sense_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.abuse("schedulers")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (lsp.Threshold, "p"),
        (lsp.AdaBlock, "p"),
        (lsp.Factor, "f"),
        (lsp.Frechet, "delta"),
        (lsp.EntropyBound, "gamma"),
        (lsp.LocalLeap, "near_p"),
        (lsp.Less, "p"),
        (lsp.Klass, "kl"),
        (lsp.SchED, "high"),
        (lsp.LongestStablePrefix, "islands"),
        (DreamOrder, "alg_temp"),
        (lsp.Options, "temperature"),
        (lsp.Options, "top_p"),
        (lsp.Options, "cfg_scale"),
        (lsp.Options, "delimiter_confidence"),
    ],
)
def test_what_is_no_number_is_named(kind: type, name: str) -> None:
    for wrong in ("0.9", True, [0.9]):
        with pytest.raises(TypeError, match=re.escape(f"Invalid {name}: expected a number, got {wrong!r}")):
            kind(**{name: wrong})


@pytest.mark.abuse("schedulers")
def test_other_values_of_a_wrong_kind_are_named() -> None:
    for name in ("stop_early", "refresh_scattered"):
        with pytest.raises(TypeError, match=f"Invalid {name}: expected True or False, got 'no'"):
            lsp.Options(**{name: "no"})
    with pytest.raises(TypeError, match="Invalid thresholds: expected a number, got 'a'"):
        lsp.Prophet(("a", 1.0, 2.0))
    with pytest.raises(ValueError, match=r"Invalid thresholds: expected three numbers >= 0, got 7\.5"):
        lsp.Prophet(7.5)
    assert lsp.Threshold(np.float32(0.5)).p == lsp.Options(temperature=np.float64(0.5)).temperature == 0.5


def test_every_scheduler_of_the_package_is_compared_with_a_simulation() -> None:
    assert {type(s) for s in SCHEDULERS.values()} == set(RULES)
    rule = re.compile(r"def (\w+)\(scheduler: (.*), seen: Seen\)")
    elsewhere = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        text = file.read_text("utf-8")
        checked = [kinds for name, kinds in rule.findall(text) if re.search(rf"check_agreement\(.*, {name}\)", text)]
        elsewhere |= {kind.split(".")[-1] for kinds in checked for kind in kinds.split(" | ")}
    known = {kind.__name__ for kind in RULES} | elsewhere
    assert known == {type(scheduler_of(name)).__name__ for name in NAMES}


def dynamic_transfer(confidence: np.ndarray, factor: float) -> int:
    """How many tokens Fast-dLLM's `get_transfer_index_dynamic` takes: its arithmetic in other words."""
    bounds = [-1.0, *(1 - factor / (n + 1) for n in range(2, len(confidence) + 1))]
    ranked = sorted(confidence.tolist(), reverse=True)
    stop = next((i for i, (c, bound) in enumerate(zip(ranked, bounds, strict=True)) if c < bound), len(ranked) - 1)
    return stop + 1 if stop in (0, len(ranked) - 1) else stop


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12), st.sampled_from([0.1, 0.5, 0.75, 1.0, 2.0, 4.0]))
def test_a_factor_takes_as_many_as_fast_dllm(confidence: list[float], factor: float) -> None:
    ranked = np.array(sorted(confidence, reverse=True))
    assert lsp.Factor(factor).count(ranked) == dynamic_transfer(ranked, factor)


def test_a_confidence_at_its_bound_is_enough_for_a_factor() -> None:
    assert lsp.Factor(1.5).count(np.array([0.9, 0.5, 0.1, 0.1])) == 2  # 3 (1 - 0.5) = 1.5
    assert lsp.Factor(1.5).count(np.array([0.9, 0.499, 0.1, 0.1])) == 1


def test_a_factor_takes_all_when_only_the_last_misses_its_bound() -> None:
    assert lsp.Factor(1.0).count(np.array([0.999, 0.1])) == 2
    assert lsp.Factor(1.0).count(np.array([0.999, 0.1, 0.1])) == 1

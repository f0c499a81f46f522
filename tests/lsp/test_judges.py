"""The judges of the public tasks, and the counts of what documents cost; neither needs lm-eval."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest

from lsp.evaluation.counts import Cost, Counts
from lsp.evaluation.tasks import judges

PUZZLE = {"puzzle": "3102200002100320", "solution": "3142243142131324"}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("16 - 7 = 9, and 9 * 2 = 18. The final answer is 18.", True),
        ("The final answer is $1,018.00", False),
        ("18 dollars, no, 17", False),
        ("", False),
    ],
)
def test_gsm8k_goes_by_the_last_number(text: str, right: bool) -> None:
    assert judges.gsm8k({"answer": "9 * 2 = <<9*2=18>>18\n#### 18"}, [text]) == {"acc": right}


@pytest.mark.parametrize(
    ("text", "solved", "cells"),
    [
        pytest.param("The solved grid is 3142243142131324.", 1, 1, id="one line"),
        pytest.param("3142\n2431\n4213\n1324", 1, 1, id="rows"),
        pytest.param("3 1 4 2 | 2 4 3 1 | 4 2 1 3 | 1 3 2 4", 1, 1, id="groups"),
        pytest.param("1111111111111111 is wrong, 3142243142131324 is right", 1, 1, id="the last one counts"),
        pytest.param("3142243142131321", 0, 7 / 8, id="one wrong cell"),
        pytest.param("1234341221434321", 0, 2 / 8, id="a solved grid of another puzzle"),
        pytest.param("31422431421313240", 0, 0, id="17 digits"),
        pytest.param("314224314213132", 0, 0, id="15 digits"),
        pytest.param("", 0, 0, id="nothing"),
    ],
)
def test_sudoku_asks_for_a_solved_grid_that_keeps_what_is_given(text: str, solved: int, cells: float) -> None:
    assert judges.sudoku(PUZZLE, [text]) == {"acc": solved, "cells": pytest.approx(cells)}


def test_every_unit_of_a_grid_counts() -> None:
    assert judges.is_solved("3142243142131324")
    assert not judges.is_solved("1234123412341234")  # rows alone
    assert not judges.is_solved("1111222233334444")
    assert not judges.is_solved("1234234134124123")  # rows and columns, but not boxes
    assert not judges.is_solved("0" * 16)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (r"So \boxed{93 + 30 - 100}", True),
        (r"\boxed{100 - 93} no, \boxed{30 - (100 - 93)}", True),
        (r"\boxed{30 - (100 - 93) = 23}", True),
        ("First I think.\n30 - (100 - 93)", True),
        (r"\boxed{30 \times 100 \div 93}", False),
        (r"\boxed{30 + 93}", False),
        (r"\boxed{23}", False),
        (r"\boxed{30 + 93 - 100 + 0}", False),
        (r"\boxed{93 + 30 - 100 if True else 5}", False),
        (r"\boxed{30 / (93 - 93) + 100}", False),
        ("", False),
    ],
)
def test_countdown_computes_what_uses_every_number_once(text: str, right: bool) -> None:
    assert judges.countdown({"input": "30,100,93", "output": "23"}, [text]) == {"acc": right}


def test_an_expression_is_computed_exactly_and_nothing_else_is_run() -> None:
    assert judges.value_of("(1 / 3) * 3 - 1 / 2") == Fraction(1, 2)
    for text in (
        "2 ** 9",
        "-1",
        "__import__('os')",
        "1 if 1 else 2",
        "1.5",
        "True",
        "1 / 0",
        "1 +",
        "(" * 300,
        "1" * 300,
    ):
        assert judges.value_of(text) is None


def test_code_is_cut_out_of_its_fences_and_never_run() -> None:
    assert judges.code_of("Here:\n```python\ndef f():\n    return 1\n```\nDone.") == "def f():\n    return 1"
    assert judges.code_of("```\nx = 1") == "x = 1"
    assert judges.code_of("    return 1\n") == "    return 1\n"
    doc = {"prompt": 'import math\n\n\ndef f(x):\n    """Half."""\n', "entry_point": "f"}
    whole, body = judges.humaneval_programs(
        [["```python\ndef f(x):\n    return x / 2\n```"], ["    return x / 2"]], [doc] * 2
    )
    for (program,) in (whole, body):
        names: dict = {}
        exec(program, names)
        assert names["f"](3) == 1.5
    assert judges.mbpp_programs([["```python\nassert False\n```"]], [{}]) == [["assert False"]]


def test_a_document_is_counted_once_with_all_its_parts() -> None:
    here, there = Counts(), Counts()
    here.add("generate_until", "b", 3, (0, 0), Cost(5, 2, 20))
    here.add("generate_until", "b", 3, (0, 0), Cost(5, 2, 20))
    here.add("generate_until", "b", 3, (0, 1), Cost(7, 3, 30))
    there.add("generate_until", "b", 1, (0, 0), Cost(2, 1, 10))
    there.add("loglikelihood", "a", 0, (0, 0), Cost(1, 1, 4))
    for _ in range(2):  # told twice, counted once
        here.merge(pickle.loads(pickle.dumps(there)))
    found = here.summary()
    assert list(found) == ["a", "b"]
    assert found["b"] == {
        "documents": 2,
        "mean": {"tokens": 7.0, "passes": 3.0, "positions": 30.0},
        "by_document": {"doc_id": [1, 3], "tokens": [2, 12], "passes": [1, 5], "positions": [10, 50]},
    }
    here.begin("generate_until")
    assert list(here.summary()) == ["a"]

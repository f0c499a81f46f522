"""Traces: what the generator promises, and a judge that agrees with an independent simulation."""

import itertools
import random
import re
from collections import Counter

import pytest

from lsp.tiny.tasks import LEVELS, MAX_NUMBER, SPLITS, Problem, generate, region, verify
from lsp.tiny.tasks.problem import PIECES
from lsp.tiny.tasks.traces import LABELS, MOST_PROMPT, SHORTEST, OutOfRange, drill, execute, parse

EXAMPLE = ["A while a < 9 else E", "B a = a + 4", "C k = a", "D loop a < 9 from B"]
EXAMPLE += ["E for n = 2", "F next n to 3 from F", "G end"]
START = {"a": 3, "k": 0, "n": 5}
TRACE = """start  # a 3 k 0 n 5
A while a < 9 else E  # a 3 k 0 n 5 yes
B a = a + 4  # a 7 k 0 n 5
C k = a  # a 7 k 7 n 5
D loop a < 9 from B  # a 7 k 7 n 5 yes
B a = a + 4  # a 11 k 7 n 5
C k = a  # a 11 k 11 n 5
D loop a < 9 from B  # a 11 k 11 n 5 no
E for n = 2  # a 11 k 11 n 2
F next n to 3 from F  # a 11 k 11 n 3 yes
F next n to 3 from F  # a 11 k 11 n 4 no
G end  # a 11 k 11 n 4"""


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [p for level in LEVELS["traces"] for p in generate("traces", 12, split="dev", seed=5, level=level)]


def accepted(problem: Problem, text: str) -> bool:
    return verify([problem], [text])[0]


def simulated(problem: Problem) -> str:
    """The trace by Python itself: the program is translated into structured Python that says what it does."""
    code, depth = ["def run(a, k, n):", "    out = [f'start  # a {a} k {k} n {n}']"], 1
    say = 'out.append(f"{}  # a {{a}} k {{k}} n {{n}}{}")'

    def add(text: str) -> None:
        code.append("    " * depth + text)

    for line in problem.facts["program"]:
        _, word, *rest = line.split()
        if word == "while":
            condition = " ".join(rest[:3])
            add(say.format(line, f"{{' yes' if {condition} else ' no'}}"))
            add(f"while {condition}:")
            depth += 1
        elif word == "loop":
            add(say.format(line, f"{{' yes' if {' '.join(rest[:3])} else ' no'}}"))
            depth -= 1
        elif word == "for":
            add(" ".join(rest))
            add(say.format(line, ""))
            add("while True:")
            depth += 1
        elif word == "next":
            add(f"{rest[0]} += 1")
            add(say.format(line, f"{{' yes' if {rest[0]} <= {rest[2]} else ' no'}}"))
            add(f"if {rest[0]} > {rest[2]}: break")
            depth -= 1
        else:
            if word != "end":
                add(f"{word} {' '.join(rest)}")
            add(say.format(line, ""))
    add("return out")
    names: dict = {}
    exec("\n".join(code), names)
    return "\n".join(names["run"](**problem.facts["start"]))


def test_a_program_is_executed_line_by_line():
    assert "\n".join(execute(EXAMPLE, START)) == TRACE


def test_answers_are_what_python_does(problems):
    for problem in problems:
        assert simulated(problem) == problem.answer
        assert accepted(problem, problem.answer)


def test_the_second_line_of_a_drill_is_what_python_makes_of_the_first():
    rng, verdicts = random.Random(0), Counter()
    for _ in range(2000):
        before, after = drill(rng)
        statement, _, end = after.partition("  # ")
        _, word, *rest = statement.split()
        values = {name: int(value) for name, value in re.findall("([akn]) (\\d+)", before)}
        if word == "next":
            values[rest[0]] += 1
        elif word not in ("while", "loop"):
            exec(" ".join(rest) if word == "for" else " ".join([word, *rest]), {}, values)
        condition = {"next": [*rest[:1], "<=", *rest[2:3]], "while": rest[:3], "loop": rest[:3]}.get(word)
        verdict = "" if condition is None else (" no", " yes")[eval(" ".join(condition), {}, values)]
        assert end == " ".join(f"{name} {values[name]}" for name in "akn") + verdict
        assert set(values.values()) <= set(range(MAX_NUMBER + 1))
        verdicts[verdict] += 1
    assert min(verdicts[" yes"], verdicts[" no"]) > 0.35 * (verdicts[" yes"] + verdicts[" no"]) > 300


def test_a_loop_whose_condition_fails_at_once_is_passed_by():
    program = ["A while a > 9 else D", "B a = a - 1", "C loop a > 9 from B", "D end"]
    assert [line[0] for line in execute(program, START)] == ["s", "A", "D"]


def test_one_wrong_word_anywhere_is_rejected(problems):
    for problem in problems[::6]:
        pieces = re.findall(PIECES, problem.answer)
        for i, piece in enumerate(pieces):
            for wrong in ({" 0", " 17", " yes", " no", " a", "k", "\n"} - {piece}) if i % 7 == 0 else {" 17", ""}:
                if wrong != piece:
                    assert not accepted(problem, "".join([*pieces[:i], wrong, *pieces[i + 1 :]]))


@pytest.mark.parametrize("junk", ["", "\n", "start", "end", "yes", "def f(x):", "\x00", "start  # a 3"])
def test_junk_is_rejected(problems, junk):
    assert not accepted(problems[0], junk)
    assert not accepted(problems[0], problems[0].answer + "\n" + junk)
    assert not accepted(problems[0], problems[0].answer.replace("start", junk, 1) if junk != "start" else junk)


def test_levels_are_lengths_and_everything_fits_the_context(problems):
    for problem in problems:
        tokens = len(re.findall(PIECES, problem.answer))
        assert SHORTEST[problem.level] <= tokens <= problem.level < region("traces")
        assert len(re.findall(PIECES, problem.prompt)) <= MOST_PROMPT
    assert [(SHORTEST[b], a + 1) for a, b in itertools.pairwise(LEVELS["traces"])] == [
        (a + 1, a + 1) for a in LEVELS["traces"][:-1]
    ]
    assert MOST_PROMPT + region("traces") <= 640


def loops_of(problem: Problem) -> list[tuple[int, int]]:
    """First and last line of every loop; the tail names the line after the head."""
    program = problem.facts["program"]
    places = {line[0]: i for i, line in enumerate(program)}
    return [(places[line[-1]] - 1, i) for i, line in enumerate(program) if " from " in line]


def test_programs_are_labelled_in_order_and_never_say_the_same_twice(problems):
    for problem in problems:
        lines = problem.facts["program"]
        assert "".join(line[0] for line in lines) == LABELS[: len(lines)]
        assert len({line[2:] for line in lines}) == len(lines)
        assert lines[-1][2:] == "end"
        for first, last in loops_of(problem):
            assert lines[first][2:].startswith("while" if "loop" in lines[last] else "for")
            assert "loop" not in lines[last] or lines[first].endswith(f"else {LABELS[last + 1]}")


def test_programs_have_one_to_three_loops_and_some_one_in_another(problems):
    loops = [loops_of(problem) for problem in problems]
    assert {len(each) for each in loops} == {1, 2, 3}
    nested = [sum(a < c and d < b for a, b in each for c, d in each) for each in loops]
    assert {*nested} == {0, 1}


def test_values_stay_in_range_and_programs_differ_in_kind(problems):
    text = "\n".join(p.prompt + p.answer for p in problems)
    numbers = {int(n) for n in re.findall(r"\d+", text)}
    assert max(numbers) <= MAX_NUMBER
    assert len(numbers) > 40
    assert all(word in text for word in ("while", "for", " //", " %", " *", " yes", " no"))


def test_the_same_program_never_stands_in_two_splits():
    keys = [{p.key for p in generate("traces", 60, split=split, seed=2)} for split in SPLITS]
    assert not any(one & other for one, other in itertools.combinations(keys, 2))
    assert all(key.startswith("A ") and key.endswith(" end") for key in keys[0])


@pytest.mark.parametrize("line", ["A a = b", "A a += 1", "A while a < k else A", "a = 1", "A for a", "A loop", "A"])
def test_what_is_no_statement_is_an_error(line):
    with pytest.raises(ValueError, match="Invalid program: expected a new label and a statement"):
        parse([line, "B end"])


def test_a_label_twice_or_a_jump_to_nowhere_is_an_error():
    with pytest.raises(ValueError, match="expected a new label and a statement, got 'A end'"):
        parse(["A a = 1", "A end"])
    with pytest.raises(ValueError, match="expected a jump to one of its labels, got 'A while a < 9 else C'"):
        parse(["A while a < 9 else C", "B end"])


def test_a_program_that_does_not_end_or_leaves_the_numbers_has_no_trace():
    for program in (["A loop a < 9 from A", "B end"], ["A a = a - 4", "B end"], ["A a = a * 20", "B end"]):
        with pytest.raises(OutOfRange):
            execute(program, START)

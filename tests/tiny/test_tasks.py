"""The generators are deterministic and disjoint; the verifiers judge by meaning."""

import ast
import dataclasses
import random
import re

import pytest

from lsp.tiny.tasks import LEVELS, MAX_NUMBER, SPLITS, TASKS, TEMPLATES, Problem, draw, generate, verify

OPENINGS = {
    "arithmetic": ("Anna", "Ben", "John", "Leo", "Mary", "Natalia", "Sara", "Tom"),
    "sudoku": "Solve the sudoku:\n",
    "countdown": "Use ",
    "code": "Write ",
    "traces": "Trace from a = ",
}

each_task = pytest.mark.parametrize("task", TASKS)


def sample(task: str, n: int = 60, split: str = "test", seed: int = 7) -> list[Problem]:
    return list(generate(task, n, split=split, seed=seed))


def accepted(problem: Problem, text: str) -> bool:
    return verify([problem], [text])[0]


@each_task
def test_same_arguments_give_the_same_problems(task):
    assert sample(task) == sample(task)
    assert sample(task) != sample(task, seed=8)


@each_task
def test_splits_share_no_key(task):
    many = {"sudoku": 25, "traces": 60}.get(task, 400)
    keys = [{p.key for p in sample(task, many, s)} for s in SPLITS]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    assert not keys[1] & keys[2]


def test_keys_forget_the_wording_and_keep_what_makes_a_problem():
    rng = random.Random(0)
    stories: dict[str, set[str]] = {}
    while max(map(len, stories.values()), default=0) < 2:
        problem = draw("arithmetic", rng, "train", level=3)
        story = " ".join(re.findall(r"\d+|half|doubles|triples", problem.prompt))
        stories.setdefault(problem.key, set()).add(problem.prompt)
        assert problem.key.split()[0] in story.split()
    code = draw("code", rng, "train")
    assert not re.search(r"\d", code.key)
    sudoku = draw("sudoku", rng, "train")
    assert sudoku.key == sudoku.answer.replace("\n", "")


@pytest.mark.abuse("command line")
def test_unknown_split_is_an_error():
    with pytest.raises(ValueError, match="Invalid split"):
        draw("sudoku", random.Random(0), "validation")


@each_task
def test_templates_word_the_prompt_and_change_nothing_else(task):
    """The first template is the wording of the first checkpoint."""
    first, second = (list(generate(task, 8, seed=3, template=template)) for template in TEMPLATES)
    assert first == list(generate(task, 8, seed=3))
    for one, other in zip(first, second, strict=True):
        assert dataclasses.replace(other, prompt=one.prompt) == one
        assert other.prompt != one.prompt
        assert sorted(re.findall(r"\d+", other.prompt)) == sorted(re.findall(r"\d+", one.prompt))
        assert one.prompt.startswith(OPENINGS[task])
        assert accepted(other, one.answer)


@pytest.mark.abuse("command line")
def test_unknown_template_is_an_error():
    with pytest.raises(ValueError, match=r"Invalid template: expected one of \(0, 1\), got 2"):
        next(generate("sudoku", 1, template=2))


@each_task
def test_every_level_is_reached_and_can_be_asked_for(task):
    assert {p.level for p in sample(task, 120)} == set(LEVELS[task])
    for level in LEVELS[task]:
        assert [p.level for p in generate(task, 3, level=level)] == [level] * 3


@each_task
def test_generated_answers_are_accepted(task):
    problems = [p for split in SPLITS for p in sample(task, 40 if task == "traces" else 100, split)]
    assert all(verify(problems, [p.answer for p in problems]))


@each_task
def test_answer_of_another_problem_is_rejected(task):
    problems = [*{p.key: p for p in sample(task)}.values()]
    others = problems[1:] + problems[:1]
    if task == "sudoku":  # some puzzles are open enough for a foreign grid to be told apart only
        others = [dataclasses.replace(p, answer="1234\n1234\n1234\n1234") for p in others]
    assert not any(verify(problems, [p.answer for p in others]))


@pytest.mark.parametrize("task", ["arithmetic", "countdown", "sudoku", "traces"])
def test_changing_any_number_is_rejected(task):
    for problem in sample(task, 4 if task == "traces" else 60):
        pattern = r"\d" if task == "sudoku" else r"\d+"
        for match in re.finditer(pattern, problem.answer):
            wrong = str(int(match[0]) % 4 + 1) if task == "sudoku" else str(int(match[0]) + 1)
            text = problem.answer[: match.start()] + wrong + problem.answer[match.end() :]
            assert not accepted(problem, text), text


@each_task
def test_leaving_out_or_repeating_a_part_is_rejected(task):
    separator = {"arithmetic": ". ", "countdown": ", "}.get(task, "\n")
    for problem in sample(task, 15):
        parts = problem.answer.split(separator)
        first = 1 if task == "code" else 0
        shorter = [parts[:i] + parts[i + 1 :] for i in range(len(parts))]
        longer = [parts[: i + 1] + parts[i:] for i in range(first, len(parts) - 1)]
        if task == "code":  # a line that changes nothing may be left out
            shorter = [parts[1:], parts[:-1]]
            longer = [parts[: i + 1] + parts[i:] for i, p in enumerate(parts) if "+" in p]
        for changed in shorter + longer:
            assert not accepted(problem, separator.join(changed)), changed


def test_arithmetic_takes_any_wording_but_no_foreign_equation():
    problem = next(generate("arithmetic", 1, level=3))
    reworded = re.sub(r"(^|\. )[A-Z][a-z]+", r"\1So", problem.answer)
    reworded = reworded.replace("So final", "The final")
    assert reworded != problem.answer
    assert accepted(problem, reworded)
    swapped = re.sub(r"(\d+) - (\d+) = (\d+)", r"\3 + \2 = \1", problem.answer)
    foreign = problem.answer.replace("The final", "So 1 + 1 = 2 pens. The final")
    assert not accepted(problem, foreign)
    assert swapped == problem.answer or not accepted(problem, swapped)


def test_arithmetic_chains_every_result_into_the_next_step():
    for problem in sample("arithmetic"):
        equations = re.findall(r"(\d+) [-+*/] \d+ = (\d+)", problem.answer)
        assert len(equations) == problem.level
        assert [a for a, _ in equations[1:]] == [result for _, result in equations[:-1]]


def test_countdown_accepts_any_solution_and_only_with_its_own_numbers():
    facts = {"numbers": (3, 5, 7), "target": 26}
    problem = Problem("countdown", 1, "", "", "", facts)
    assert accepted(problem, "First 7 * 3 = 21, then 21 + 5 = 26.")
    assert accepted(problem, "First 3 * 7 = 21, then 5 + 21 = 26.")
    assert not accepted(problem, "First 7 * 3 = 21, then 20 + 6 = 26.")
    assert not accepted(problem, "First 21 + 5 = 26, then 26 + 0 = 26.")
    assert not accepted(problem, "First 7 + 3 = 10, then 10 + 5 = 15.")


def test_code_accepts_another_program_that_does_the_same():
    answer = "def f(x):  # 4\n    x = x * 2  # 8\n    return x  # 8"
    facts = {"name": "f", "start": 4, "reference": answer}
    problem = Problem("code", 4, "", answer, "", facts)
    assert accepted(problem, "def f(x):  # 4\n    a = x + x  # 8\n    return a  # 8")
    assert not accepted(problem, "def f(x):  # 4\n    a = x + x  # 9\n    return a  # 8")
    assert not accepted(problem, "def f(x):  # 4\n    x = x + 4  # 8\n    return x  # 8")
    assert not accepted(problem, "def g(x):  # 4\n    x = x * 2  # 8\n    return x  # 8")


def test_code_with_one_wrong_comment_is_rejected():
    problem = next(p for p in sample("code") if {"yes", "no", "skip"} <= set(p.answer.split()))
    lines = problem.answer.split("\n")
    wrong = {"yes": "no", "no": "yes", "skip": "yes"}
    texts = []
    for i, line in enumerate(lines):
        code, note = line.split("  # ")
        changed = f"{code}  # {wrong.get(note) or int(note) + 1}"
        texts += ["\n".join([*lines[:i], other, *lines[i + 1 :]]) for other in (changed, code)]
    assert not any(verify([problem] * len(texts), texts))


def test_code_with_one_wrong_constant_is_rejected():
    problems, texts = [], []
    for problem in sample("code", 20):
        for match in re.finditer(r" [-+] (\d)  # \d", problem.answer):
            text = problem.answer[: match.start(1)] + "1" + problem.answer[match.end(1) :]
            problems.append(problem)
            texts.append(text)
    assert len(texts) > 20
    assert not any(verify(problems, texts))


def test_code_has_nested_conditions_and_as_many_statements_as_its_level():
    nested = 0
    for problem in sample("code"):
        body = ast.parse(problem.answer).body[0]
        statements = [n for n in ast.walk(body) if isinstance(n, ast.If | ast.Assign)]
        assert len(statements) == problem.level
        ifs = [n for n in statements if isinstance(n, ast.If)]
        nested += any(isinstance(inner, ast.If) for n in ifs for inner in n.body)
    assert nested > 30


@pytest.mark.parametrize("task", ["arithmetic", "countdown", "code"])
def test_numbers_stay_within_the_vocabulary(task):
    numbers = {int(n) for p in sample(task, 300) for n in re.findall(r"\d+", p.prompt + p.answer)}
    assert max(numbers) <= MAX_NUMBER
    assert len(numbers) > 40

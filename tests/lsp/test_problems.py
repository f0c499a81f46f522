"""Problems come from the embedded tasks or from a file, and are judged by what the answers say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lsp.evaluation.problems import load_problems, same_number
from lsp.tiny import tasks
from lsp.tiny.tasks.problem import PIECES


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_embedded_tasks_are_judged_by_their_programs() -> None:
    drawn = list(tasks.generate("countdown", 3, split="dev", seed=4))
    problems = load_problems("countdown", 3, split="dev", seed=4)
    assert problems.prompts == [problem.prompt for problem in drawn]
    assert problems.judge([drawn[0].answer, "nonsense", drawn[2].answer]) == [True, False, True]


def test_a_task_says_how_long_its_answers_are_and_a_file_does_not(tmp_path: Path) -> None:
    assert [load_problems(task, 1).region for task in tasks.TASKS] == [96, 96, 96, 96, 432]
    assert load_problems(write(tmp_path / "a.jsonl", {"prompt": "p", "answer": "yes"}), 1).region is None


@pytest.mark.parametrize("task", tasks.TASKS)
def test_in_filling_hides_lines_that_the_given_answer_judges(task: str) -> None:
    problems = load_problems(f"infill-{task}", 12, split="dev", seed=3)
    drawn = list(tasks.generate(task, 12, split="dev", seed=3))
    assert problems.region == 0
    missing, after = [], []
    for prompt, problem in zip(problems.prompts, drawn, strict=True):
        assert isinstance(prompt, str)
        before, masks, rest = re.split(r"<mask:(\d+)>", prompt)
        hidden = (problem.prompt + problem.answer).removeprefix(before).removesuffix(rest)
        assert before + hidden + rest == problem.prompt + problem.answer
        assert len(re.findall(PIECES, hidden)) == int(masks) > 0
        missing.append(hidden)
        after.append(rest)
    assert len({hidden.count("\n") + hidden.count(".") for hidden in missing}) > 1 or task == "countdown"
    assert problems.judge([hidden + rest for hidden, rest in zip(missing, after, strict=True)]) == [True] * 12
    assert problems.judge(["x" + rest for rest in after]) == [False] * 12


def test_in_filling_of_all_tasks_takes_them_in_turn() -> None:
    """And few problems are the first of many."""
    problems = load_problems("infill", 7, split="dev", seed=3)
    each = [load_problems(f"infill-{task}", 2, split="dev", seed=3) for task in tasks.TASKS]
    expected = [of_task.prompts[i] for i in range(2) for of_task in each][:7]
    assert (problems.name, problems.prompts, problems.region) == ("infill", expected, 0)
    assert load_problems("infill", 12, split="dev", seed=3).prompts[:7] == expected
    drawn = [list(tasks.generate(task, 2, split="dev", seed=3))[i] for i in range(2) for task in tasks.TASKS][:7]
    right = []
    for prompt, problem in zip(problems.prompts, drawn, strict=True):
        assert isinstance(prompt, str)
        before, rest = re.split(r"<mask:\d+>", prompt)
        hidden = (problem.prompt + problem.answer).removeprefix(before).removesuffix(rest)
        right.append(hidden + rest)
    assert problems.judge(right) == [True] * 7
    assert problems.judge(["x", *right[1:]]) == [False] + [True] * 6


def test_a_level_and_a_wording_can_be_asked_for() -> None:
    longest = load_problems("traces", 3, level=420)
    assert all(336 <= length <= 420 for length in longest.lengths)
    worded = load_problems("countdown", 2, template=1)
    assert worded.prompts == [problem.prompt for problem in tasks.generate("countdown", 2, seed=1, template=1)]
    assert worded.fingerprint != load_problems("countdown", 2).fingerprint


def test_a_file_in_the_form_of_gsm8k_is_judged_by_the_last_number(tmp_path: Path) -> None:
    file = write(tmp_path / "gsm.jsonl", {"question": "How many?", "answer": "2 * 3 = 6\n#### 1,006"})
    problems = load_problems(file, 10)
    assert (problems.name, problems.prompts) == ("gsm", ["How many?"])
    assert problems.judge(["So it is 1006."]) == [True]
    assert problems.judge(["It is 1007."]) == problems.judge(["No idea."]) == [False]


def test_other_files_are_judged_as_asked(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"prompt": "p", "answer": "yes "}, {"prompt": "q", "answer": "no"})
    assert load_problems(file, 2).judge(["yes", "no, not"]) == [True, False]
    assert load_problems(file, 2, judge="contains").judge(["oh yes!", "no, not"]) == [True, True]
    assert len(load_problems(file, 1)) == 1


def test_prompts_of_a_file_can_be_chats(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"prompt": "p", "answer": "a"})
    assert load_problems(file, 1, chat=True).prompts == [[{"role": "user", "content": "p"}]]


@pytest.mark.parametrize(
    ("text", "answer", "same"),
    [
        ("-3", "#### -3", True),
        ("3.50", "3.5", True),
        ("", "3", False),
        ("1,200 clips", "1200", True),
        ("2", "12", False),
        ("5-10", "10", True),
    ],
)
def test_numbers_are_compared_as_numbers(text: str, answer: str, same: bool) -> None:
    assert same_number(text, answer) == same


@pytest.mark.abuse("result files and traces")
def test_what_is_wrong_with_a_task_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Invalid task: expected arithmetic, .* got 'chess'"):
        load_problems("chess", 1)
    with pytest.raises(ValueError, match="Invalid n: expected at least one problem, got 0"):
        load_problems("code", 0)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "p", "answer": "a"}\n{"prompt": "p"}\n')
    with pytest.raises(ValueError, match=r"broken.jsonl, line 2: expected an object"):
        load_problems(broken, 5)
    broken.write_bytes(b'\n{"prompt": "p", "answer": null}\n')
    with pytest.raises(
        ValueError, match=r"broken.jsonl, line 2: expected an object .* got TypeError\('str and NoneType'\)"
    ):
        load_problems(broken, 5)
    broken.write_text("")
    with pytest.raises(ValueError, match="got an empty file"):
        load_problems(broken, 5)
    with pytest.raises(ValueError, match="Invalid judge: expected number, exact, contains, got 'taste'"):
        load_problems(write(tmp_path / "a.jsonl", {"prompt": "p", "answer": "a"}), 1, judge="taste")


@pytest.mark.abuse("result files and traces")
@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe\x00", b"\x89PNG\r\n", b"[1]", b"3", b"null", b'"text"', b"{", b"{}", b"[" * 10**5,
     b'{"prompt": 3, "answer": "a"}', b'{"prompt": ["a"], "answer": "a"}', b'{"prompt": "p", "answer": [1]}'],
    ids=lambda line: repr(line[:20]),
)  # fmt: skip
def test_a_line_that_is_no_problem_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "broken.jsonl").write_bytes(line + b"\n")
    with pytest.raises(ValueError, match=r"Invalid .*broken.jsonl, line 1: expected an object with the texts"):
        load_problems(tmp_path / "broken.jsonl", 5)

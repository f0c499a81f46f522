"""Problems to compare schedulers on: the tasks of the embedded model, or any JSON lines file of prompts and answers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lsp.evaluation.infilling import ALL, PREFIX, with_hole
from lsp.prompts import Prompt
from lsp.tiny import tasks
from lsp.tiny.tasks.problem import PIECES

NUMBER = re.compile(r"(?:(?<![\w.])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


@dataclass(frozen=True)
class Problems:
    """Prompts, and a judge of the texts that answer them.

    Attributes
    ----------
    name : str
    prompts : list of prompts
    judge : callable
        From the texts, one per prompt and in their order, to whether each is right. Raises
        `lsp.tiny.tasks.CouldNotJudge` where that cannot be known.
    fingerprint : str
        A hash of the prompts, of the right answers and of how they are compared.
    region : int or None
        Tokens that the longest answer needs, if the task says so; 0 if nothing is appended.
    lengths : list of int
        Tokens of the right answers, of an embedded task.
    """

    name: str
    prompts: list[Prompt]
    judge: Callable[[Sequence[str]], list[bool]]
    fingerprint: str = ""
    region: int | None = None
    lengths: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompts)


def load_problems(
    task: str | Path,
    n: int,
    *,
    split: str = "test",
    seed: int = 1,
    template: int = 0,
    level: int | None = None,
    chat: bool = False,
    judge: str | None = None,
) -> Problems:
    """The first `n` problems of a task of the embedded model, by its name, or of a file.

    Parameters
    ----------
    task : str or path
        One of `lsp.tiny.tasks.TASKS`; ``infill-`` and one of them, whose answers lack some lines or sentences, or
        ``infill``, which takes them in turn; or JSON lines with ``prompt`` (or ``question``) and ``answer``.
    n : int
        The largest number of problems.
    split, seed, template, level
        For the embedded tasks: which of their disjoint splits, which problems of it, how prompts are worded, and how
        difficult they are, by default at all levels.
    chat : bool
        Whether the prompts of a file go through the tokenizer's chat template.
    judge : {"number", "exact", "contains"}, optional
        For a file: the last number is that of the answer (the default if the answer holds ``####``, as GSM8K's do),
        the text is the answer (the default otherwise), or it contains it.
    """
    if n < 1:
        raise ValueError(f"Invalid n: expected at least one problem, got {n}")
    if judge is not None and judge not in JUDGES:
        raise ValueError(f"Invalid judge: expected {', '.join(JUDGES)}, got {judge!r}")
    if str(task) == ALL or str(task).removeprefix(PREFIX) in tasks.TASKS:
        return _embedded(str(task), n, split=split, seed=seed, template=template, level=level)
    path = Path(task)
    if not path.is_file():
        names = f"{', '.join(tasks.TASKS)}, one of these after {PREFIX}, {ALL}, or a file of JSON lines"
        raise ValueError(f"Invalid task: expected {names}, got {str(task)!r}")
    prompts, answers = zip(*_read(path, n), strict=True)
    judge = judge or ("number" if "####" in answers[0] else "exact")
    right = JUDGES[judge]
    asked: list[Prompt] = [[{"role": "user", "content": prompt}] if chat else prompt for prompt in prompts]
    return Problems(
        path.stem,
        asked,
        lambda texts: [right(t, a) for t, a in zip(texts, answers, strict=True)],
        _fingerprint(asked, answers, judge),
    )


def _embedded(name: str, n: int, *, seed: int, **how: Any) -> Problems:
    """Problems of an embedded task, or answers with a hole in each."""
    among = tasks.TASKS if name == ALL else (name.removeprefix(PREFIX),)
    for task in among:
        tasks.check_judge(task)
    each = [tasks.generate(task, -(-n // len(among)), seed=seed, **how) for task in among]
    drawn = [problem for in_turn in zip(*each, strict=True) for problem in in_turn][:n]
    answers = [problem.answer for problem in drawn]
    lengths = [len(re.findall(PIECES, answer)) for answer in answers]
    if name in tasks.TASKS:
        prompts: list[Prompt] = [problem.prompt for problem in drawn]
        mark = _fingerprint(prompts, answers)
        return Problems(name, prompts, lambda texts: tasks.verify(drawn, texts), mark, tasks.region(name), lengths)
    holes = [with_hole(problem, seed) for problem in drawn]
    prompts = [hole.prompt for hole in holes]

    def judge(texts: Sequence[str]) -> list[bool]:
        return tasks.verify(drawn, [hole.answer(text) for hole, text in zip(holes, texts, strict=True)])

    return Problems(name, prompts, judge, _fingerprint(prompts, answers), 0, lengths)


def _fingerprint(*content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _read(path: Path, n: int) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if len(out) == n:
                break
            if not line.strip():
                continue
            try:
                row: dict[str, Any] = json.loads(line)
                prompt, answer = row["prompt"] if "prompt" in row else row["question"], row["answer"]
                if not isinstance(prompt, str) or not isinstance(answer, str | int | float):
                    raise TypeError(f"{type(prompt).__name__} and {type(answer).__name__}")
                out.append((prompt, str(answer)))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                wanted = 'an object with the texts "prompt" and "answer"'
                raise ValueError(f"Invalid {path}, line {number}: expected {wanted}, got {error!r}") from None
    if not out:
        raise ValueError(f"Invalid {path}: expected JSON lines, got an empty file")
    return out


def same_number(text: str, answer: str) -> bool:
    """Whether the last number of both is the same."""
    found, wanted = (NUMBER.findall(s) for s in (text, answer.split("####")[-1]))
    return bool(found) and bool(wanted) and float(found[-1].replace(",", "")) == float(wanted[-1].replace(",", ""))


JUDGES: dict[str, Callable[[str, str], bool]] = {
    "number": same_number,
    "exact": lambda text, answer: text.strip() == answer.strip(),
    "contains": lambda text, answer: answer.strip() in text,
}

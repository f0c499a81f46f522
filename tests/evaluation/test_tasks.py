"""Real runs of lm-eval: the embedded model on its own tasks, and the first items of the public ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="needs lm-eval: make test-eval")

import lsp
import lsp.integrations.lm_eval
from lsp.evaluation.problems import load_problems
from lsp.evaluation.tasks import FOLDER
from lsp.tiny import known_tasks
from lsp.tiny.tasks import region
from tests.evaluation.runs import PUBLIC, items, local_copies, run, samples
from tests.evaluation.scripted import scripted

pytestmark = pytest.mark.evaluation
PROBLEMS = 12
TASKS = known_tasks()
COSTS = ("tokens", "passes", "positions")


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    names = [f"lsp_tiny_{task}" for task in TASKS]
    return run(names, model_args={"pretrained": "tiny", "batch_size": 5}, limit=PROBLEMS)


@pytest.mark.parametrize("task", TASKS)
def test_the_embedded_model_scores_what_the_judge_of_the_project_says(tiny: dict[str, Any], task: str) -> None:
    problems = load_problems(task, PROBLEMS, split="test", seed=1)
    answers = lsp.generate(lsp.load("tiny"), problems.prompts, max_new_tokens=region(task))
    verdicts = problems.judge([answer.text or "" for answer in answers])
    found = samples(tiny, f"lsp_tiny_{task}")
    assert [found[i]["resps"] for i in range(PROBLEMS)] == [[[answer.text]] for answer in answers]
    assert [found[i]["acc"] for i in range(PROBLEMS)] == verdicts
    assert tiny["results"][f"lsp_tiny_{task}"]["acc,none"] == pytest.approx(sum(verdicts) / PROBLEMS)
    assert sum(verdicts) > PROBLEMS / 2


@pytest.mark.parametrize("task", TASKS)
def test_the_results_say_what_every_document_cost(tiny: dict[str, Any], task: str) -> None:
    problems = load_problems(task, PROBLEMS, split="test", seed=1)
    answers = lsp.generate(lsp.load("tiny"), problems.prompts, max_new_tokens=region(task))
    counts = tiny["config"]["lsp"]["counts"][f"lsp_tiny_{task}"]
    costs = {
        "doc_id": list(range(PROBLEMS)),
        "tokens": [len(answer.tokens) for answer in answers],
        "passes": [answer.passes for answer in answers],
        "positions": [answer.positions for answer in answers],
    }
    assert counts["by_document"] == costs
    assert counts["documents"] == PROBLEMS
    assert counts["mean"] == {name: pytest.approx(sum(costs[name]) / PROBLEMS) for name in COSTS}


def test_the_results_say_how_it_was_decoded(tiny: dict[str, Any]) -> None:
    about = tiny["config"]["lsp"]
    assert about["scheduler"] == repr(lsp.LongestStablePrefix())
    assert about["options"]["lookahead"] == 64
    assert (about["mc_num"], about["seed"], about["processes"]) == (128, 0, 1)


def test_the_number_of_problems_and_the_split_can_be_chosen() -> None:
    metadata = {"problems": 2, "split": "dev", "problem_seed": 5}  # as --metadata has it
    found = run("lsp_tiny_countdown", model_args={"pretrained": "tiny"}, metadata=metadata)
    asked = [each["doc"]["prompt"] for each in samples(found, "lsp_tiny_countdown").values()]
    assert asked == load_problems("countdown", 2, split="dev", seed=5).prompts


# Public tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return local_copies(tmp_path_factory.mktemp("tasks"))


RIGHT = {
    "gsm8k": [f"Let me see. The final answer is {number}." for number in (18, 3, "70,000")],
    "sudoku": [f"Row by row. The solved grid:\n{item['Solution']}" for item in items("sudoku")],
    "countdown": [rf"\boxed{{{text}}}" for text in ("93 + 30 - 100", "83 - 18 \\times 75", "76 - (41 + 59)")],
    "humaneval_answers": ["```python\nfirst\n```", ""],
    "mbpp_answers": ["```python\nfirst\n```", "```python\nsecond\n```"],
}
"""What the scripted model says to each item, and below what that is worth."""

WORTH = {
    "gsm8k": {"acc": [1, 1, 1]},
    "sudoku": {"acc": [1, 1, 1], "cells": [1, 1, 1]},
    "countdown": {"acc": [1, 0, 0]},
    "humaneval_answers": {"answered": [1, 0]},
    "mbpp_answers": {"answered": [1, 1]},
}
KEYS = {"gsm8k": "question", "sudoku": "Puzzle", "humaneval_answers": "prompt", "mbpp_answers": "prompt"}


@pytest.mark.parametrize("task", RIGHT)
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_the_first_documents_of_the_public_tasks_are_asked_and_judged(folder: Path, task: str, chat: bool) -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        (number,) = [i for i, item in enumerate(items(task)) if key(item) in prompt]
        return RIGHT[task][number]

    def key(item: dict[str, Any]) -> str:
        return item[KEYS[task]] if task in KEYS else item["input"].replace(",", ", ")

    name = f"lsp_{task}"
    found = run(name, scripted(answer, batch_size=2), folder, apply_chat_template=chat)
    logged = samples(found, name)
    assert [logged[i]["resps"] for i in sorted(logged)] == [[[text]] for text in RIGHT[task]]
    for metric, values in WORTH[task].items():
        assert [logged[i][metric] for i in sorted(logged)] == values
        assert found["results"][name][f"{metric},none"] == pytest.approx(sum(values) / len(values))
    assert found["config"]["lsp"]["counts"][name]["documents"] == len(values)
    assert all(prompt.startswith("[user]") and prompt.endswith("[assistant]") for prompt in prompts) == chat


def test_every_public_task_is_zero_shot_and_greedy_and_says_where_its_data_are() -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    for task in PUBLIC:
        found = load_yaml(FOLDER / f"{task}.yaml", resolve_func=False)
        assert (found["task"], found["num_fewshot"]) == (f"lsp_{task}", 0)
        assert found["generation_kwargs"]["do_sample"] is False
        assert "/" in found["dataset_path"] or "https://" in str(found["dataset_kwargs"])
        assert bool(found.get("unsafe_code")) == (task in ("humaneval", "mbpp"))


# Programs


class Metric:
    """In place of the metric that lm-eval loads from the hub: it notes what it would run, and runs nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], list[list[str]], list[int]]] = []

    def compute(self, references: list[str], predictions: list[list[str]], k: list[int]) -> tuple[dict, dict]:
        self.asked.append((references, predictions, k))
        return {"pass@1": 0.25}, {}


@pytest.fixture
def metric(monkeypatch: pytest.MonkeyPatch) -> Metric:
    import evaluate

    stand_in = Metric()
    monkeypatch.setattr(evaluate, "load", lambda name: stand_in)
    monkeypatch.delitem(sys.modules, "lm_eval.tasks.humaneval.utils", raising=False)
    return stand_in


@pytest.fixture(autouse=True)
def _no_metric_is_kept() -> Iterator[None]:
    yield
    sys.modules.pop("lm_eval.tasks.humaneval.utils", None)


@pytest.mark.parametrize("task", ["humaneval", "mbpp"])
def test_programs_are_run_by_the_metric_of_lm_eval_and_only_with_consent(
    folder: Path, metric: Metric, task: str
) -> None:
    model = scripted(lambda prompt: "```python\ndef has_close_elements(a, b): ...\n```")
    with pytest.raises(ValueError, match="marked as unsafe"):
        run(f"lsp_{task}", model, folder)
    tried = len(metric.asked)  # lm-eval tries its metric on a program of its own when it loads it
    found = run(f"lsp_{task}", model, folder, confirm_run_unsafe_code=True)
    assert found["results"][f"lsp_{task}"]["pass_at_1,program"] == 0.25
    asked = [each for each in metric.asked[tried:] if "has_close_elements" in each[1][0][0]]
    first, (references, ((program,),), k) = items(task)[0], asked[0]
    assert (len(asked), k) == (2, [1])
    assert program.endswith("def has_close_elements(a, b): ...")
    if task == "humaneval":
        assert program.startswith(first["prompt"])
        assert references == [f"{first['test']}\ncheck(has_close_elements)"]
    else:
        assert references == ["\n".join(first["test_list"])]


@pytest.mark.parametrize("task", ["humaneval", "mbpp"])
def test_without_the_metric_nothing_is_decoded_in_vain(
    folder: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    import evaluate

    def offline(name: str) -> None:
        raise FileNotFoundError(f"no {name} here")

    def answer(prompt: str) -> str:
        raise AssertionError("decoded")

    monkeypatch.setattr(evaluate, "load", offline)
    with pytest.raises(FileNotFoundError, match="no code_eval here"):
        run(f"lsp_{task}", scripted(answer), folder, confirm_run_unsafe_code=True)

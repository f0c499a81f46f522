"""Evaluations in this process, on task files of ours and on copies of them that read a few items of their data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from lsp.evaluation.tasks import FOLDER

DATA = Path(__file__).parent / "data"
PUBLIC = {
    "gsm8k": "gsm8k.jsonl",
    "sudoku": "sudoku.csv",
    "countdown": "countdown.jsonl",
    "humaneval_answers": "humaneval.jsonl",
    "mbpp_answers": "mbpp.jsonl",
    "humaneval": "humaneval.jsonl",
    "mbpp": "mbpp.jsonl",
}
"""The task files of the public tasks, and the file of a few of their items."""


def run(
    tasks: str | Sequence[str],
    model: Any = "lsp",
    folder: Path = FOLDER,
    metadata: dict[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """The results of `simple_evaluate` as they would be written: only what JSON can hold."""
    manager = TaskManager(include_path=str(folder), include_defaults=False, metadata=metadata)
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    results = lm_eval.simple_evaluate(model, tasks=names, task_manager=manager, bootstrap_iters=0, **arguments)
    return json.loads(json.dumps(results, default=str))


def local_copies(folder: Path) -> Path:
    """The public tasks, with the items of this folder in place of the sets that have to be downloaded."""
    for task, file in PUBLIC.items():
        kind = "csv" if file.endswith(".csv") else "json"
        lines = [
            f"include: {FOLDER / task}.yaml",
            f"dataset_path: {kind}",
            "dataset_name: null",
            f"dataset_kwargs: {{data_files: {{test: {DATA / file}}}}}",
        ]
        (folder / f"{task}.yaml").write_text("\n".join(lines))
    return folder


def items(task: str) -> list[dict[str, Any]]:
    lines = (DATA / PUBLIC[task]).read_text("utf-8").splitlines()
    if lines[0].startswith("{"):
        return [json.loads(line) for line in lines]
    return [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]


def generation(context: str, number: int = 0, repeats: int = 1, **arguments: Any) -> Instance:
    """A request for text."""
    return Instance("generate_until", {}, (context, arguments), 0, ("task", number, repeats))


def likelihood(context: str, continuation: str, number: int = 0, idx: int = 0) -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), idx, ("task", number, 1))


def samples(results: dict[str, Any], task: str) -> dict[int, dict[str, Any]]:
    """What is logged of each document."""
    return {each["doc_id"]: each for each in results["samples"][task]}

"""The problems of the embedded model for lm-eval, drawn and judged by `lsp.tiny.tasks`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from lsp.extras import needed_by
from lsp.tiny import tasks


def problems(*, task: str, problems: int = 100, split: str = "test", problem_seed: int = 1, **_: Any) -> dict[str, Any]:
    """Problems of a task, as `lsp compare` draws them; what else lm-eval hands over is for the model.

    ``--metadata problems=300`` and the like change the numbers.
    """
    with needed_by("an evaluation"):
        from datasets import Dataset

    tasks.check_judge(task)
    rows = [asdict(each) for each in tasks.generate(task, problems, split=split, seed=problem_seed)]
    return {"test": Dataset.from_list([row | {"facts": json.dumps(row["facts"])} for row in rows])}


def judge(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    problem = tasks.Problem(**doc | {"facts": json.loads(doc["facts"])})
    (right,) = tasks.verify([problem], results[:1])
    return {"acc": float(right)}

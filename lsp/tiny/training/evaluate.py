"""Score a checkpoint: `python -m lsp.tiny.training.evaluate`.

Accuracy of Full decoding (one token a pass, the most confident), over the whole answer and in
blocks from left to right, per task and difficulty, with 95 % Wilson intervals, on problems that
were never trained on; with --threshold every token of that confidence is committed as well.
Decoding is by the project's own loop, and uncached but for traces, which would take an hour.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import lsp
from lsp.evaluation.intervals import wilson
from lsp.files import write_whole
from lsp.models import Transformer
from lsp.schedulers import Full, Threshold
from lsp.tiny import CHECKPOINT, known_tasks
from lsp.tiny.tasks import REGION, TASKS, TEMPLATES, Problem, generate, verify
from lsp.tiny.tasks import region as region_of

BATCH = 50
UNSAID = {"template": 0, "cache": "none"}
"""What a row of scores means where it does not say."""


def decode(
    model: Transformer,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    region: int = REGION,
    block_length: int | None = None,
    threshold: float | None = None,
) -> tuple[list[str], list[int]]:
    """Answers and the number of passes each took, by Full or by Threshold."""
    scheduler = Full() if threshold is None else Threshold(threshold)
    options: dict[str, Any] = {
        "scheduler": scheduler,
        "block_length": block_length or region,
        "cache": cache_for(region),
    }
    answers = lsp.generate(model, list(prompts), max_new_tokens=region, tokenizer=tokenizer, **options)
    return [answer.text or "" for answer in answers], [answer.passes for answer in answers]


def cache_for(region: int) -> str:
    """The cache that answers of this length are decoded with: none, or for long ones that of the prefix."""
    return "none" if region <= REGION else "prefix"


def score(
    model: Transformer,
    tokenizer: Any,
    problems: Sequence[Problem],
    block_length: int | None = None,
    threshold: float | None = None,
) -> tuple[list[bool], list[int]]:
    """Whether each problem is solved, and its passes; problems of like length are decoded together."""
    order = sorted(range(len(problems)), key=lambda i: len(problems[i].prompt + problems[i].answer))
    answers, passes = [""] * len(problems), [0] * len(problems)
    for i in range(0, len(order), BATCH):
        chunk = order[i : i + BATCH]
        prompts = [problems[j].prompt for j in chunk]
        length = max(region_of(problems[j].task) for j in chunk)
        decoded = decode(model, tokenizer, prompts, region=length, block_length=block_length, threshold=threshold)
        for j, text, count in zip(chunk, *decoded, strict=True):
            answers[j], passes[j] = text, count
    return verify(problems, answers), passes


def summarise(problems: Sequence[Problem], verdicts: Sequence[bool]) -> dict[str, Any]:
    """How many were solved, with the interval: in all and by level."""

    def count(verdicts: Sequence[bool]) -> dict[str, Any]:
        low, high = wilson(sum(verdicts), len(verdicts))
        return {"solved": sum(verdicts), "of": len(verdicts), "interval": [round(low, 4), round(high, 4)]}

    levels: dict[str, list[bool]] = {}
    for problem, verdict in sorted(zip(problems, verdicts, strict=True), key=lambda p: p[0].level):
        levels.setdefault(str(problem.level), []).append(verdict)
    return count(verdicts) | {"levels": {level: count(group) for level, group in levels.items()}}


def report(name: str, row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"  {name:8s} {100 * row['solved'] / row['of']:5.1f} %  [{100 * low:.1f}, {100 * high:.1f}]  n = {row['of']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=CHECKPOINT)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=known_tasks())
    parser.add_argument("--n", type=int, default=500, help="problems per task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", choices=("dev", "test"), default="test")
    parser.add_argument(
        "--blocks",
        type=int,
        nargs="+",
        default=[REGION, 16],
        metavar="LENGTH",
        help=f"of the blocks; from {REGION} on the whole answer is one",
    )
    parser.add_argument("--template", type=int, choices=TEMPLATES, default=0, help="wording of the prompts")
    parser.add_argument("--threshold", type=float, help="commit all of this confidence, not only the best")
    parser.add_argument("--bfloat16", action="store_true", help="weights in bfloat16, faster on some processors")
    parser.add_argument("--json", type=Path, help="also write the scores of these tasks to this file")
    options = parser.parse_args()
    how = "Full" if options.threshold is None else f"Threshold {options.threshold}"
    model = lsp.load(options.model, dtype=torch.bfloat16 if options.bfloat16 else torch.float32)
    tokenizer = lsp.load_tokenizer(model)
    scores = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for task in options.tasks:
        drawn = {"split": options.split, "seed": options.seed, "template": options.template}
        problems = list(generate(task, options.n, **drawn))
        for asked in options.blocks:
            block_length = asked if asked < REGION else region_of(task)
            before = time.monotonic()
            verdicts, passes = score(model, tokenizer, problems, block_length, options.threshold)
            settings = {"decoding": how, "block_length": block_length, "cache": cache_for(region_of(task)), **drawn}
            mean = round(sum(passes) / len(passes), 2)
            row = settings | {"passes": mean} | summarise(problems, verdicts)
            where = "whole" if block_length >= REGION else f"blocks of {block_length}"
            wording = f", template {options.template}" if options.template else ""
            print(f"{task}{wording}, {how}, {where}: {mean} passes a problem ({time.monotonic() - before:.0f} s)")
            print(report("all", row))
            for level, group in row["levels"].items():
                print(report(f"level {level}", group))
            others = [r for r in scores.get(task, []) if {**UNSAID, **r} | settings != {**UNSAID, **r}]
            scores[task] = [*others, row]
            if options.json:
                write_whole(options.json, json.dumps(scores, indent=2) + "\n")


if __name__ == "__main__":
    main()

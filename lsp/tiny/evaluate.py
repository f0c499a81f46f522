"""Score a checkpoint: `python -m lsp.tiny.evaluate`.

Accuracy of Full decoding (one token a pass, the most confident), over the whole answer and in
blocks from left to right, per task and difficulty, with 95 % Wilson intervals, on problems that
were never trained on. Decoding is plain and uncached.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from lsp.tiny import CHECKPOINT
from lsp.tiny import tokenizer as tokens
from lsp.tiny.model import TinyModel
from lsp.tiny.tasks import REGION, TASKS, Problem, generate, verify

BATCH = 50


def wilson(right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of `right` out of `n`."""
    share, spread = right / n, z * z / n
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


@torch.inference_mode()
def decode(
    model: TinyModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    region: int = REGION,
    block_length: int = REGION,
    threshold: float = math.inf,
) -> tuple[list[str], list[int]]:
    """Answers and the number of passes each took.

    Every pass commits the most confident mask of the current block, and all masks whose
    confidence reaches `threshold`. What follows a committed end-of-sequence is dropped.
    """
    mask_id, eos_id = model.config.mask_token_id, model.config.eos_token_id
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(list(prompts))]
    starts = torch.tensor([len(ids) for ids in encoded])
    ends = starts + region
    rows = torch.arange(len(encoded))
    passes = torch.zeros(len(encoded), dtype=torch.long)
    positions = torch.arange(int(ends.max()))
    ids = torch.full((len(encoded), len(positions)), mask_id)
    for row, prompt in zip(ids, encoded, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)

    masked = (positions >= starts[:, None]) & (positions < ends[:, None])
    while len(active := rows[masked.any(1)]):
        width = int(ends[active].max())
        visible = positions[:width] < ends[active, None]
        logits = model(ids[active, :width], visible[:, None, None, :])
        logits[..., mask_id] = -math.inf
        confidence, guess = logits.double().softmax(-1).max(-1)  # float32 saturates at 1
        chosen = _choose(confidence, masked[active, :width], starts[active], block_length, threshold)
        ids[active, :width] = torch.where(chosen, guess, ids[active, :width])
        masked[active, :width] &= ~chosen
        passes[active] += 1
        stopped = (ids == eos_id) & ~masked & (positions >= starts[:, None])
        first_stop = torch.where(stopped.any(1), stopped.int().argmax(1) + 1, ends)
        ends = torch.minimum(ends, first_stop)
        masked &= positions < ends[:, None]
    answers = [row[start:end] for row, start, end in zip(ids, starts, ends, strict=True)]
    texts = [tokenizer.decode(answer[answer != eos_id].tolist()) for answer in answers]
    return texts, passes.tolist()


def _choose(confidence: Tensor, masked: Tensor, starts: Tensor, block_length: int, threshold: float) -> Tensor:
    """The masks to commit, all within the block of the first one."""
    first = masked.int().argmax(1)
    ends = starts + ((first - starts) // block_length + 1) * block_length
    candidates = masked & (torch.arange(masked.shape[1]) < ends[:, None])
    confidence = confidence.masked_fill(~candidates, -1.0)
    chosen = candidates & (confidence >= threshold)
    chosen[torch.arange(len(chosen)), confidence.argmax(1)] = True
    return chosen


def score(
    model: TinyModel, tokenizer: Tokenizer, problems: Sequence[Problem], block_length: int = REGION
) -> list[bool]:
    """Whether Full decoding solves each problem; problems of like length are decoded together."""
    order = sorted(range(len(problems)), key=lambda i: len(problems[i].prompt + problems[i].answer))
    answers = [""] * len(problems)
    for i in range(0, len(order), BATCH):
        chunk = order[i : i + BATCH]
        prompts = [problems[j].prompt for j in chunk]
        texts, _ = decode(model, tokenizer, prompts, block_length=block_length)
        for j, text in zip(chunk, texts, strict=True):
            answers[j] = text
    return verify(problems, answers)


def summarise(problems: Sequence[Problem], verdicts: Sequence[bool]) -> dict[str, dict[str, float]]:
    """Accuracy and interval of all problems and of each level."""
    groups: dict[str, list[bool]] = {"all": list(verdicts)}
    for problem, verdict in sorted(zip(problems, verdicts, strict=True), key=lambda p: p[0].level):
        groups.setdefault(f"level {problem.level}", []).append(verdict)
    table = {}
    for name, group in groups.items():
        low, high = wilson(sum(group), len(group))
        accuracy = sum(group) / len(group)
        table[name] = {"n": len(group), "accuracy": accuracy, "low": low, "high": high}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=CHECKPOINT)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--n", type=int, default=500, help="problems per task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", choices=("dev", "test"), default="test")
    parser.add_argument("--blocks", type=int, nargs="+", default=[REGION, 16], metavar="LENGTH")
    parser.add_argument("--json", type=Path, help="also write the scores to this file")
    options = parser.parse_args()
    model, tokenizer = TinyModel.load(options.model), tokens.load(options.model)
    scores: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for task in options.tasks:
        problems = list(generate(task, options.n, split=options.split, seed=options.seed))
        for block_length in options.blocks:
            before = time.monotonic()
            table = summarise(problems, score(model, tokenizer, problems, block_length))
            how = "whole" if block_length >= REGION else f"blocks of {block_length}"
            scores.setdefault(task, {})[how] = table
            print(f"{task}, Full, {how} ({time.monotonic() - before:.0f} s)")
            for name, row in table.items():
                interval = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
                print(f"  {name:8s} {100 * row['accuracy']:5.1f} %  {interval}  n = {row['n']}")
    if options.json:
        recorded = {"split": options.split, "seed": options.seed, "scores": scores}
        options.json.write_text(json.dumps(recorded, indent=2) + "\n")


if __name__ == "__main__":
    main()

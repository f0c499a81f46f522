"""The shipped checkpoint is what it is said to be: small, in the public format, as good as recorded."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import lsp
from lsp.models import Transformer
from lsp.tiny import CHECKPOINT, known_tasks
from lsp.tiny.tasks import LEVELS, TASKS, generate, region
from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training.evaluate import score, wilson

FRESH, SEED = 50, 20
Z = 2.6
"""Both intervals reach this many deviations; they part in less than one case in 200."""

KNOWN = known_tasks()
FULL = ("Full", 16, None)


def threshold(task):
    return "Threshold 0.9", region(task), 0.9


DECODING = {
    "sudoku": FULL,
    "countdown": FULL,
    "arithmetic": threshold("arithmetic"),
    "code": threshold("code"),
    "traces": ("Threshold 0.99", 16, 0.99),
}
"""One token a pass, except where answers are so long that this would take a minute."""


def recorded(task, decoding):
    rows = json.loads((CHECKPOINT / "scores.json").read_text())[task]
    (row,) = (r for r in rows if (r["decoding"], r["block_length"], r.get("template", 0)) == (*decoding[:2], 0))
    return row


def consistent(right, n, other_right, other_n):
    """Whether the Wilson intervals of two counts overlap."""
    low, high = wilson(right, n, Z)
    other_low, other_high = wilson(other_right, other_n, Z)
    return low <= other_high and other_low <= high


def solve(model, task):
    problems = list(generate(task, FRESH, split="test", seed=SEED))
    return sum(score(model, lsp.load_tokenizer(CHECKPOINT), problems, *DECODING[task][1:])[0])


@pytest.fixture(scope="module")
def model():
    return lsp.load("tiny")


@pytest.mark.parametrize("task", KNOWN)
def test_fresh_problems_are_solved_as_often_as_recorded(model, task):
    row = recorded(task, DECODING[task])
    assert row["seed"] != SEED
    assert consistent(solve(model, task), FRESH, row["solved"], row["of"])


def test_an_untrained_model_does_not_reach_the_scores(model):
    torch.manual_seed(0)
    untrained = Transformer(replace(model.config, n_layers=1))
    solved = solve(untrained, "countdown")
    for task in KNOWN:
        row = recorded(task, DECODING[task])
        assert not consistent(solved, FRESH, row["solved"], row["of"])


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9, 0.98])
def test_two_counts_of_one_model_disagree_in_less_than_one_case_in_200(share):
    def chances(n):
        return [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]

    many, few = chances(500), chances(FRESH)
    alarms = sum(
        many[k] * few[j]
        for k in range(501)
        for j in range(FRESH + 1)
        if many[k] * few[j] > 1e-9 and not consistent(j, FRESH, k, 500)
    )
    assert alarms < 1 / 200


def test_what_it_knows_are_tasks_and_all_of_the_first_four():
    assert set(TASKS[:4]) <= set(KNOWN) <= set(TASKS)


@pytest.mark.parametrize("decoding", [lambda task: FULL, threshold], ids=["Full", "Threshold"])
@pytest.mark.parametrize("task", KNOWN)
def test_the_recorded_levels_and_intervals_add_up(task, decoding):
    row = recorded(task, decoding(task))
    assert row["of"] == 500
    assert {int(level) for level in row["levels"]} == set(LEVELS[task])
    assert sum(group["solved"] for group in row["levels"].values()) == row["solved"]
    assert sum(group["of"] for group in row["levels"].values()) == row["of"]
    for group in (row, *row["levels"].values()):
        assert group["interval"] == pytest.approx(wilson(group["solved"], group["of"]), abs=1e-4)


def test_the_checkpoint_is_small_and_in_the_public_format():
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) < 10_000_000
    config = json.loads((CHECKPOINT / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("llada", ["LLaDAModelLM"])
    tensors = load_file(CHECKPOINT / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert 2e6 < sum(tensor.numel() for tensor in tensors.values()) < 5e6
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    last = config["n_layers"] - 1
    names = ["wte", "ln_f", "ff_out", f"blocks.{last}.q_proj", f"blocks.{last}.ff_norm", f"blocks.{last}.up_proj"]
    assert {f"model.transformer.{name}.weight" for name in names} <= set(tensors)
    vocabulary = tokens.load(CHECKPOINT)
    assert vocabulary.get_vocab_size() == config["vocab_size"] == config["embedding_size"]
    assert tokens.token_id(vocabulary, tokens.MASK) == config["mask_token_id"]
    assert tokens.token_id(vocabulary, tokens.EOS) == config["eos_token_id"]

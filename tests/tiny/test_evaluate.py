"""Full decoding commits the most confident mask of a pass; scores come with right intervals."""

import json
import math

import pytest
import torch

import lsp
from lsp.evaluation.intervals import wilson
from lsp.tiny.tasks import TASKS, generate
from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training.evaluate import decode, main, score, summarise
from lsp.tiny.training.model import Config, TinyModel

SHORT = 24


@pytest.fixture(scope="module")
def words():
    return tokens.build(100)


@pytest.fixture(scope="module")
def plain(words):
    """Random weights that predict many different tokens, end-of-sequence among them."""
    torch.manual_seed(3)
    sizes = {"d_model": 64, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 96}
    model = TinyModel(Config(vocab_size=words.get_vocab_size(), **sizes)).eval()
    for weight in model.blocks.parameters():
        weight.data *= 4 if weight.dim() == 2 else 1
    torch.nn.init.normal_(model.ff_out.weight, std=0.3)
    model.ff_out.weight.data[model.config.eos_token_id] *= 3
    return model


@pytest.fixture(scope="module")
def folder(plain, words, tmp_path_factory):
    out = tmp_path_factory.mktemp("random")
    plain.save(out)
    tokens.save(words, out)
    return out


@pytest.fixture(scope="module")
def model(folder):
    return lsp.load(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(model):
    return lsp.load_tokenizer(model)


def one_by_one(model, tokenizer, prompt, block_length):
    """Full decoding of one prompt as its definition reads."""
    ids = tokenizer.encode(prompt).ids
    start, end = len(ids), len(ids) + SHORT
    ids = ids + [0] * SHORT
    open_, passes = set(range(start, end)), 0
    while open_:
        logits = model(torch.tensor([ids[:end]]))[0].double()
        logits[:, 0] = -math.inf
        confidence, guess = logits.softmax(-1).max(-1)
        block = (min(open_) - start) // block_length
        here = sorted(p for p in open_ if (p - start) // block_length == block)
        best = max(here, key=lambda p: (confidence[p].item(), -p))
        ids[best] = int(guess[best])
        if ids[best] == 1:
            end = min(end, best + 1)
        open_ = {p for p in open_ - {best} if p < end}
        passes += 1
    return tokenizer.decode([i for i in ids[start:end] if i != 1]), passes


@pytest.mark.parametrize("block_length", [SHORT, 8])
def test_a_batch_decodes_as_each_prompt_alone_by_definition(folder, words, model, tokenizer, block_length):
    prompts = [p.prompt for task in TASKS for p in generate(task, 3)]
    texts, passes = decode(model, tokenizer, prompts, region=SHORT, block_length=block_length)
    stored = TinyModel.load(folder)  # as plain as it was, in the float16 of the file
    alone = [one_by_one(stored, words, prompt, block_length) for prompt in prompts]
    assert list(zip(texts, passes, strict=True)) == alone
    assert len(set("".join(texts))) > 10
    assert min(passes) < SHORT


def test_a_threshold_commits_at_least_as_much_per_pass(model, tokenizer):
    prompts = [p.prompt for p in generate("sudoku", 2)]
    _, slow = decode(model, tokenizer, prompts, region=SHORT)
    _, fast = decode(model, tokenizer, prompts, region=SHORT, threshold=0.05)
    _, at_once = decode(model, tokenizer, prompts, region=SHORT, threshold=1e-9)
    assert at_once == [1, 1]
    assert all(b < a for a, b in zip(slow, fast, strict=True))


def test_scores_keep_the_order_of_the_problems(model, tokenizer, monkeypatch):
    problems = list(generate("arithmetic", 7))
    answers = {p.prompt: p.answer for p in problems[::2]}

    def solver(model, tokenizer, prompts, **_):
        return [answers.get(prompt, "") for prompt in prompts], [len(prompt) for prompt in prompts]

    monkeypatch.setattr("lsp.tiny.training.evaluate.decode", solver)
    verdicts, passes = score(model, tokenizer, problems)
    assert verdicts == [True, False] * 3 + [True]
    assert passes == [len(problem.prompt) for problem in problems]


def test_levels_add_up_to_all():
    problems = list(generate("countdown", 20))
    row = summarise(problems, [True] * 15 + [False] * 5)
    assert (row["solved"], row["of"]) == (15, 20)
    assert row["interval"] == pytest.approx(wilson(15, 20), abs=1e-4)
    assert sum(group["solved"] for group in row["levels"].values()) == 15
    assert sum(group["of"] for group in row["levels"].values()) == 20


def test_the_scores_of_another_call_join_those_in_the_file(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("lsp.tiny.training.evaluate.decode", lambda *_, **__: ([""] * 3, [7, 8, 9]))
    command = f"evaluate --model {folder} --n 3 --json {tmp_path / 'scores.json'} --blocks 16"
    for task in ("sudoku", "countdown", "countdown"):
        monkeypatch.setattr("sys.argv", [*command.split(), "--tasks", task])
        main()
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert {task: len(rows) for task, rows in scores.items()} == {"sudoku": 1, "countdown": 1}
    assert scores["sudoku"][0].items() >= {"passes": 8.0, "solved": 0, "of": 3, "seed": 1}.items()

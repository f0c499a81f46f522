"""Tokens join to real text and real text splits into the same tokens."""

import pytest

from lsp.tiny.tasks import TASKS, generate, region
from lsp.tiny.training import tokenizer as tokens


@pytest.fixture(scope="module")
def tokenizer():
    return tokens.build()


@pytest.mark.parametrize("template", [0, 1])
@pytest.mark.parametrize("task", TASKS)
def test_thousands_of_problems_round_trip(tokenizer, task, template):
    unknown = tokens.token_id(tokenizer, tokens.UNKNOWN)
    for problem in generate(task, 300 if task == "traces" else 1500, split="train", seed=11, template=template):
        prompt, answer = tokenizer.encode(problem.prompt).ids, tokenizer.encode(problem.answer).ids
        assert unknown not in prompt + answer
        assert tokenizer.decode(prompt) == problem.prompt
        assert tokenizer.decode(answer) == problem.answer
        assert tokenizer.encode(problem.prompt + problem.answer).ids == prompt + answer
        assert len(answer) < region(task)


def test_numbers_lines_and_indentation_are_single_tokens(tokenizer):
    text = "def f(x):  # 12\n    x = x // 2  # 6"
    pieces = ["def", " f", "(", "x", ")", ":", "  #", " 12", "\n    ", "x", " =", " x", " //"]
    assert tokenizer.encode(text).tokens == [*pieces, " 2", "  #", " 6"]
    assert tokenizer.encode("1_34").tokens == ["1", "_", "3", "4"]


def test_saving_and_loading_keeps_every_id(tokenizer, tmp_path):
    tokens.save(tokenizer, tmp_path)
    again = tokens.load(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    text = "First 7 * 3 = 21, then 21 + 5 = 26.\n"
    assert again.decode(again.encode(text).ids) == text


def test_transformers_reads_it(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokens.save(tokenizer, tmp_path)
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert fast.mask_token_id == tokens.token_id(tokenizer, tokens.MASK)
    assert fast.pad_token_id == fast.eos_token_id == tokens.token_id(tokenizer, tokens.EOS)
    chat = [{"role": "user", "content": "Use 3, 5 and 7 to make 26."}]
    assert fast.apply_chat_template(chat, tokenize=False) == "Use 3, 5 and 7 to make 26.\n"
    text = "def f(x):  # 2\n    return x  # 2"
    assert fast.decode(fast(text).input_ids) == text

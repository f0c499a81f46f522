"""A word-level tokenizer whose tokens join to real text without any rules.

A token carries the space or the line break with its indentation that stands before it, so
decoding is plain concatenation and encoding that text gives the same tokens back. A number after
a space is one token; a digit without one is a Sudoku cell.
"""

import itertools
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from lsp.tiny.tasks import MAX_NUMBER, TASKS, TEMPLATES, generate
from lsp.tiny.tasks.problem import PIECES
from lsp.tiny.tasks.traces import LABELS

MASK, EOS, UNKNOWN = "<mask>", "<eos>", "<unk>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] | trim }}\n{% endfor %}"


def build(samples: int = 500) -> Tokenizer:
    """The tokenizer of everything that the tasks can say."""
    splitter = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    words = {f" {number}" for number in range(MAX_NUMBER + 1)}
    words |= {before + label for before in ("", " ") for label in LABELS}
    for task, template in itertools.product(TASKS, TEMPLATES):
        few = samples // 5 if template or task == "traces" else samples  # few words are new there
        for problem in generate(task, few, split="train", template=template):
            text = problem.prompt + problem.answer
            words.update(piece for piece, _ in splitter.pre_tokenize_str(text))
    ids = {word: i for i, word in enumerate([MASK, EOS, UNKNOWN, *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([MASK, EOS, UNKNOWN])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and the tokenizer_config.json that transformers reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "mask_token": MASK,
        "eos_token": EOS,
        "pad_token": EOS,
        "unk_token": UNKNOWN,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 640,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    if (found := tokenizer.token_to_id(token)) is None:
        raise KeyError(f"the tokenizer has no token {token!r}")
    return found

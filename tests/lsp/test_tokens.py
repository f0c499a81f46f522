"""Delimiters, stops and masks are found in vocabularies of every kind."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import lsp
from lsp import tokens
from lsp.tokens import delimiter_ids, mask_id, stop_ids, token_texts, vocabulary
from tests.lsp.tokenizers_at_hand import TEXTS, byte_level, sentencepiece, word_level

BUILDERS = {"byte-level": byte_level, "sentencepiece": sentencepiece, "word-level": word_level}


@pytest.fixture(params=BUILDERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return BUILDERS[request.param]()


class Bare:
    """Any object with a vocabulary."""

    def __init__(self, vocab: dict[str, int]) -> None:
        self.vocab = vocab

    def get_vocab(self) -> dict[str, int]:
        return self.vocab


def texts_of(tokenizer: object, which: object) -> set[str]:
    texts = token_texts(tokenizer)
    return {texts[i] for i in delimiter_ids(tokenizer, which)}


@pytest.mark.parametrize("builder", ["byte-level", "sentencepiece"])
def test_texts_of_tokens_make_the_text(builder: str) -> None:
    tokenizer = BUILDERS[builder]()
    texts = token_texts(tokenizer)
    for text in TEXTS[:3]:
        ids = tokenizer.encode(text).ids
        whole = [texts[i] for i in ids]
        if not any("�" in part for part in whole):
            assert "".join(whole).removeprefix(" " if builder == "sentencepiece" else "") == text
        assert sum("�" in part for part in whole) < len(whole)


def test_every_set_holds_what_it_names(tokenizer: Tokenizer) -> None:
    for which, single in (("text", ",.;"), ("code", ";{"), ("cjk", "。"), ("all", ",.;{。")):
        found = {text.strip(" ") for text in texts_of(tokenizer, which)}
        present = {text.strip(" ") for text in token_texts(tokenizer).values()}
        assert {c for c in single if c in present} <= found, which
        assert {c for c in single if c in present}, which
    assert texts_of(tokenizer, "all") == {t for name in tokens.ENDINGS for t in texts_of(tokenizer, name)}


def test_kinds_exclude_each_other_where_they_should(tokenizer: Tokenizer) -> None:
    assert not any("。" in text or "，" in text for text in texts_of(tokenizer, "text"))
    assert not any(text.strip().endswith(",") for text in texts_of(tokenizer, "code"))
    assert not any(text.strip().endswith(".") for text in texts_of(tokenizer, "cjk"))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (",", {"clause"}),
        (" .", {"sentence"}),
        ('."', {"sentence"}),
        (".) ", {"sentence"}),
        ('," ', {"clause"}),
        ("!\n\n", {"sentence", "line"}),
        ("\n", {"line"}),
        ("\r\n", {"line"}),
        ("\n        ", {"line"}),
        ("\n    return", set()),
        (";", {"clause", "statement"}),
        (" }", {"statement"}),
        ("):\n", {"clause", "statement", "line"}),
        (":]", set()),
        (";)", set()),
        ("。」", {"cjk_sentence"}),
        ("，", {"cjk_clause"}),
        ("：", {"cjk_clause"}),
        ("……", {"sentence", "cjk_sentence"}),
        ("3.14", set()),
        ("etc.", {"sentence"}),
        ("word", set()),
        ("   ", set()),
        (")", set()),
        ("\ufffd", set()),
        ("", set()),
    ],
)
def test_what_a_token_ends_with_decides(text: str, kinds: set[str]) -> None:
    plain = Bare({text: 0, "other": 1})
    assert {kind for kind in tokens.ENDINGS if delimiter_ids(plain, kind) == [0]} == kinds


def test_custom_delimiters() -> None:
    plain = Bare({"a": 0, "→": 1, "b →": 2, " then": 3, ".": 4, "lathen": 5})
    assert delimiter_ids(plain, ["→"]) == [1, 2]
    assert delimiter_ids(plain, ("text", " then")) == [3, 4]
    assert delimiter_ids(plain, lambda text: text.startswith("b")) == [2]
    for wrong in ("texts", [], [""], [3]):
        with pytest.raises(ValueError, match="Invalid delimiters"):
            delimiter_ids(plain, wrong)


def test_special_tokens_are_no_delimiters_and_added_words_stand_for_themselves() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["stop."])
    found = delimiter_ids(tokenizer, "text")
    assert tokenizer.token_to_id("stop.") not in found
    assert tokenizer.token_to_id("END.") in found


def test_half_a_character_is_no_delimiter() -> None:
    """The last byte of a CJK full stop says nothing alone."""
    tokenizer = byte_level()
    last = tokenizer.token_to_id("Ĥ")  # 0x82
    assert token_texts(tokenizer)[last] == "�"
    assert last not in delimiter_ids(tokenizer, "all")
    newline = tokenizer.token_to_id("Ċ")
    assert token_texts(tokenizer)[newline] == "\n"
    assert newline in delimiter_ids(tokenizer, "code")


def test_every_byte_is_read_back() -> None:
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in [*map(chr, range(0x250)), "。", "🙂", "\u2028"]:
        [(token, _)] = alphabet.pre_tokenize_str(text)
        assert token_texts(Bare({"Ġ": 0, token: 1}))[1] == text


def test_bytes_of_sentencepiece_are_read() -> None:
    tokenizer = sentencepiece()
    newline = tokenizer.token_to_id("<0x0A>")
    assert newline in delimiter_ids(tokenizer, "text")
    assert tokenizer.token_to_id("<0x41>") not in delimiter_ids(tokenizer, "text")


@pytest.mark.parametrize("builder", ["byte-level", "sentencepiece"])
def test_looks_decide_where_there_is_no_fast_tokenizer(builder: str) -> None:
    tokenizer = BUILDERS[builder]()
    plain = {token: i for token, i in tokenizer.get_vocab().items() if i in token_texts(tokenizer)}
    texts = token_texts(Bare(plain))
    expected = token_texts(tokenizer)
    assert texts.keys() == expected.keys()
    assert sum(texts[i] != expected[i] for i in texts) <= 1  # an added word may look like one of the model's


def test_wrapped_by_transformers_nothing_changes(tokenizer: Tokenizer) -> None:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    for which in tokens.SETS:
        assert delimiter_ids(wrapped, which) == delimiter_ids(tokenizer, which)


def test_stops_and_masks() -> None:
    tokenizer = byte_level()
    end, turn, mask = (tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_end|>", "<|mask|>"))
    assert (stop_ids(tokenizer), mask_id(tokenizer)) == ([end, turn], mask)
    assert stop_ids(tokenizer, {"eos_token_id": [1, 2]}) == [1, 2, end, turn]
    assert mask_id(tokenizer, {"mask_token_id": 0}) == 0  # the config knows what the model was trained with
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="END.", mask_token="<|mask|>")
    assert tokenizer.token_to_id("END.") in stop_ids(wrapped)
    assert (stop_ids(), mask_id()) == ([], None)
    assert mask_id(Bare({"a": 0})) is None
    assert mask_id(word_level()) == 0
    assert stop_ids(sentencepiece()) == [1]


def test_vocabulary_of_the_embedded_model() -> None:
    model, tokenizer = lsp.load("tiny"), lsp.load_tokenizer("tiny")
    found = vocabulary(tokenizer, model.config, delimiters="all")
    assert found.size == model.config.vocab_size
    assert found.suppressed.tolist() == [model.config.mask_id]
    marked = (found.flags & 1).nonzero().flatten().tolist()
    assert {"\n", "\n    ", ".", ",", ":", ";", "?"} <= set(tokenizer.convert_ids_to_tokens(marked))
    assert (found.flags & 2).nonzero().flatten().tolist() == [1]


def test_vocabulary_is_as_large_as_the_logits() -> None:
    tokenizer = byte_level()
    known = max(tokenizer.get_vocab().values()) + 1
    assert vocabulary(tokenizer).size == known
    assert vocabulary(tokenizer, size=1000, suppress=[5]).size == 1000
    assert vocabulary(tokenizer, {"vocab_size": 900}).size == 900
    assert vocabulary(tokenizer, stops=[3], delimiters=["x"]).flags[3] == 2 + 8

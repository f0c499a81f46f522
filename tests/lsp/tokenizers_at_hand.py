"""Small tokenizers of the three kinds that models come with."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [
    'Hello, world. "How are you?" (Fine.) Well... yes; no: maybe!',
    "def f(x):\n    return {x: [1, 2]}\nfor i in y:\n\n    g(i);\n}\n",
    "好 。 好 。 你好，世界。「你好吗？」我很好、谢谢；是：对！",
] * 4
SPECIAL = ["<|endoftext|>", "<|im_end|>", "<|mask|>"]


def byte_level() -> Tokenizer:
    """As LLaDA's and Dream's are."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(["END."])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """BPE on pieces with "▁" for spaces and bytes as a last resort."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [text.replace("\n", " ") for text in TEXTS]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", "</s>", "<mask>", *pieces])
    tokenizer.train_from_iterator(words, trainer)
    vocab = {t: i for t, i in tokenizer.get_vocab().items()}
    merged = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    merged.pre_tokenizer, merged.decoder = tokenizer.pre_tokenizer, tokenizer.decoder
    merged.add_special_tokens(["<unk>", "</s>", "<mask>"])
    return merged


def word_level() -> Tokenizer:
    words = ["[MASK]", "</s>", "yes", ",", ".", "。", "\n", "\n    ", ";", ' said."', "{", "x:", ":]", " ", "a,b"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="yes"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[MASK]", "</s>"])
    return tokenizer

"""A run that starts from a checkpoint keeps what that knows, whatever the new vocabulary is."""

import pytest
import torch

from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training.model import Config, TinyModel
from lsp.tiny.training.start import start_from

SIZES = {"d_model": 64, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 96}


def small(words):
    """A tokenizer that knows these words in this order."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ids = {word: i for i, word in enumerate([tokens.MASK, tokens.EOS, tokens.UNKNOWN, *words])}
    out = Tokenizer(models.WordLevel(ids, unk_token=tokens.UNKNOWN))
    out.pre_tokenizer = pre_tokenizers.Split(Regex(tokens.PIECES), behavior="isolated")
    out.decoder = decoders.Fuse()
    return out


@pytest.fixture
def old(tmp_path):
    """The folder of a checkpoint that knows four words."""
    torch.manual_seed(0)
    TinyModel(Config(vocab_size=7, max_sequence_length=16, **SIZES)).save(tmp_path)
    tokens.save(small(["First", " =", " 1", " 2"]), tmp_path)
    return tmp_path


@pytest.fixture
def words():
    return small(["Trace", " 2", " =", " 3", "First", " 1", "end"])


@pytest.fixture
def model(words):
    torch.manual_seed(1)
    return TinyModel(Config(vocab_size=words.get_vocab_size(), **SIZES)).eval()


def test_known_words_get_the_same_logits(old, words, model):
    start_from(model, words, old)
    before, vocabulary = TinyModel.load(old), tokens.load(old)
    text = "First 1 = 2"
    ours, theirs = (torch.tensor([t.encode(text).ids]) for t in (words, vocabulary))
    both = sorted(vocabulary.get_vocab())
    known, same = ([t.token_to_id(word) for word in both] for t in (words, vocabulary))
    torch.testing.assert_close(model(ours)[..., known], before(theirs)[..., same], atol=1e-5, rtol=1e-5)


def test_new_words_differ_from_each_other_and_are_as_large_as_the_others(old, words, model):
    start_from(model, words, old)
    new = model.wte.weight[[words.token_to_id(word) for word in ("Trace", " 3", "end")]]
    assert torch.pdist(new).min() > 1
    assert new.std().item() == pytest.approx(TinyModel.load(old).wte.weight.std().item(), rel=0.4)


def test_a_checkpoint_of_another_shape_is_refused_and_nothing_is_changed(old, words):
    model = TinyModel(Config(vocab_size=words.get_vocab_size(), **(SIZES | {"n_layers": 3})))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"Invalid start: expected .*'n_layers': 3.*, got .*2"):
        start_from(model, words, old)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())

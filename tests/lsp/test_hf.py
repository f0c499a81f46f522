"""Transformers' Auto classes and tokenizers on folders in the public formats, without remote code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

import lsp
from lsp.tiny import CHECKPOINT
from tests.lsp.checkpoints import FAMILIES, Case, dream, ids_of, llada
from tests.lsp.tokenizers_at_hand import byte_level

CASES = {
    **FAMILIES,
    "llada-tied": lambda: llada(weight_tying=True),
    "dream-tied": lambda: dream(tie_word_embeddings=True),
}


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    lsp.register()
    lsp.register()  # once more changes nothing


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    make: Callable[[], Case] = CASES[request.param]
    return make()


@pytest.mark.parametrize("auto", [AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM])
def test_auto_classes_load_and_compute(auto: type, case: Case, tmp_path: Path) -> None:
    """The folder's `auto_map` names code that is not there: nothing asks for it."""
    model = auto.from_pretrained(case.save(tmp_path, shards=2), dtype=torch.float64, device_map="cpu")
    ids = ids_of(case, 20, masks=5)
    logits = model(torch.tensor([ids])).logits
    assert isinstance(model, transformers.PreTrainedModel)
    assert not model.training
    torch.testing.assert_close(logits[0], case.logits(ids), rtol=1e-9, atol=1e-9)


def test_a_padded_batch_equals_each_sequence_alone(case: Case, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(case.save(tmp_path), dtype=torch.float64)
    left, right = ids_of(case, 12, seed=1, masks=4), ids_of(case, 17, seed=2)
    batch = torch.tensor([[0] * 8 + left, [*right, 0, 0, 0]])
    mask = torch.tensor([[0] * 8 + [1] * 12, [1] * 17 + [0] * 3])
    logits = model(input_ids=batch, attention_mask=mask).logits
    torch.testing.assert_close(logits[0, 8:], case.logits(left), rtol=0, atol=1e-4)  # angles of other positions
    torch.testing.assert_close(logits[1, :17], case.logits(right), rtol=1e-9, atol=1e-9)
    assert not logits[mask == 0].any()
    with pytest.raises(ValueError, match="Invalid shape of input_ids and attention_mask"):
        model(batch, attention_mask=mask[:, :5])


@pytest.mark.parametrize("name", ["a2d-qwen2", "a2d-qwen3", "a2d-llama"])
def test_a2d_is_transformers_own_model_with_attention_in_both_directions(name: str, tmp_path: Path) -> None:
    case = FAMILIES[name]()
    case.config["model_type"] = name.removeprefix("a2d-")
    del case.config["auto_map"]
    model = AutoModelForCausalLM.from_pretrained(case.save(tmp_path), dtype=torch.float64)
    assert type(model).__module__.startswith("transformers.")
    ids = torch.tensor([ids_of(case, 30, masks=9)])
    with torch.no_grad():
        logits = model(ids, attention_mask=torch.zeros(1, 1, 30, 30, dtype=torch.float64)).logits
    ours = lsp.load(tmp_path, dtype=torch.float64, shifted=False)
    hidden = ours(ids[0], torch.arange(30), torch.tensor([0, 30], dtype=torch.int32))
    torch.testing.assert_close(ours.lm_head(hidden), logits[0], rtol=0, atol=1e-4)  # norms in float32


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["Qwen2", "Qwen3", "Llama"])
def test_what_transformers_saves_is_loaded(name: str, tied: bool, tmp_path: Path) -> None:
    """Tiny-A2D's format is what `save_pretrained` of these classes writes, under another model_type."""
    shape = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 3}
    shape |= {"num_key_value_heads": 1, "vocab_size": 211, "tie_word_embeddings": tied, "head_dim": 32}
    config = getattr(transformers, f"{name}Config")(**shape)
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    model.save_pretrained(tmp_path)
    public = json.loads((tmp_path / "config.json").read_text()) | {"model_type": f"a2d-{name.lower()}"}
    (tmp_path / "config.json").write_text(json.dumps(public))
    ids = torch.arange(20, 38)[None]
    with torch.no_grad():
        logits = model(ids, attention_mask=torch.zeros(1, 1, 18, 18, dtype=torch.float64)).logits
    for ours in (lsp.load(tmp_path), AutoModel.from_pretrained(tmp_path).transformer):
        assert (ours.dtype, ours.config.tied, ours.config.shifted) == (torch.float64, tied, False)
        hidden = ours(ids[0], torch.arange(18), torch.tensor([0, 18], dtype=torch.int32))
        torch.testing.assert_close(ours.lm_head(hidden), logits[0], rtol=0, atol=1e-4 * float(logits.std()))


def test_save_pretrained_round_trip(case: Case, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(case.save(tmp_path / "first"))
    model.save_pretrained(tmp_path / "second", max_shard_size="100KB")
    assert "auto_map" not in json.loads((tmp_path / "second" / "config.json").read_text())
    again = AutoModel.from_pretrained(tmp_path / "second")
    assert again.dtype == model.dtype
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_adapt_finds_the_transformer_inside(case: Case, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(case.save(tmp_path))
    assert lsp.adapt(model) is model.transformer


def test_a_changed_config_counts(tmp_path: Path) -> None:
    folder = llada().save(tmp_path)
    config = AutoConfig.from_pretrained(folder)
    assert (config.hidden_size, config.num_hidden_layers) == (64, 2)
    config.rope_theta = 77.0
    assert AutoModel.from_pretrained(folder, config=config).transformer.config.rope_theta == 77.0
    assert isinstance(AutoModel.from_config(config), transformers.PreTrainedModel)


@pytest.mark.abuse("models and checkpoints")
def test_arguments_that_would_do_nothing_are_refused(tmp_path: Path) -> None:
    folder = llada().save(tmp_path)
    with pytest.raises(TypeError, match="Invalid argument load_in_8bit"):
        AutoModel.from_pretrained(folder, load_in_8bit=True)
    with pytest.raises(ValueError, match="Invalid safe_serialization: expected True"):
        AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "pickle", safe_serialization=False)
    with pytest.raises(ValueError, match="Invalid device_map: expected one device"):
        AutoModel.from_pretrained(folder, device_map={"embedding": "cpu", "blocks": "cpu"})
    assert AutoModel.from_pretrained(folder, device_map={"": "cpu"}, torch_dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.abuse("models and checkpoints")
def test_an_error_of_the_checkpoint_comes_through(tmp_path: Path) -> None:
    case = llada()
    case.tensors.pop("model.transformer.ln_f.weight")
    with pytest.raises(ValueError, match=r"expected model.transformer.ln_f.weight, got no such tensor"):
        AutoModel.from_pretrained(case.save(tmp_path))


def test_the_embedded_models_tokenizer_and_chat_template() -> None:
    text = "Use 2, 9 and 14 to make 4.\n"
    for tokenizer in (
        lsp.load_tokenizer("tiny"),
        lsp.load_tokenizer(lsp.load("tiny")),
        AutoTokenizer.from_pretrained(CHECKPOINT),
    ):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        chat = [{"role": "user", "content": "Use 2, 9 and 14 to make 4."}]
        assert tokenizer.apply_chat_template(chat, tokenize=False) == text
        assert (tokenizer.mask_token_id, tokenizer.eos_token_id) == (0, 1)


def dream_tokenizer(folder: Path) -> None:
    """Dream's files: a vocabulary, merges, and a config that names a class which exists as remote code only."""
    tokenizer = byte_level()
    folder.mkdir(exist_ok=True)
    tokenizer.model.save(str(folder))
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    first = max(i for t, i in tokenizer.get_vocab().items() if t not in names) + 1
    config = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": {str(first + i): {"content": name, **flags} for i, name in enumerate(names)},
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "bos_token": None,
        "unk_token": None,
        "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_dreams_tokenizer_needs_no_remote_code(tmp_path: Path) -> None:
    folder = dream().save(tmp_path)
    dream_tokenizer(folder)
    for tokenizer in (lsp.load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)):
        text = "Hello, world. 你好，世界。\n"
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
        assert chat == "<|im_start|>user\nHello<|im_end|>\n"
        ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
        assert lsp.tokens.stop_ids(tokenizer) == ends
        assert lsp.tokens.mask_id(tokenizer) == tokenizer.convert_tokens_to_ids("<|mask|>")

"""Checkpoints load straight to dtype and device, come back as they were, and what is wrong with one is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file

import lsp
from lsp.models import Transformer, checkpoint
from lsp.models.loading import parts, read_config
from tests.lsp.checkpoints import FAMILIES, Case, dream, ids_of, llada, llama, qwen2, qwen3

LAYER = "model.transformer.blocks.1."


@pytest.fixture
def case() -> Case:
    return llada()


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("wanted", [torch.float64, torch.bfloat16, "float16", None], ids=str)
def test_weights_arrive_in_the_dtype_asked_for(case: Case, tmp_path: Path, stored: torch.dtype, wanted: object) -> None:
    case.tensors = {name: tensor.to(stored) for name, tensor in case.tensors.items()}
    model = lsp.load(case.save(tmp_path), dtype=wanted)
    assert model.dtype == (stored if wanted is None else torch.float16 if wanted == "float16" else wanted)
    assert all(parameter.dtype == model.dtype for parameter in model.parameters())
    expected = case.tensors["model.transformer.wte.weight"].to(model.dtype)
    assert torch.equal(model.embedding.weight, expected)
    k = case.tensors[LAYER + "k_proj.weight"].to(model.dtype)
    assert torch.equal(model.blocks[1].qkv.weight[64:128], k)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        {"rope_scaling": {"rope_type": "default"}},
        {"sliding_window": 131072},
        {"layer_types": ["full_attention"] * 2},
        {"num_experts": None, "alibi": False, "is_causal": False, "use_mrope": False, "clip_qkv": None},
    ],
)
def test_keys_that_change_nothing_are_accepted(change: dict, tmp_path: Path) -> None:
    assert lsp.load(dream(**change).save(tmp_path)).config.rope_theta == 1e6


PLAIN = {"qwen2": qwen2, "qwen3": qwen3, "llama": llama}


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_a_config_that_does_not_say_whether_logits_are_shifted_needs_to_be_told(
    name: str, shifted: bool, tmp_path: Path
) -> None:
    case = PLAIN[name](model_type=name)
    model = lsp.load(case.save(tmp_path), dtype=torch.float64, shifted=shifted)
    assert (model.config.family, model.config.shifted) == (name, shifted)
    ids = ids_of(case, 11)
    hidden = model(torch.tensor(ids), torch.arange(11), torch.tensor([0, 11], dtype=torch.int32))
    torch.testing.assert_close(model.lm_head(hidden), case.logits(ids), rtol=1e-9, atol=1e-9)
    message = rf"Invalid shifted: expected lsp.load\(..., shifted=False\), or True .* model_type '{name}' .*got None"
    with pytest.raises(ValueError, match=message):
        lsp.load(tmp_path)


def test_what_a_family_says_of_shifted_logits_can_be_overruled(tmp_path: Path) -> None:
    folder = qwen3().save(tmp_path)
    assert [lsp.load(folder, shifted=given).config.shifted for given in (None, False, True)] == [False, False, True]
    with pytest.raises(ValueError, match=r"Invalid shifted: expected .* got 'yes'"):
        lsp.load(folder, shifted="yes")


def write(name: str, content: object) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(json.dumps(content)) and None


def write_all(*files: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: [file(folder) for file in files] and None


LISTED = write("tokenizer.json", {"added_tokens": [{"id": 9, "content": "<|x|>"}, {"id": 8, "content": "<|mask|>"}]})
TABLE = {"5": {"content": "<|im_end|>"}, "9": {"content": "<|x|>", "special": True}}
TOKENIZERS = {
    "a table": (write("tokenizer_config.json", {"mask_token": "<|x|>", "added_tokens_decoder": TABLE}), 9),
    "a list": (write_all(LISTED, write("tokenizer_config.json", {"mask_token": {"content": "<|x|>"}})), 9),
    "a usual name": (LISTED, 8),
    "a map": (write_all(LISTED, write("special_tokens_map.json", {"mask_token": "<|x|>"})), 9),
    "old files": (
        write_all(write("added_tokens.json", {"<M>": 3}), write("tokenizer_config.json", {"mask_token": "<M>"})),
        3,
    ),
    "a name that nobody has": (write("tokenizer_config.json", {"mask_token": "<|x|>"}), None),
    "junk": (
        write_all(
            write(
                "tokenizer_config.json",
                {"mask_token": 3, "added_tokens_decoder": {"9" * 5000: "<mask>", "x": "<mask>"}},
            ),
            write(
                "tokenizer.json", {"added_tokens": [None, {"id": "x", "content": "<|mask|>"}, {"content": "<|mask|>"}]}
            ),
            write("added_tokens.json", {"<|mask|>": None, "[MASK]": True}),
        ),
        None,
    ),
    "no files": (lambda _: None, None),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_mask_that_the_config_does_not_name_is_found_in_the_tokenizer(name: str, tmp_path: Path) -> None:
    files, expected = TOKENIZERS[name]
    case = qwen3()
    del case.config["mask_token_id"]
    files(case.save(tmp_path))
    assert lsp.load(tmp_path).config.mask_id == expected
    assert lsp.load(tmp_path, mask_id=11).config.mask_id == 11


def test_a_mask_that_was_passed_is_saved(tmp_path: Path) -> None:
    case = qwen3()
    del case.config["mask_token_id"]
    model = lsp.load(case.save(tmp_path / "first"))
    with pytest.raises(ValueError, match=r"Invalid model: expected a mask id .* pass mask_id to lsp.load or lsp.adapt"):
        lsp.generate(model, [[20, 21]], max_new_tokens=2)
    lsp.save_pretrained(lsp.load(tmp_path / "first", mask_id=11), tmp_path / "second")
    assert lsp.load(tmp_path / "second").config.mask_id == 11
    for wrong in (227, -1, True):
        with pytest.raises(ValueError, match="Invalid mask_id: expected"):
            lsp.load(tmp_path / "first", mask_id=wrong)


SCALING = llama().config["rope_scaling"]
REFUSED = {
    "qwen3 biases": (qwen3, {"attention_bias": True}, "Unsupported config key attention_bias: .*got True"),
    "llama biases": (llama, {"attention_bias": True}, "Unsupported config key attention_bias: .*got True"),
    "mlp biases": (llama, {"mlp_bias": True}, "Unsupported config key mlp_bias: expected False or None, got True"),
    "yarn": (llama, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'default' or 'llama3', got .*yarn"),
    "qwen scaled": (qwen2, {"rope_scaling": SCALING}, "Unsupported config key rope_scaling: .*'default', got .*llama3"),
    "no factor": (llama, {"rope_scaling": SCALING | {"factor": None}}, "Invalid config key factor: .*got None"),
    "more entries": (
        llama,
        {"rope_scaling": SCALING | {"beta": 1}},
        "Unsupported config key rope_scaling: .*'beta': 1",
    ),
    "borders": (
        llama,
        {"rope_scaling": SCALING | {"low_freq_factor": 4.0}},
        "Invalid rope_scaling: expected low < high",
    ),
    "heads": (
        qwen2,
        {"num_attention_heads": 6},
        "Invalid config key hidden_size: expected a multiple of .* = 6, got 128",
    ),
    "head size": (qwen3, {"head_dim": 40}, "Invalid head_dim: expected a multiple of 16 from 32 to 256, got 40"),
}


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_would_be_computed_wrongly_is_refused(name: str, tmp_path: Path) -> None:
    make, change, message = REFUSED[name]
    case = make()
    case.config |= change
    with pytest.raises(ValueError, match=message):
        lsp.load(case.save(tmp_path))


def test_a_dtype_in_the_config_is_the_default(tmp_path: Path) -> None:
    assert lsp.load(dream(torch_dtype="bfloat16").save(tmp_path)).dtype == torch.bfloat16


def test_norms_in_another_dtype_do_not_count(case: Case, tmp_path: Path) -> None:
    case.tensors = {name: tensor.bfloat16() if tensor.dim() == 2 else tensor for name, tensor in case.tensors.items()}
    assert lsp.load(case.save(tmp_path)).dtype == torch.bfloat16


def test_devices_are_filled_directly(case: Case, tmp_path: Path) -> None:
    assert lsp.load(case.save(tmp_path), device="meta").device.type == "meta"


def test_slices_of_a_tensor_make_the_whole(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lsp.load(case.save(tmp_path))
    monkeypatch.setattr(checkpoint, "SLICE_BYTES", 1000)
    sliced = lsp.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), sliced.parameters(), strict=True))


@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", ["5GB", 40_000])
def test_a_saved_model_comes_back(make: Callable[..., Case], tied: bool, size: int | str, tmp_path: Path) -> None:
    (key,) = {"weight_tying", "tie_word_embeddings"} & set(make().config)
    case = make(**{key: tied})
    model = lsp.load(case.save(tmp_path / "first"))
    lsp.save_pretrained(model, tmp_path / "second", max_shard_size=size)
    files = sorted((tmp_path / "second").glob("*.safetensors"))
    assert (len(files) > 3) == isinstance(size, int)
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert tensors.keys() == case.tensors.keys()
    assert all(torch.equal(tensor, case.tensors[name]) for name, tensor in tensors.items())
    config = json.loads((tmp_path / "second" / "config.json").read_text())
    assert "auto_map" not in config
    assert (
        config.items()
        >= {k: v for k, v in case.config.items() if k not in ("auto_map", "dtype", "transformers_version")}.items()
    )
    assert config["torch_dtype"] == "float32"
    again = lsp.load(tmp_path / "second")
    assert again.config == model.config
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    if tied:
        assert again.lm_head.weight is again.embedding.weight


def test_saving_over_a_sharded_checkpoint_leaves_no_old_file(case: Case, tmp_path: Path) -> None:
    model = lsp.load(case.save(tmp_path, shards=3))
    lsp.save_pretrained(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(ValueError, match=r"Invalid max_shard_size: expected .* got 'huge'"):
        lsp.save_pretrained(model, tmp_path, max_shard_size="huge")


def drop(name: str) -> Callable[[Case, Path], None]:
    return lambda case, _: case.tensors.pop(name)


def put(name: str, shape: tuple[int, ...]) -> Callable[[Case, Path], None]:
    return lambda case, _: case.tensors.update({name: torch.zeros(shape)})


def set_key(key: str, value: object) -> Callable[[Case, Path], None]:
    return lambda case, _: case.config.update({key: value})


BEFORE = {
    "missing tensor": (drop(LAYER + "up_proj.weight"), rf"expected {LAYER}up_proj.weight, got no such tensor"),
    "missing head": (drop("model.transformer.ff_out.weight"), "expected model.transformer.ff_out.weight, got no"),
    "unexpected tensor": (put(LAYER + "q_norm.weight", (32,)), rf"expected no tensor {LAYER}q_norm.weight"),
    "one layer too many": (set_key("n_layers", 1), r"expected no tensor .*blocks.1.* and 8 more"),
    "wrong shape": (put(LAYER + "k_proj.weight", (64, 63)), r"k_proj.weight .*expected \[64, 64\], got \[64, 63\]"),
    "wrong rank": (put(LAYER + "attn_norm.weight", (64, 1)), r"attn_norm.weight .*expected \[64\], got \[64, 1\]"),
    "quantised": (lambda c, _: c.tensors.update({LAYER + "ff_out.weight": torch.zeros(64, 96).char()}), "got I8"),
    "qk-norm": (set_key("attention_layer_norm", True), "Unsupported config key attention_layer_norm.*got True"),
    "experts": (set_key("num_experts", 8), "Unsupported config key num_experts.*got 8"),
    "sliding window": (set_key("use_sliding_window", True), "Unsupported config key use_sliding_window"),
    "window": (set_key("sliding_window", 512), "Unsupported config key sliding_window: expected None, got 512"),
    "layers": (set_key("layer_types", ["full_attention", "sliding_attention"]), "Unsupported config key layer_types"),
    "alibi": (set_key("alibi", True), "Unsupported config key alibi: expected False or None, got True"),
    "rope scaling": (set_key("rope_scaling", {"type": "yarn"}), "Unsupported config key rope_scaling.*yarn"),
    "rope type": (set_key("rope_parameters", {"rope_type": "yarn"}), "Unsupported config key rope_parameters"),
    "biases": (set_key("include_bias", True), "Unsupported config key include_bias"),
    "scaled logits": (set_key("scale_logits", True), "Unsupported config key scale_logits"),
    "gelu": (set_key("activation_type", "gelu"), "Unsupported config key activation_type: expected 'silu', got 'gelu'"),
    "layer norm": (set_key("layer_norm_type", "default"), "Unsupported config key layer_norm_type"),
    "other family": (set_key("model_type", "llada_moe"), r"model_type: expected .*'Dream'.*'llada'.* got 'llada_moe'"),
    "no size": (lambda c, _: c.config.pop("d_model"), "Invalid config key d_model: expected an integer .*, got none"),
    "no norm type": (lambda c, _: c.config.pop("layer_norm_type"), "Unsupported config key layer_norm_type.*got none"),
    "no activation": (lambda c, _: c.config.pop("activation_type"), "Unsupported config key activation_type.*got none"),
    "clipped": (set_key("clip_qkv", 8.0), "Unsupported config key clip_qkv: expected None, got 8.0"),
    "mrope": (set_key("use_mrope", True), "Unsupported config key use_mrope"),
    "logits scaling": (set_key("logits_scaling", 8.0), "Unsupported config key logits_scaling"),
    "multiplied embedding": (set_key("embedding_multiplier", 12.0), "Unsupported config key embedding_multiplier"),
    "multiplied residual": (set_key("residual_multiplier", 0.2), "Unsupported config key residual_multiplier"),
    "multiplied attention": (set_key("attention_multiplier", 0.1), "Unsupported config key attention_multiplier"),
    "causal": (set_key("is_causal", True), "Unsupported config key is_causal"),
    "rope factor": (set_key("rope_scaling", {"factor": 4}), "Unsupported config key rope_scaling.*'factor': 4"),
    "unknown key": (set_key("some_new_key", 3), "Unsupported config key some_new_key: expected no such key.*got 3"),
    "no theta": (set_key("rope_theta", 0), "Invalid config key rope_theta: expected a finite number above 0, got 0"),
    "small theta": (set_key("rope_theta", 0.5), "Invalid rope_theta: expected a number from 1 to 1e12, got 0.5"),
    "text theta": (set_key("rope_parameters", {"rope_theta": "1"}), "Invalid config key rope_parameters"),
    "infinite eps": (set_key("rms_norm_eps", float("inf")), "Invalid config key rms_norm_eps"),
    "absurd layers": (set_key("n_layers", 10**9), "Invalid n_layers: expected at most 1024, got 1000000000"),
    "absurd vocabulary": (set_key("embedding_size", 2**40), "Invalid vocab_size"),
    "bad size": (set_key("n_heads", "2"), "Invalid config key n_heads: expected an integer of at least 1, got '2'"),
    "odd heads": (set_key("n_heads", 3), "Invalid config key d_model: expected a multiple of n_heads = 3, got 64"),
    "bad groups": (set_key("n_kv_heads", 3), "Invalid n_kv_heads: expected a divisor of n_heads = 2, got 3"),
    "bad mask": (set_key("mask_token_id", 999), "Invalid mask_id: expected 0 to 210, got 999"),
    "bad dtype": (set_key("torch_dtype", "int8"), "Invalid dtype: expected float32.*got 'int8'"),
}  # fmt: skip


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize("name", BEFORE)
def test_what_is_wrong_is_named_before_a_weight_is_read(
    name: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = BEFORE[name]
    change(case, tmp_path)
    case.save(tmp_path)
    monkeypatch.setattr(checkpoint, "read_into", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises((ValueError, TypeError), match=message):
        lsp.load(tmp_path)


def truncate(folder: Path) -> None:
    file = folder / "model-00002-of-00003.safetensors"
    os.truncate(file, file.stat().st_size - 1000)


def pickle(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    torch.save({}, folder / "pytorch_model.bin")


def twice(folder: Path) -> None:
    name = "model.transformer.wte.weight"
    for file in sorted(folder.glob("*.safetensors"))[:2]:
        save_file(load_file(file) | {name: torch.zeros(211, 64)}, file)


def index_naming(name: object) -> Callable[[Path], None]:
    """An index whose first tensor is said to be elsewhere; what it names is there."""

    def change(folder: Path) -> None:
        elsewhere = folder.parent / "elsewhere"
        elsewhere.mkdir()
        for place in (elsewhere / "x.safetensors", folder.parent / "x.safetensors"):
            save_file({"secret": torch.zeros(1)}, place)
        named = str(elsewhere / "x.safetensors") if name == "absolute" else name
        index = json.loads((folder / checkpoint.INDEX).read_text())
        index["weight_map"]["model.transformer.wte.weight"] = named
        (folder / checkpoint.INDEX).write_text(json.dumps(index))

    return change


OUTSIDE = [
    "absolute",
    "../x.safetensors",
    "./../x.safetensors",
    "..\\x.safetensors",
    "C:x.safetensors",
    "..",
    "",
    "a/b",
]
OUTSIDE += ["config.json", "a\0.safetensors", 3, None, ["x.safetensors"]]
NO_NAME = "expected names of safetensors files in its folder, got"

AFTER = {
    **{f"index names {name!r}": (index_naming(name), ValueError, NO_NAME) for name in OUTSIDE},
    "deep config": (lambda f: (f / "config.json").write_text("[" * 10**5), ValueError, "config.json: expected JSON"),
    "config in latin-1": (lambda f: (f / "config.json").write_bytes(b'{"a": "\xe9"}'), ValueError, "expected JSON"),
    "truncated": (truncate, ValueError, r"Invalid file .*00002-of-00003.safetensors: expected a whole.*truncated"),
    "pointer of git": (
        lambda f: (f / "model-00001-of-00003.safetensors").write_text("version https://git-lfs.github.com/spec/v1"),
        ValueError,
        "Invalid file .*00001-of-00003",
    ),
    "empty file": (lambda f: (f / "model-00001-of-00003.safetensors").write_bytes(b""), ValueError, "got 0 bytes"),
    "pickle": (pickle, FileNotFoundError, "expected safetensors files, got the pickle pytorch_model.bin"),
    "no shard": (lambda f: (f / "model-00003-of-00003.safetensors").unlink(), FileNotFoundError, "00003-of-00003"),
    "no index": (lambda f: (f / "model.safetensors.index.json").unlink(), FileNotFoundError, "index.json, got"),
    "broken index": (lambda f: (f / "model.safetensors.index.json").write_text("{"), ValueError, "expected JSON"),
    "empty index": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), ValueError, "a weight_map"),
    "no config": (lambda f: (f / "config.json").unlink(), FileNotFoundError, "expected a config.json, got none"),
    "broken config": (lambda f: (f / "config.json").write_text("model"), ValueError, "config.json: expected JSON"),
    "list config": (lambda f: (f / "config.json").write_text("[]"), ValueError, "expected a JSON object, got a list"),
    "tensor twice": (twice, ValueError, "Invalid tensor model.transformer.wte.weight: expected once"),
}


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize("name", AFTER)
def test_what_is_wrong_with_the_files_is_named(name: str, case: Case, tmp_path: Path) -> None:
    change, error, message = AFTER[name]
    folder = case.save(tmp_path / "folder", shards=3)
    change(folder)
    with pytest.raises(error, match=message):
        lsp.load(folder)


def test_links_are_followed_as_the_cache_of_the_hub_needs(case: Case, tmp_path: Path) -> None:
    blobs, snapshot = case.save(tmp_path / "blobs", shards=3), tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted(blobs.iterdir())):
        blob = file.rename(blobs / str(i))
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    assert lsp.load(snapshot).config.family == "llada"


def test_tensors_that_mean_nothing_are_passed_over(tmp_path: Path) -> None:
    """A tied head that is stored anyway, as Tiny-A2D's are, and the frequencies that old checkpoints hold."""
    case = qwen3()
    case.tensors["lm_head.weight"] = torch.full((227, 96), torch.nan)
    case.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(16)
    assert not lsp.load(case.save(tmp_path)).lm_head.weight.isnan().any()


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("./nowhere", FileNotFoundError, r"\./nowhere: no such folder"),
        ("/no/such/place", FileNotFoundError, "no such folder"),
        ("not a name!", FileNotFoundError, "expected a folder or a name on the hub"),
        (__file__, NotADirectoryError, "expected a folder, got the file"),
    ],
)
def test_a_wrong_place_is_named(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        lsp.load(name)


def test_a_name_is_downloaded_from_the_hub(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict = {}

    def download(name: str, **options: object) -> str:
        seen.update(options, name=name)
        return str(case.save(tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    model = lsp.load("GSAI-ML/LLaDA-8B-Instruct", revision="main", cache_dir=tmp_path, token="secret")
    assert model.source == tmp_path
    assert (seen["name"], seen["revision"], seen["token"]) == ("GSAI-ML/LLaDA-8B-Instruct", "main", "secret")
    assert "*.safetensors" in seen["allow_patterns"]
    assert not any(pattern.endswith((".bin", ".py")) for pattern in seen["allow_patterns"])


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (LocalEntryNotFoundError("offline"), ConnectionError, "some/model: it is not a local folder.*no network"),
        (ConnectionError("refused"), ConnectionError, "could not be reached"),
        (RepositoryNotFoundError, FileNotFoundError, "neither a local folder nor a repository on the hub"),
    ],
)
def test_the_hub_out_of_reach_is_said_plainly(
    raised: Exception | type, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(raised, type):
        raised = raised.__new__(raised)
        assert isinstance(raised, HfHubHTTPError)

    def download(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(error, match=message):
        lsp.load("some/model")


def test_importing_lsp_needs_torch_and_numpy_alone() -> None:
    """And a model can be built, run and scored without transformers, safetensors and the hub."""
    script = """
import sys
for name in ("transformers", "safetensors", "tokenizers", "huggingface_hub"):
    sys.modules[name] = None
import torch, lsp, lsp.integrations
config = lsp.models.ModelConfig(
    vocab_size=50, d_model=64, n_layers=1, n_heads=2, n_kv_heads=2, head_dim=32, mlp_size=64, max_length=64,
    rope_theta=1e4, norm_eps=1e-5,
)
model = lsp.models.Transformer(config)
hidden = model(torch.arange(4), torch.arange(4), torch.tensor([0, 4], dtype=torch.int32))
assert model.lm_head(hidden).shape == (4, model.config.vocab_size)
try:
    lsp.load_tokenizer("tiny")
except ImportError as error:
    assert str(error) == "a tokenizer or an Auto class needs transformers: pip install 'lsp-kernels[lsp]'"
else:
    raise AssertionError
try:
    import lsp.integrations.transformers
except ImportError as error:
    assert str(error) == "lsp.integrations.transformers needs transformers: pip install 'lsp-kernels[lsp]'"
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc")
def test_the_weights_are_in_memory_once(tmp_path: Path) -> None:
    """Of 60 MB in two tensors, the peak is not much more: files are mapped in slices."""
    llada(d_model=512, n_heads=4, n_kv_heads=4, n_layers=1, embedding_size=15_000, vocab_size=15_000).save(tmp_path)
    script = """
import sys, lsp
def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
lsp.load("tiny")
lsp.models.checkpoint.SLICE_BYTES = 2**22
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
size = sum(p.nbytes for p in lsp.load(sys.argv[1]).parameters())
assert size > 6e7
assert status("VmHWM") - before < 1.25 * size, (status("VmHWM") - before) / size
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.abuse("models and checkpoints")
def test_a_model_that_was_not_loaded_has_no_tokenizer() -> None:
    with pytest.raises(ValueError, match="Invalid source"):
        lsp.load_tokenizer(Transformer(lsp.load("tiny").config))


def test_the_public_models_have_the_public_sizes() -> None:
    """By their configs alone: bytes in bfloat16, and the number of tensors that a checkpoint must hold."""
    small, big = llada().config, {"d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32}
    big |= {"mlp_hidden_size": 12288, "embedding_size": 126464, "vocab_size": 126464, "mask_token_id": 126336}
    with torch.device("meta"):
        model = Transformer(read_config(small | big))
    assert sum(p.numel() for p in model.parameters()) * 2 == 16_031_162_368
    assert len(list(parts(model))) == 291
    small, big = dream().config, {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28}
    big |= {"num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "mask_token_id": 151666}
    with torch.device("meta"):
        model = Transformer(read_config(small | big))
    assert sum(p.numel() for p in model.parameters()) == 7_615_616_512
    assert len(list(parts(model))) == 339
    for make, sizes, expected in (
        (qwen3, (1024, 28, 16, 8, 3072, 151936, 128), 596_049_920),  # Qwen3-0.6B
        (qwen2, (896, 24, 14, 2, 4864, 151936, None), 494_032_768),  # Qwen2.5-0.5B
        (llama, (2048, 16, 32, 8, 8192, 128256, 64), 1_235_814_400),  # Llama-3.2-1B
    ):
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
        with torch.device("meta"):
            big = dict(zip((*names, "vocab_size", "head_dim"), sizes, strict=True))
            model = Transformer(read_config(make().config | big))
        assert sum(p.numel() for p in model.parameters()) == expected


def test_weights_in_int8_are_those_of_the_checkpoint_within_half_a_step(tmp_path: Path) -> None:
    case = dream()
    plain, held = (lsp.load(case.save(tmp_path), dtype=dtype) for dtype in (None, "int8"))
    assert held.dtype == plain.dtype
    for name in ("qkv", "out", "gate_up", "down"):
        whole, eight = (getattr(model.blocks[1], name) for model in (plain, held))
        assert (eight.weight.dtype, eight.scales.dtype) == (torch.int8, torch.float32)
        wrong = (eight.weight * eight.scales[:, None] - whole.weight).abs()
        assert (wrong <= 0.5001 * eight.scales[:, None]).all()
        assert (eight.bias is None) == (whole.bias is None)
        assert eight.bias is None or torch.equal(eight.bias, whole.bias)
    assert torch.equal(held.lm_head.weight, plain.lm_head.weight)
    with pytest.raises(ValueError, match="Invalid model: expected weights as they are stored, got weights in int8"):
        lsp.save_pretrained(held, tmp_path / "out")
    with pytest.raises(ValueError, match="Invalid dtype: 'int8' expects one process and the device cpu, got meta"):
        lsp.load(tmp_path, dtype="int8", device="meta")


def test_a_model_with_weights_in_int8_solves_what_it_solves_without() -> None:
    prompts = ["Use 2, 9 and 14 to make 4.\n", "Use 3, 5 and 7 to make 15.\n"]
    texts = [
        [answer.text for answer in lsp.generate(lsp.load("tiny", dtype=dtype), prompts, max_new_tokens=24)]
        for dtype in (None, "int8")
    ]
    assert texts[0] == texts[1]

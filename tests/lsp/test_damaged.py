"""Checkpoint folders that are damaged in every way: the error names the file or the key, and nothing is half-loaded."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import lsp
from tests.lsp.checkpoints import FAMILIES, llada

pytestmark = pytest.mark.abuse("models and checkpoints")

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
JUNK = [None, -1, 0, "x", [], {"a": 1}, [1, "b"], 1e308, float("nan"), float("inf"), True, 10**30, 3.5]


def write(name: str, text: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def replace_by_folder(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def header(edit: Callable[[dict], object]) -> Callable[[Path], None]:
    """Rewrites what a safetensors file says of each tensor."""

    def damage(folder: Path) -> None:
        data = (folder / WHOLE).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        tensors = json.loads(data[8 : 8 + size])
        tensors.pop("__metadata__", None)
        text = json.dumps({name: edit(tensor) for name, tensor in tensors.items()}).encode()
        (folder / WHOLE).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return damage


def weight_map(value: object) -> str:
    return json.dumps({"weight_map": value})


ONE_FILE = {
    "config is a folder": (replace_by_folder(CONFIG), CONFIG),
    "config is not text": (write(CONFIG, b"\xff\xfe\x00"), CONFIG),
    "config is too deep": (write(CONFIG, "[" * 100_000), CONFIG),
    "config is a number": (write(CONFIG, "3"), CONFIG),
    "config is null": (write(CONFIG, "null"), CONFIG),
    "config has a huge number": (write(CONFIG, '{"model_type": "llada", "d_model": ' + "9" * 5000 + "}"), CONFIG),
    "weights are a folder": (replace_by_folder(WHOLE), WHOLE),
    "weights are noise": (write(WHOLE, os.urandom(5000)), WHOLE),
    "header is huge": (write(WHOLE, struct.pack("<Q", 2**62) + b"{}"), WHOLE),
    "header is a list": (write(WHOLE, struct.pack("<Q", 2) + b"[]"), WHOLE),
    "unknown dtype": (header(lambda t: t | {"dtype": "X9"}), WHOLE),
    "negative shape": (header(lambda t: t | {"shape": [-1]}), WHOLE),
    "offsets past the end": (header(lambda t: t | {"data_offsets": [0, 10**15]}), WHOLE),
    "offsets are text": (header(lambda t: t | {"data_offsets": "x"}), WHOLE),
    "no dtype": (header(lambda t: {"shape": t["shape"]}), WHOLE),
    "tensors are lists": (header(lambda t: [1]), WHOLE),
}
SHARDS = {
    "index is a list": (write(INDEX, "[]"), INDEX),
    "index maps to a list": (write(INDEX, weight_map([])), INDEX),
    "index maps to numbers": (write(INDEX, weight_map({"a": 3})), INDEX),
    "index maps to nothing": (write(INDEX, weight_map(None)), INDEX),
    "index is not text": (write(INDEX, b"\xff\xfe"), INDEX),
    "index is a folder": (replace_by_folder(INDEX), INDEX),
    "index leaves the folder": (write(INDEX, weight_map({"a": "../x.safetensors"})), INDEX),
    "index is absolute": (write(INDEX, weight_map({"a": "/etc/passwd"})), INDEX),
    "index names a tensor that is not there": (
        write(INDEX, weight_map({"a": "model-00001-of-00003.safetensors"})),
        "model.transformer.wte.weight",
    ),
}
TOKENIZER = {
    "broken": write("tokenizer.json", "{"),
    "a list": write("tokenizer.json", "[]"),
    "not text": write("tokenizer.json", b"\xff\xfe"),
    "broken config": lambda folder: (
        write("tokenizer.json", "{}")(folder),
        write("tokenizer_config.json", "{")(folder),
    ),
    "none": lambda folder: None,
}


@pytest.mark.parametrize(("shards", "name"), [*((1, name) for name in ONE_FILE), *((3, name) for name in SHARDS)])
def test_a_damaged_file_is_named(shards: int, name: str, tmp_path: Path) -> None:
    damage, named = (ONE_FILE if shards == 1 else SHARDS)[name]
    damage(llada().save(tmp_path, shards=shards))
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match="Invalid") as caught:
        lsp.load(tmp_path)
    assert named in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_junk_in_any_key_loads_or_is_named(family: str, tmp_path: Path) -> None:
    FAMILIES[family]().save(tmp_path)
    good = json.loads((tmp_path / CONFIG).read_text())
    unnamed = []
    for key in (*good, "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "dtype"):
        for junk in JUNK:
            (tmp_path / CONFIG).write_text(json.dumps(good | {key: junk}))
            try:
                lsp.load(tmp_path)
            except (ValueError, TypeError) as error:
                if not str(error).startswith(("Invalid", "Unsupported")):
                    unnamed.append(f"{key}={junk!r}: {error}")
    assert not unnamed


@pytest.mark.parametrize("name", TOKENIZER)
def test_a_damaged_tokenizer_is_named(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    TOKENIZER[name](llada().save(tmp_path))
    with pytest.raises((ValueError, FileNotFoundError), match="Invalid tokenizer in"):
        lsp.load_tokenizer(tmp_path)

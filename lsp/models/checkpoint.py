"""A folder of safetensors: what is in it, read and written in slices, so that memory holds the weights once."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lsp.extras import needed_by

WHOLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SLICE_BYTES = 2**25
"""A file is mapped for this much at a time: pages stay in memory as long as they are mapped."""


class Stored(NamedTuple):
    """A tensor in a file."""

    file: Path
    shape: list[int]
    dtype: str


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"Invalid checkpoint {path.parent}: expected a {path.name}, got none")
    try:
        out = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Invalid file {path}: expected JSON, got {error}") from None
    if not isinstance(out, dict):
        raise ValueError(f"Invalid file {path}: expected a JSON object, got a {type(out).__name__}")
    return out


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint. Files are opened and their headers checked; no weight is read."""
    out: dict[str, Stored] = {}
    for file in _files(folder):
        with _open(file) as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                if name in out:
                    raise ValueError(
                        f"Invalid tensor {name}: expected once, got it in {out[name].file.name} and {file.name}"
                    )
                part = opened.get_slice(name)
                out[name] = Stored(file, list(part.get_shape()), part.get_dtype())
    return out


def read_into(target: Tensor, name: str, stored: Stored, where: tuple[slice, ...]) -> None:
    """Copies a part of a tensor from its file, converting to the dtype and device of `target`.

    `where` has a slice for each of its dimensions.
    """
    rows, *columns = where
    row_bytes = math.prod(stored.shape[1:]) * DTYPES[stored.dtype].itemsize  # a part of a row is in the same pages
    step = max(1, SLICE_BYTES // max(1, row_bytes))
    for start in range(0, len(target), step):
        end = min(start + step, len(target))
        with _open(stored.file) as opened:
            here = (slice(rows.start + start, rows.start + end), *columns)
            target[start:end].copy_(opened.get_slice(name)[here])


def write(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int) -> None:
    """Writes a single file or, where that would exceed `shard_bytes`, numbered ones with an index."""
    with needed_by("writing a checkpoint"):
        from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    shards = list(_shards(tensors, shard_bytes))
    names = (
        [WHOLE]
        if len(shards) == 1
        else [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    )
    for name, shard in zip(names, shards, strict=True):
        save_file({key: tensors[key].contiguous() for key in shard}, folder / name, metadata={"format": "pt"})
    for stale in {*folder.glob("model*.safetensors"), folder / INDEX} - {folder / name for name in names}:
        stale.unlink(missing_ok=True)
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def fingerprint(folder: Path) -> str:
    """A hash of the config and of all weights. Reads every file, at about a second per GB and core."""
    files = [folder / CONFIG, *_files(folder)]
    with ThreadPoolExecutor() as pool:  # hashing lets other threads run
        digests = list(pool.map(_digest, files))
    named = [(file.name, digest) for file, digest in zip(files, digests, strict=True)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]


def _digest(file: Path) -> str:
    out = hashlib.sha256()
    with file.open("rb") as content:
        while piece := content.read(SLICE_BYTES):
            out.update(piece)
    return out.hexdigest()


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> Iterable[list[str]]:
    shard: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += tensor.nbytes
    yield shard


def _files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint."""
    if (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict):
            raise ValueError(f"Invalid file {folder / INDEX}: expected a weight_map, got none")
        for name in places.values():
            _check_name(folder / INDEX, name)
        files = [folder / name for name in sorted(set(places.values()))]
    else:
        files = [folder / WHOLE] if (folder / WHOLE).is_file() else sorted(folder.glob("*.safetensors"))
    if len(files) == 0:
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        got = f"the pickle {pickles[0]}, which can run code when it is read; convert it" if pickles else "none"
        raise FileNotFoundError(f"Invalid checkpoint {folder}: expected safetensors files, got {got}")
    if len(files) > 1 and not (folder / INDEX).is_file():
        raise FileNotFoundError(
            f"Invalid checkpoint {folder}: expected {WHOLE} or {INDEX}, got {files[0].name} and others"
        )
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"Invalid checkpoint {folder}: expected the file {file.name}, got none")
    return files


def _check_name(index: Path, name: Any) -> None:
    """Files of the index's own folder alone. They may be links, as those of the hub's cache are."""
    plain = isinstance(name, str) and name.endswith(".safetensors") and not set(name) & {"/", "\\", ":", "\0"}
    if not plain:
        raise ValueError(f"Invalid file {index}: expected names of safetensors files in its folder, got {name!r}")


def _open(file: Path) -> Any:
    with needed_by("reading a checkpoint"):
        from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="pt", device="cpu")
    except SafetensorError as error:
        size = file.stat().st_size
        raise ValueError(
            f"Invalid file {file}: expected a whole safetensors file, got {size} bytes, truncated or in another format "
            f"({error})"
        ) from None

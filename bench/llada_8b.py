"""LLaDA-8B's exact shape on this CPU: ``python -m bench.llada_8b FOLDER``.

Writes a checkpoint with random weights in bfloat16 (16 GB, after asking), then decodes 64 tokens after a prompt of 64
in four passes: prefixes of 16, 16 scattered masks a pass on the same cache, and without a cache. Each dtype of the
weights has a process of its own, whose peak of memory is measured. The answers mean nothing, what they cost does.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bench.memory import peak_of
from lsp.files import write_whole
from lsp.models import checkpoint
from lsp.models.loading import FAMILIES, parts, read_config
from lsp.models.transformer import Transformer

SHAPE = {
    "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
    "vocab_size": 126464, "embedding_size": 126464, "max_sequence_length": 4096, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "weight_tying": False, "mask_token_id": 126336, "eos_token_id": 126081, "block_type": "llama",
    "activation_type": "silu", "layer_norm_type": "rms", "rope": True, "torch_dtype": "bfloat16",
}  # fmt: skip
ROOM = 1.05
"""Of the weights, what has to be free on the disk."""

SETUP = """
import json, time
import numpy as np, torch
import lsp
from lsp_kernels import Vocabulary

folder, dtype, prompt, new = sys.argv[1:]
prompt, new = int(prompt), int(new)
lsp.load("tiny")  # so that the libraries are in memory already
"""
CODE = """
start = time.perf_counter()
model = lsp.load(folder, dtype=None if dtype == "bfloat16" else dtype)
seconds = {"load": time.perf_counter() - start}
ids = torch.randint(2, model.config.vocab_size - 200, (prompt,), generator=torch.Generator().manual_seed(0)).tolist()

def scattered(step):
    some = [canvas.masks[:: -(-len(canvas.masks) * 4 // new)] for canvas in step.canvases]
    return [(where, stats.tokens) for where, stats in zip(some, step.stats(some))]

ways = {
    "prefixes of a quarter": {"scheduler": lsp.FixedPrefix(new // 4)},
    "scattered quarters, same cache": {"scheduler": lsp.Custom(scattered)},
    "prefixes, no cache": {"scheduler": lsp.FixedPrefix(new // 4), "cache": "none"},
}
vocabulary = Vocabulary(model.config.vocab_size)
for name, how in ways.items():
    start = time.perf_counter()
    (answer,) = lsp.generate(model, ids, max_new_tokens=new, vocabulary=vocabulary, tokenizer=None, **how)
    seconds[name] = time.perf_counter() - start
    seconds[f"{name}: passes"] = answer.passes
seconds["held"] = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
print(json.dumps({name.replace(" ", "_"): value for name, value in seconds.items()}, separators=(",", ":")))
"""


def tensors(public: dict[str, object]) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes in the public format."""
    with torch.device("meta"):
        model = Transformer(read_config(public))
    for part in parts(model):
        yield part.name, part.shape


def write(folder: Path, public: dict[str, object]) -> None:
    """Random weights, file by file, so that memory holds one layer at a time."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[tuple[str, list[int]]]] = {}
    for name, shape in tensors(public):
        layer = name.partition("blocks.")[2].partition(".")[0] or "rest"
        files.setdefault(f"model-{layer}.safetensors", []).append((name, shape))
    places = {name: file for file, held in files.items() for name, _ in held}
    for number, (file, held) in enumerate(files.items()):
        save_file({name: random(shape, number) for name, shape in held}, folder / file, metadata={"format": "pt"})
    write_whole(folder / checkpoint.INDEX, json.dumps({"metadata": {}, "weight_map": places}))
    write_whole(folder / checkpoint.CONFIG, json.dumps(public, indent=1))


def random(shape: Sequence[int], seed: int) -> Tensor:
    """So large that masks predict different tokens; norms are 1."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 2 * shape[-1] ** -0.5).bfloat16()


def prepare(folder: Path, public: dict[str, object], yes: bool) -> None:
    """Writes the checkpoint unless it is there, after asking."""
    if (folder / checkpoint.CONFIG).exists():
        return
    needed = ROOM * 2 * sum(torch.Size(shape).numel() for _, shape in tensors(public))
    there = next(parent for parent in folder.absolute().parents if parent.exists())
    if (free := shutil.disk_usage(there).free) < needed:
        raise SystemExit(f"Invalid FOLDER: expected {needed / 1e9:.1f} GB free in {there}, got {free / 1e9:.1f}")
    if not yes and input(f"Write {needed / 1e9:.1f} GB of random weights to {folder}? [y/N] ").lower() != "y":
        raise SystemExit("nothing was written")
    write(folder, public)


def measure(folder: Path, dtype: str, prompt: int = 64, new: int = 64) -> dict[str, float]:
    """Seconds of loading and of each way to decode, bytes held and at the peak."""
    peak, (found,) = peak_of(SETUP, CODE, str(folder), dtype, str(prompt), str(new))
    return {"peak": float(peak)} | {name.replace("_", " "): float(value) for name, value in json.loads(found).items()}


def main(arguments: Sequence[str] | None = None, public: dict[str, object] = SHAPE, new: int = 64) -> None:
    parser = argparse.ArgumentParser("python -m bench.llada_8b", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the checkpoint, which is written if it is not there")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8"], choices=["bfloat16", "float32", "int8"])
    parser.add_argument("--yes", action="store_true", help="write without asking")
    given = parser.parse_args(arguments)
    assert public["model_type"] in FAMILIES
    prepare(given.folder, public, given.yes)
    for dtype in given.dtype:
        found = measure(given.folder, dtype, new=new)
        print(
            f"{dtype}: {found.pop('held') / 2**30:.1f} GiB of weights, peak {found.pop('peak') / 2**30:.1f} GiB, ",
            end="",
        )
        print(f"loaded in {found.pop('load'):.1f} s")
        for name in [name for name in found if not name.endswith(": passes")]:
            passes = found[name + ": passes"]
            print(f"  {name}: {found[name]:.2f} s, {passes:.0f} passes, {found[name] / passes:.2f} s each")


if __name__ == "__main__":
    main()

"""LLaDA-8B's exact shape on this CPU: ``python -m bench.llada_8b FOLDER``.

Writes a checkpoint with random weights in bfloat16 (16 GB, after asking), then decodes 64 tokens after a prompt of 64
in four passes: prefixes of 16, 16 scattered masks a pass on the same cache, without a cache, and the same passes in
Fast-dLLM's own loop. Each dtype of the weights has a process of its own, whose peak of memory is measured. The answers
mean nothing, what they cost does. The next ``python -m bench.report`` shows what was written with
``--json docs/benchmarks/llada_8b.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.memory import peak_of
from bench.report.machine import machine
from bench.report.run import rounded
from lsp.files import check_writable, write_whole
from lsp.models import checkpoint
from lsp.models.loading import FAMILIES, parts, read_config
from lsp.models.transformer import Transformer

SHAPE = {
    "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
    "vocab_size": 126464, "embedding_size": 126464, "max_sequence_length": 4096, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "weight_tying": False, "mask_token_id": 126336, "eos_token_id": 126081, "block_type": "llama",
    "activation_type": "silu", "layer_norm_type": "rms", "rope": True, "torch_dtype": "bfloat16",
}  # fmt: skip
FORMAT = "lsp bench llada_8b 1"
ROOM = 1.05
"""Of the weights, what has to be free on the disk."""

SETUP = """
import json, time
import numpy as np, torch
import lsp
from bench.rival_loops import rival_loop
from bench.support import softmax_confidence
from lsp.decoding.clock import Clock
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

def quarters(logits, masks):
    tokens, _ = softmax_confidence(logits)
    where = masks[0].nonzero()[:, 0]
    return tokens, torch.zeros_like(masks).index_fill(1, where[:: -(-len(where) * 4 // new)], True)

def ours(how):
    (answer,) = lsp.generate(model, ids, max_new_tokens=new, vocabulary=vocabulary, tokenizer=None, **how)
    return answer.passes

def theirs():
    return len(list(rival_loop(model, torch.tensor([ids]), new, quarters, Clock(), block=new, cached=True)))

runs = {name: lambda how=how: ours(how) for name, how in ways.items()}
runs["scattered quarters, Fast-dLLM's loop"] = theirs
for name, run in runs.items():
    start = time.perf_counter()
    seconds[f"{name}: passes"] = run()
    seconds[name] = time.perf_counter() - start
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


def read(path: Path) -> dict[str, Any] | None:
    """What was written with --json, if there is such a file."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if found.get("format") != FORMAT:
        raise ValueError(f"Invalid format of {path.name}: expected {FORMAT!r}, got {found.get('format')!r}")
    return found


def lines(found: dict[str, dict[str, float]]) -> Iterator[str]:
    """What was measured, in words; dtype by dtype."""
    for dtype, of in found.items():
        held, peak = (f"{of[name] / 2**30:.1f} GiB" for name in ("held", "peak"))
        yield f"{dtype}: {held} of weights, peak {peak}, loaded in {of['load']:.1f} s"
        for name in ways(of):
            passes = of[f"{name}: passes"]
            yield f"  {name}: {of[name]:.2f} s, {passes:.0f} passes, {of[name] / passes:.2f} s each"


def ways(found: dict[str, float]) -> list[str]:
    return [name for name in found if f"{name}: passes" in found]


def main(arguments: Sequence[str] | None = None, public: dict[str, object] = SHAPE, new: int = 64) -> None:
    parser = argparse.ArgumentParser("python -m bench.llada_8b", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the checkpoint, which is written if it is not there")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8"], choices=["bfloat16", "float32", "int8"])
    parser.add_argument("--yes", action="store_true", help="write without asking")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there")
    given = parser.parse_args(arguments)
    if given.json is not None:
        check_writable(given.json)  # known before the minutes that everything takes
    assert public["model_type"] in FAMILIES
    prepare(given.folder, public, given.yes)
    found = {}
    for dtype in given.dtype:
        found[dtype] = measure(given.folder, dtype, new=new)
        print("\n".join(lines({dtype: found[dtype]})), flush=True)
        if given.json is not None:
            kept = {"format": FORMAT, "machine": machine(), "found": rounded(found)}
            write_whole(given.json, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""From a folder or a name on the hub to a model, and back.

Everything that can be wrong with a checkpoint is found in its config and in the headers of its files, before any weight
is read. The weights are then copied from the mapped files to where they belong, in their final dtype.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lsp.extras import needed_by
from lsp.models import checkpoint
from lsp.models.checkpoint import DTYPES, Stored
from lsp.models.compiled import CompiledTransformer
from lsp.models.config import Family, ModelConfig
from lsp.models.dream import DREAM
from lsp.models.hub import find
from lsp.models.linear import Int8Linear
from lsp.models.llada import LLADA
from lsp.models.llama import A2D_LLAMA, LLAMA
from lsp.models.masks import mask_in
from lsp.models.parallel import ParallelTransformer
from lsp.models.qwen import A2D_QWEN2, A2D_QWEN3, QWEN2, QWEN3
from lsp.models.sharding import Cut
from lsp.models.transformer import Transformer
from lsp.ranks import Ranks, own_device, ranks_of
from lsp_kernels.errors import as_integer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (LLADA, DREAM, A2D_QWEN2, A2D_QWEN3, A2D_LLAMA, QWEN2, QWEN3, LLAMA)
}
SHARD_SIZE = "5GB"
INT8 = ("int8", torch.int8)
IGNORED = ".rotary_emb.inv_freq"  # a buffer that older checkpoints hold and that follows from the config


def load(
    path_or_name: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    mask_id: int | None = None,
    shifted: bool | None = None,
    tensor_parallel: Any = False,
    compile: bool = False,
) -> Transformer:
    """A model from a public checkpoint of one of the families in docs/models.md, such as LLaDA, Dream or Tiny-A2D.

    Parameters
    ----------
    path_or_name : str or path
        A folder with ``config.json`` and safetensors files, the name of a repository on the hub, or ``"tiny"``, the
        embedded model (a folder of that name is ``"./tiny"``).
    dtype : torch.dtype or str, optional
        By default that of the checkpoint (float32 for ``"tiny"``). Weights are converted as they are read. With
        ``"int8"`` those of the blocks' products are held in 8 bits with a scale per row, and everything else is in the
        dtype of the checkpoint; for CPUs.
    device : torch.device or str
        Weights are copied straight to it.
    revision, cache_dir, token, local_files_only
        As in `huggingface_hub.snapshot_download`, for a name on the hub.
    mask_id : int, optional
        The id of a masked position. By default that of the config, else of the tokenizer's files.
    shifted : bool, optional
        Whether position p is predicted by the row of position p - 1. By default as the family has it; plain ``llama``,
        ``qwen2`` and ``qwen3`` configs do not say it, and most models of these types are no masked models at all.
    tensor_parallel : bool or ProcessGroup
        Whether all processes that torchrun has started, or those of a group, hold the model together (docs/scale.md).
        Each reads its own part of the files. A ``device`` of ``"cuda"`` is then the GPU of this process.
    compile : bool
        Whether torch compiles the blocks when they first run. For GPUs: on a CPU it gains nothing.

    Returns
    -------
    Transformer
        Ready for inference. Its tokenizer comes from `load_tokenizer`.

    Examples
    --------
    >>> import lsp
    >>> model = lsp.load("tiny")
    >>> model.config.family, model.config.n_layers, model.config.mask_id, model.dtype
    ('llada', 6, 0, torch.float32)
    """
    if compile and tensor_parallel:
        raise ValueError(f"Invalid compile: expected False with tensor_parallel, got {compile!r}")
    folder = find(path_or_name, revision, cache_dir, token, local_files_only)
    if path_or_name == "tiny" and dtype is None:
        dtype = torch.float32
    public = checkpoint.read_json(folder / checkpoint.CONFIG)
    if mask_id is not None:
        public["mask_token_id"] = as_integer("mask_id", mask_id, 0)
    if tensor_parallel:
        device = own_device(device)
    ranks = ranks_of(tensor_parallel, torch.device(device))
    return load_folder(folder, public, dtype, device, shifted, ranks, CompiledTransformer if compile else Transformer)


def load_folder(
    folder: Path,
    public: Mapping[str, Any],
    dtype: torch.dtype | str | None,
    device: torch.device | str,
    shifted: bool | None = None,
    ranks: Ranks | None = None,
    whole: Callable[[ModelConfig], Transformer] = Transformer,
) -> Transformer:
    """The model of a folder under this public config, which need not be the folder's own; over `ranks` if there are.

    `whole` makes it where one process holds all of it.
    """
    config = read_config(public, shifted)
    if config.mask_id is None:
        config = replace(config, mask_id=mask_in(folder))
    with torch.device("meta"):
        model = whole(config) if ranks is None else ParallelTransformer(config, ranks)
    stored = checkpoint.stored_tensors(folder)
    check_tensors(folder, model, stored)
    in_int8 = dtype in INT8
    if in_int8 and (ranks is not None or torch.device(device).type != "cpu"):
        raise ValueError(f"Invalid dtype: 'int8' expects one process and the device cpu, got {device}")
    asked = None if in_int8 else as_dtype(dtype)
    model = model.to(asked or as_dtype(public.get("dtype") or public.get("torch_dtype")) or _usual(stored))
    if in_int8:
        model.quantise()
    model = model.to_empty(device=device).requires_grad_(False).eval()
    model.tie()
    model.source = folder
    for part in parts(model):
        read_part(model, part, stored[part.name])
    return model


def read_part(model: Transformer, part: Part, stored: Stored) -> None:
    """Copies a public tensor to where it belongs."""
    target = model.get_parameter(part.parameter)[part.rows]
    if target.dtype != torch.int8:
        return checkpoint.read_into(target, part.name, stored, part.where)
    values = torch.empty(target.shape, dtype=model.dtype)
    checkpoint.read_into(values, part.name, stored, part.where)
    holder = model.get_submodule(part.parameter.rpartition(".")[0])
    assert isinstance(holder, Int8Linear)
    holder.fill(part.rows, values)


def read_config(public: Mapping[str, Any], shifted: bool | None = None) -> ModelConfig:
    """What a public config.json says, or an error that names the key. `shifted` is for what it does not say."""
    kind = public.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"Unsupported config key model_type: expected one of {sorted(FAMILIES)}, got {kind!r}")
    config = replace(FAMILIES[kind].read(public), family=kind)
    if shifted is None and FAMILIES[kind].says_shifted:
        return config
    if not isinstance(shifted, bool):
        raise ValueError(
            f"Invalid shifted: expected lsp.load(..., shifted=False), or True if position p is predicted by row p - 1, "
            f"as the model_type {kind!r} does not say it and is also that of autoregressive models, got {shifted!r}"
        )
    return replace(config, shifted=shifted)


class Part(NamedTuple):
    """A public tensor, what of it is read, and the rows of the parameter which that fills."""

    name: str
    parameter: str
    rows: slice
    shape: list[int]
    where: tuple[slice, ...]


def parts(model: Transformer) -> Iterator[Part]:
    """Every public tensor of a model."""
    family = FAMILIES[model.config.family]
    for parameter, tensor in model.named_parameters():
        start = 0
        names, counts = family.names(parameter), model.held.rows(parameter) or (len(tensor),)
        for name, count, cut in zip(names, counts, cuts_of(model, parameter, len(names)), strict=True):
            shape = [count, *tensor.shape[1:]]
            where = [slice(0, length) for length in shape]
            if cut is not None:
                where[cut.dim] = slice(cut.start, cut.start + shape[cut.dim])
                shape[cut.dim] = cut.total
            yield Part(name, parameter, slice(start, start + count), shape, tuple(where))
            start += count


def cuts_of(model: Transformer, parameter: str, count: int) -> Sequence[Cut | None]:
    """Which part of each of the `count` public tensors of a parameter the model holds; None for all of it."""
    cuts = model.share.cuts(parameter) if isinstance(model, ParallelTransformer) else ()
    return cuts or [None] * count


def check_tensors(folder: Path, model: Transformer, stored: Mapping[str, Stored]) -> None:
    """The checkpoint holds exactly the tensors of the model."""
    expected = {part.name: part.shape for part in parts(model)}
    if missing := [name for name in expected if name not in stored]:
        raise ValueError(f"Invalid checkpoint {folder}: expected {_some(missing)}, got no such tensor")
    harmless = FAMILIES[model.config.family].names("lm_head.weight") if model.config.tied else ()
    if unknown := [n for n in stored if n not in expected and n not in harmless and not n.endswith(IGNORED)]:
        raise ValueError(f"Invalid checkpoint {folder}: expected no tensor {_some(unknown)}, got it")
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise ValueError(f"Invalid shape of {name} in {folder}: expected {shape}, got {stored[name].shape}")
        if stored[name].dtype not in DTYPES:
            raise TypeError(f"Invalid dtype of {name} in {folder}: expected {list(DTYPES)}, got {stored[name].dtype}")


def save_pretrained(
    model: Transformer, folder: str | os.PathLike[str], *, max_shard_size: int | str = SHARD_SIZE
) -> None:
    """Writes a model in the public format that it came in, under the public names.

    Parameters
    ----------
    model : Transformer
    folder : str or path
        Gets a config.json, and one safetensors file or several with an index. The tokenizer has its own
        ``save_pretrained``.
    max_shard_size : int or str
        The largest size of a file, in bytes or as in "500MB".

    Examples
    --------
    >>> import lsp, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lsp.save_pretrained(lsp.load("tiny"), folder)
    ...     lsp.load(folder).config.n_layers
    6
    """
    if isinstance(model, ParallelTransformer):
        raise ValueError(f"Invalid model: expected a whole one, got a share of {model.ranks.size} (tensor_parallel)")
    if any(isinstance(module, Int8Linear) for module in model.modules()):
        raise ValueError("Invalid model: expected weights as they are stored, got weights in int8")
    folder, largest = Path(folder), as_bytes(max_shard_size)
    parameters = dict(model.named_parameters())
    tensors: dict[str, Tensor] = {part.name: parameters[part.parameter][part.rows].cpu() for part in parts(model)}
    checkpoint.write(folder, tensors, largest)
    stale = ("auto_map", "dtype", "_name_or_path", "transformers_version")  # the code that wrote the original
    public = {key: value for key, value in model.config.public.items() if key not in stale}
    public["torch_dtype"] = str(model.dtype).removeprefix("torch.")
    (folder / checkpoint.CONFIG).write_text(json.dumps(dict(sorted(public.items())), indent=2) + "\n")


def load_tokenizer(source: Transformer | str | os.PathLike[str], **options: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, with its chat template, through transformers and without remote code.

    Parameters
    ----------
    source : Transformer, str or path
        A model from `load`, or what `load` takes.
    **options
        For transformers' ``from_pretrained``; with a name on the hub also those of `load`.

    Examples
    --------
    >>> import lsp
    >>> tokenizer = lsp.load_tokenizer("tiny")
    >>> tokenizer.decode(tokenizer("Use 2, 9 and 14 to make 4.")["input_ids"])
    'Use 2, 9 and 14 to make 4.'
    """
    hf = _transformers()
    if isinstance(source, Transformer):
        if source.source is None:
            raise ValueError("Invalid source: expected a model that was loaded from a folder, got one that was not")
        return hf.tokenizer(source.source, **options)
    names = ("revision", "cache_dir", "token", "local_files_only")
    folder = find(source, **{name: options.pop(name) for name in names if name in options}, weights=False)
    return hf.tokenizer(folder, **options)


def register() -> None:
    """Makes transformers' Auto classes load LLaDA, Dream and Tiny-A2D by this package, without remote code.

    The models are `transformers.PreTrainedModel` with padded batches in and logits out; `lsp.adapt` makes them decode.

    Examples
    --------
    >>> import lsp
    >>> from lsp.tiny import CHECKPOINT
    >>> from transformers import AutoModel
    >>> lsp.register()
    >>> type(AutoModel.from_pretrained(CHECKPOINT)).__name__
    'LladaModel'
    """
    _transformers().register()


def _transformers() -> ModuleType:
    """The part that needs transformers."""
    with needed_by("a tokenizer or an Auto class"):
        from lsp.models import hf

    return hf


def as_dtype(value: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype of weights by itself or by its name; None and "auto" leave the choice open."""
    if value is None or value == "auto":
        return None
    found = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
    if found not in DTYPES.values():
        raise ValueError(f"Invalid dtype: expected float32, bfloat16, float16, float64 or int8, got {value!r}")
    return found


def as_device(value: str) -> torch.device:
    """A device by its name."""
    try:
        return torch.device(value)
    except RuntimeError:
        raise ValueError(f"Invalid device: expected one such as cpu, cuda, cuda:1 or mps, got {value!r}") from None


def as_bytes(size: int | str) -> int:
    """A number of bytes, also from a string such as "5GB"."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    found = re.fullmatch(r"\s*(\d+)\s*([A-Z]*)\s*", str(size).upper())
    if found is None or found[2] not in units:
        raise ValueError(f"Invalid max_shard_size: expected a number of bytes or a string such as '5GB', got {size!r}")
    return int(found[1]) * units[found[2]]


def _usual(stored: Mapping[str, Stored]) -> torch.dtype:
    """The dtype of most weights: norms may be stored in another."""
    counts: Counter[torch.dtype] = Counter()
    for tensor in stored.values():
        counts[DTYPES.get(tensor.dtype, torch.float32)] += math.prod(tensor.shape)
    return counts.most_common(1)[0][0]


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")

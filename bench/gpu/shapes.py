"""The shapes that are measured, and tiny ones on which the tests run every line."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lsp.models.config import ModelConfig
from lsp.models.costs import SHAPES

BF16, FP32 = torch.bfloat16, torch.float32
NAMES = {BF16: "bfloat16", FP32: "float32"}


@dataclass(frozen=True)
class Heads:
    """Heads of queries and of K/V, and their size."""

    queries: int
    kv: int
    size: int


@dataclass(frozen=True)
class Lengths:
    """Frozen prefixes and new tokens of the sequences of a pass."""

    prefixes: tuple[int, ...]
    suffixes: tuple[int, ...]

    @property
    def name(self) -> str:
        prefixes, suffixes = ("/".join(map(str, sorted(set(each)))) for each in (self.prefixes, self.suffixes))
        batch = f"{len(self.prefixes)} x " if len(self.prefixes) > 1 else ""
        return f"{batch}{suffixes} on {prefixes}"

    @property
    def one_prefix(self) -> bool:
        return len(set(self.prefixes)) == 1

    @property
    def one_suffix(self) -> bool:
        return len(set(self.suffixes)) == 1


@dataclass(frozen=True)
class Shapes:
    """Everything that is measured.

    Attributes
    ----------
    logits : rows, ids and dtype of the commit operations
    products : rows, hidden size, ids and dtype of the head
    heads, lengths, dtypes : all combinations of them are passes of attention
    rows : of the operations of a block, in the sizes of each model and in each dtype
    models : by name
    batches : of the passes and decodes of a model
    prefix, suffix : tokens of a pass of a model
    prompt, new, step : tokens of a decode, of which `step` are committed in a pass
    """

    logits: tuple[tuple[int, int, torch.dtype], ...]
    products: tuple[tuple[int, int, int, torch.dtype], ...]
    heads: tuple[Heads, ...]
    lengths: tuple[Lengths, ...]
    dtypes: tuple[torch.dtype, ...]
    rows: tuple[int, ...]
    models: dict[str, ModelConfig]
    batches: tuple[int, ...]
    prefix: int
    suffix: int
    prompt: int
    new: int
    step: int


RAGGED = (0, 128, 512, 1024, 2048, 4096, 6144, 8192)
REAL = Shapes(
    logits=tuple((*shape, d) for shape in ((16, 126464), (64, 152064), (256, 126464)) for d in (BF16, FP32)),
    products=(
        *((rows, 4096, 126464, BF16) for rows in (1, 16, 64, 256)),
        (64, 3584, 152064, BF16),
        (64, 4096, 126464, FP32),
    ),
    heads=(Heads(32, 32, 128), Heads(28, 4, 128)),
    lengths=(
        *(Lengths((prefix,), (64,)) for prefix in (0, 256, 1024, 4096, 8192)),
        Lengths((8192,), (16,)),
        Lengths((256,), (1024,)),
        Lengths((1024,) * 8, (64,) * 8),
        Lengths(RAGGED, (64,) * 8),
        Lengths(RAGGED, (64, 8, 16, 32, 8, 64, 16, 32)),
    ),
    dtypes=(BF16, FP32),
    rows=(1, 64, 1024),
    models=SHAPES,
    batches=(1, 8),
    prefix=1024,
    suffix=64,
    prompt=512,
    new=128,
    step=16,
)
SMALL = {"vocab_size": 300, "d_model": 64, "mlp_size": 96, "head_dim": 32}
TINY = Shapes(
    logits=((6, 600, BF16),),
    products=((5, 64, 300, BF16),),
    heads=(Heads(2, 1, 32),),
    lengths=(Lengths((20,), (6,)), Lengths((0, 9), (4, 4)), Lengths((0, 9), (5, 2))),
    dtypes=(BF16,),
    rows=(5,),
    models={"LLaDA-8B": replace(SHAPES["LLaDA-8B"], **SMALL, n_heads=2, n_kv_heads=2)},
    batches=(2,),
    prefix=6,
    suffix=4,
    prompt=5,
    new=6,
    step=3,
)

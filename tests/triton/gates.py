"""What a compiled kernel must be like, by family and architecture."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lsp_kernels.triton.aot import Compiled, builds
from lsp_kernels.triton.aot.builds import Build
from lsp_kernels.triton.aot.report import Row, row_of, tensor_cores
from tests.triton.ordering import check_amdgcn, check_fences, check_ptx

MATRIX = {"sm_90": "wgmma", "sm_100": "tcgen05"}  # what tiles of 64 rows and more use there


def violations(made: Build, compiled: Compiled) -> list[str]:
    """Every gate of its family that a build fails, as a sentence."""
    return [*_within_limits(made, compiled), *_wide_loads(made, compiled), *_ordered(made, compiled),
            *_tensor_cores(made, compiled)]  # fmt: skip


def _within_limits(made: Build, compiled: Compiled) -> Iterator[str]:
    heavy = made.family == "attention" and (_is_float32(made) or made.constants["D"] > 128 or "unaligned" in made.name)
    if compiled.spills and not heavy:  # the table shows what heavy ones spill
        yield f"spills: {compiled.resources}"
    if compiled.shared > compiled.target.shared_limit:
        yield f"{compiled.shared} bytes of shared memory, {compiled.target.shared_limit} allowed"


def _wide_loads(made: Build, compiled: Compiled) -> Iterator[str]:
    narrow = "unaligned" in made.name or made.kernel.__name__ == "select_kernel"
    if compiled.widest_load < 128 and not narrow:
        yield f"the widest load has {compiled.widest_load} bits"


def _ordered(made: Build, compiled: Compiled) -> Iterator[str]:
    if made.kernel.__name__ == "select_kernel":
        return
    cuda = compiled.target.backend == "cuda"
    if cuda:
        yield from check_fences(compiled.text)
    if made.constants.get("SPLIT", True):
        yield from check_ptx(compiled.text) if cuda else check_amdgcn(compiled.text, compiled.target.name)
    elif compiled.count("atom.", "red.", "global_atomic", "buffer_atomic"):
        yield "an atomic, though no tile is shared"


def _tensor_cores(made: Build, compiled: Compiled) -> Iterator[str]:
    if made.family != "attention" or _is_float32(made):
        return
    expected = MATRIX.get(made.architecture, "") if made.constants["BM"] >= 64 else ""
    found = tensor_cores(compiled)
    if not found or expected not in found:
        yield f"expected tensor cores {expected}, found {found or 'none'}"


def _is_float32(made: Build) -> bool:
    return made.signature.get("q_ptr") == builds.TYPES[torch.float32]


def examine(family: str, architecture: str) -> tuple[list[Row], list[str]]:
    """Rows of the table for every shipped build, and what is wrong with them."""
    rows, failures = [], []
    for made in builds.shipped(architecture, family):
        compiled = made.compile()
        rows.append(row_of(made, compiled))
        failures += [f"{architecture} {made.name}: {problem}" for problem in violations(made, compiled)]
    return rows, failures

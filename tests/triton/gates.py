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
    heavy = made.family in ("attention", "head") and (_is_float32(made) or "unaligned" in made.name)
    heavy |= made.family == "attention" and made.constants["D"] > 128
    if compiled.spills and not heavy:  # the table shows what heavy ones spill
        yield f"spills: {compiled.resources}"
    if compiled.shared > compiled.target.shared_limit:
        yield f"{compiled.shared} bytes of shared memory, {compiled.target.shared_limit} allowed"


def _wide_loads(made: Build, compiled: Compiled) -> Iterator[str]:
    narrow = "unaligned" in made.name or made.kernel.__name__ == "select_kernel"
    if compiled.widest_load < 128 and not narrow:
        yield f"the widest load has {compiled.widest_load} bits"


def _tickets(made: Build) -> int:
    """How many tickets a program may take: one of its row if that is split, one of its sequence if there is a rule.

    The head takes one of its tile of rows, and with a rule another one where it takes those of sequences.
    """
    kernel, shared = made.kernel.__name__, made.constants.get("SPLITS", 1) > 1
    by_kernel = {"select_kernel": 0, "stats_kernel": shared, "commit_kernel": shared + 1}
    by_kernel |= {"head_stats_kernel": 1, "head_commit_kernel": 2}
    by_kernel |= {"add_norm_kernel": 0, "rotate_kernel": 0, "silu_mul_kernel": 0}
    return int(by_kernel[kernel] if kernel in by_kernel else made.constants["SPLIT"])


def _ordered(made: Build, compiled: Compiled) -> Iterator[str]:
    cuda, text = compiled.target.backend == "cuda", compiled.text
    if cuda:
        yield from check_fences(text)
    if tickets := _tickets(made):
        yield from check_ptx(text, tickets) if cuda else check_amdgcn(text, compiled.target.name, tickets)
    elif compiled.count("atom.", "red.", "global_atomic", "buffer_atomic"):
        yield "an atomic, though nothing is shared"


def _tensor_cores(made: Build, compiled: Compiled) -> Iterator[str]:
    if made.family in ("commit", "block") or _is_float32(made):
        return
    expected = MATRIX.get(made.architecture, "") if made.constants["BM"] >= 64 else ""
    found = tensor_cores(compiled)
    if not found or expected not in found:
        yield f"expected tensor cores {expected}, found {found or 'none'}"


def _is_float32(made: Build) -> bool:
    return builds.TYPES[torch.float32] in (made.signature.get("q_ptr"), made.signature.get("h_ptr"))


def examine(family: str, architecture: str) -> tuple[list[Row], list[str]]:
    """Rows of the table for every shipped build, and what is wrong with them."""
    rows, failures = [], []
    for made in builds.shipped(architecture, family):
        compiled = made.compile()
        rows.append(row_of(made, compiled))
        failures += [f"{architecture} {made.name}: {problem}" for problem in violations(made, compiled)]
    return rows, failures

"""What the launchers make the compiler build, spelled out: every kernel in every configuration that ships.

The compiler sees an argument's type, whether it is divisible by 16, and the constants. This is how a kernel can be
compiled and examined for a GPU that is not here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lsp_kernels.triton import commit, configs
from lsp_kernels.triton.aot import Compiled, compile_kernel, lower_kernel

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
POINTERS = {
    "cu_ptr": "*i32", "active_ptr": "*i32", "starts_ptr": "*i32", "flags_ptr": "*u8", "suppressed_ptr": "*i32",
    "length_ptr": "*i32", "finished_ptr": "*u8", "token_ptr": "*i64", "margin_ptr": "*fp32", "value_ptr": "*fp32",
    "id_ptr": "*i32", "ticket_ptr": "*i32", "top1_ptr": "*fp32", "top2_ptr": "*fp32", "rest_ptr": "*fp32",
}  # fmt: skip
STRIDES = ("s_batch", "s_row", "s_margin_batch", "s_margin", "s_token_batch", "s_token")


@dataclass(frozen=True)
class Build:
    """One compilation of one kernel for one architecture."""

    family: str
    kernel: Any
    name: str
    architecture: str
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]
    aligned: tuple[str, ...]

    def compile(self) -> Compiled:
        return compile_kernel(
            self.kernel, self.architecture, self.signature, self.constants, **self.options, aligned=self.aligned
        )

    def lower(self) -> str:
        return lower_kernel(
            self.kernel, self.architecture, self.signature, self.constants, **self.options, aligned=self.aligned
        )


def build(
    kernel: Any,
    architecture: str,
    dtype: torch.dtype,
    *,
    aligned: bool = True,
    packed: bool = True,
    hidden: bool = True,
    guarded: bool = False,
    splits: int = 8,
) -> Build:
    """A build of a kernel of the commit family. `aligned`: base and strides of the logits are divisible by 16."""
    table = configs.STATS if kernel is commit.stats_kernel else configs.COMMIT
    config = table[architecture][dtype]
    constants = {
        "GUARDED": guarded, "SNAP": True, "KEEP": guarded, "SPLITS": splits, "BLOCK": config.block,
        "ROWS": config.rows, "CHUNK": config.rows, "WAIT": config.wait,
    }  # fmt: skip
    absent = set() if packed else {"cu_ptr", "starts_ptr"}
    absent |= set() if hidden else {"suppressed_ptr"}
    signature: dict[str, str] = {}
    chosen: dict[str, Any] = {}
    for name in kernel.arg_names:
        if name in constants:
            chosen[name] = constants[name]
        elif name in absent:
            chosen[name] = None
        elif name == "x_ptr":
            signature[name] = TYPES[dtype]
        else:
            signature[name] = "i64" if name in STRIDES else "fp32" if name == "floor" else POINTERS.get(name, "i32")
    pointers = tuple(name for name in signature if name in POINTERS)
    rows = tuple(name for name in signature if name == "x_ptr" or name in STRIDES)
    variant = [str(dtype)[6:], f"splits {splits}", "packed" if packed else "batch"]
    variant += ["suppressed"] * hidden + ["floor"] * guarded + ["unaligned"] * (not aligned)
    options = {"num_warps": config.warps, "num_stages": 1, "maxnreg": config.maxnreg}
    return Build(
        "commit",
        kernel,
        f"{kernel.__name__} {', '.join(variant)}",
        architecture,
        signature,
        chosen,
        options,
        pointers + (rows if aligned else ()),
    )


def representative(architecture: str) -> Iterator[Build]:
    """One build of each kernel, the kind that decoding uses most."""
    for kernel in (commit.commit_kernel, commit.stats_kernel, commit.select_kernel):
        yield build(kernel, architecture, torch.bfloat16)


def shipped(architecture: str) -> Iterator[Build]:
    """Every dtype, alignment and variant that changes the code in a way worth looking at."""
    flags = (True, False)
    for dtype, aligned, hidden in itertools.product(configs.ALL_DTYPES, flags, flags):
        options: dict[str, Any] = {"aligned": aligned, "hidden": hidden, "splits": configs.MOST_SPLITS if hidden else 1}
        yield build(commit.stats_kernel, architecture, dtype, **options)
        for guarded in flags:
            yield build(commit.commit_kernel, architecture, dtype, **options, guarded=guarded, packed=not guarded)
    for packed, guarded in itertools.product(flags, flags):
        yield build(commit.select_kernel, architecture, torch.float32, packed=packed, guarded=guarded)

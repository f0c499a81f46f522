"""What the launchers make Triton compile: every kernel in every configuration that ships.

The compiler sees the type of each argument, whether it is divisible by 16, and the constants. With these written down,
a kernel can be compiled and examined for a GPU that is not present.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import attention, block, commit, configs, head
from .compile import compile_kernel, lower_kernel
from .facts import Compiled
from .targets import TARGETS

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
TYPES_OF_COMMIT = {
    "cu_ptr": "*i32", "active_ptr": "*i32", "starts_ptr": "*i32", "flags_ptr": "*u8", "length_ptr": "*i32",
    "finished_ptr": "*u8", "token_ptr": "*i64", "margin_ptr": "*fp32", "value_ptr": "*fp32",
    "ticket_ptr": "*i32", "top1_ptr": "*fp32", "top2_ptr": "*fp32", "log_odds_ptr": "*fp32", "entropy_ptr": "*fp32",
    "clean_ptr": "*fp32", "noise_ptr": "*i64", "floor": "fp32", "s_w": "i64",
    **dict.fromkeys(("s_batch", "s_row", "s_margin_batch", "s_margin", "s_token_batch", "s_token"), "i64"),
}  # fmt: skip
ATTENTION_POINTERS = {
    "cu_ptr": "*i32", "prefix_ptr": "*i32", "append_ptr": "*i32", "slots_ptr": "*i32", "partial_ptr": "*fp32",
    "ticket_ptr": "*i32", "lse_ptr": "*fp32",
}  # fmt: skip
HIDDEN_SIZE = 4096  # of the builds of the head; any other works too
BLOCK_POINTERS = {"cos_ptr": "*fp32", "sin_ptr": "*fp32", "eps": "fp32"}
HEAD_DIMS = (32, 64, 96, 128, 256)  # the tuned ones; every other multiple of 16 up to 256 works too


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
    near: tuple[str, ...] = ()  # pointers to less than 2 GiB, for which AMD has buffer loads

    def compile(self) -> Compiled:
        return compile_kernel(self.kernel, self.architecture, self.signature, self.constants, **self._specialised())

    def lower(self) -> str:
        return lower_kernel(self.kernel, self.architecture, self.signature, self.constants, **self._specialised())

    def _specialised(self) -> dict[str, Any]:
        return {**self.options, "aligned": self.aligned, "within_2gb": self.near}


def build(
    kernel: Any,
    architecture: str,
    dtype: torch.dtype,
    *,
    aligned: bool = True,
    packed: bool = True,
    hidden: bool = True,
    has_floor: bool = False,
    splits: int = 8,
    snap: bool = True,
    keep: bool | None = None,
    flags: bool = True,
    noise: bool = False,
    grouped: bool = True,
    log_odds: bool = False,
    entropy: bool = False,
) -> Build:
    """A build of a kernel of the commit family, with the types that a launch would give. No argument is specialised.

    `aligned`: base and strides of the logits, their vocabulary and its flags are divisible by 16. `hidden`: ids are
    suppressed. `flags`: there is a vocabulary. `keep` is by default `has_floor`. `noise`: logits get some; `grouped`:
    their first id is a multiple of 4. `log_odds`: of a commit; `entropy`: among the statistics.
    """
    config = config_of(kernel, architecture, dtype)
    hidden = hidden and flags
    constants = {
        "HAS_FLOOR": has_floor, "SNAP": snap, "KEEP": has_floor if keep is None else keep, "HIDDEN": hidden,
        "ALIGNED": aligned, "SPLITS": splits, "BLOCK": config.block, "ROWS": config.rows, "WAIT": config.wait,
        "FAST": config.fast, "GROUPED": grouped,
    }  # fmt: skip
    absent = {"active_ptr"} if packed else {"cu_ptr", "starts_ptr"}
    absent |= set() if noise else {"noise_ptr", "clean_ptr"}
    absent |= set() if entropy else {"entropy_ptr"}
    absent |= set() if log_odds or kernel is commit.stats_kernel else {"log_odds_ptr"}
    absent |= set() if flags else {"flags_ptr"}
    absent |= set() if splits > 1 else {"value_ptr"}
    if kernel is commit.stats_kernel and splits == 1:
        absent.add("ticket_ptr")
    types = {**TYPES_OF_COMMIT, "x_ptr": TYPES[dtype]}
    chosen = {name: constants.get(name) for name in kernel.arg_names if name in constants or name in absent}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names if name not in chosen}
    variant = [str(dtype)[6:], f"splits {splits}", "packed" if packed else "batch"]
    variant += ["suppressed"] * hidden + ["floor"] * has_floor + ["no snap"] * (not snap)
    variant += ["keep"] * (keep is not None and keep != has_floor) + ["no vocabulary"] * (not flags)
    variant += ["noise"] * noise + ["odd ids"] * (not grouped) + ["log-odds"] * log_odds + ["entropy"] * entropy
    variant += ["unaligned"] * (not aligned)
    name = f"{kernel.__name__} {', '.join(variant)}"
    options = config.options(aligned, noise or log_odds or entropy)
    return Build("commit", kernel, name, architecture, signature, chosen, options, ())


def config_of(kernel: Any, architecture: str, dtype: torch.dtype) -> configs.commit.CommitConfig:
    """The configuration with which a kernel of the commit family is launched."""
    if kernel is commit.select_kernel:
        return configs.commit.SELECT[architecture]
    table = configs.commit.STATS if kernel is commit.stats_kernel else configs.commit.COMMIT
    return table[architecture][dtype]


def build_attention(
    architecture: str,
    dtype: torch.dtype = torch.bfloat16,
    head_dim: int = 128,
    config: configs.attention.AttentionConfig | None = None,
    *,
    group: int = 7,
    split: bool = True,
    packed: bool = True,
    append: bool = True,
    aligned: bool = True,
    near: bool = True,
    wide: bool = False,
    lse: bool = False,
    slots: bool = False,
) -> Build:
    """A build of the attention kernel as a launch would compile it.

    `config` is by default the largest tile that needs no full device, mostly that of 64 rows.
    `aligned`: base and strides of all tensors are divisible by 16. `near`: each tensor has less than 2 GiB. `wide`:
    offsets within a tile do not fit 32 bits, and the tensors have more than 2 GiB. Packed tokens have a stride of 0
    between sequences, whatever the others are.
    """
    kernel = attention.attention_kernel
    padded = configs.attention.padded_size(head_dim)
    by_size = configs.attention.ATTENTION[architecture][dtype][padded]
    config = config or [tile for tile in by_size if tile.rows <= configs.attention.MODEST_ROWS][-1]
    absent = ["cu_ptr"] * (not packed) + ["append_ptr"] * (not append) + ["partial_ptr", "ticket_ptr"] * (not split)
    absent += ["lse_ptr"] * (not lse) + ["slots_ptr"] * (not slots)
    constants: dict[str, Any] = {
        "G": group, "D": head_dim, "DP": padded, "BM": config.rows, "BN": config.keys, "SPLIT": split, "WIDE": wide,
        "WAIT": config.wait, "CHUNK": configs.attention.BORDERS, **dict.fromkeys(absent),
    }  # fmt: skip
    zeros = ("s_qb", "s_kb", "s_vb") if packed else ()
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            continue
        if name.endswith("_ptr"):
            signature[name] = ATTENTION_POINTERS.get(name, TYPES[dtype])
        else:
            large = wide and name.startswith("s_") and name not in zeros
            signature[name] = "fp32" if name == "scale" else "i64" if large else "i32"
    pointers = tuple(name for name in signature if name.endswith("_ptr"))
    strides = tuple(name for name in signature if name.startswith("s_"))
    ours = tuple(name for name in pointers if name in ATTENTION_POINTERS)
    divisible = (*pointers, *strides) if aligned else (*ours, *zeros)
    divisible = tuple(name for name in divisible if name not in attention.INDICES)
    variant = [str(dtype)[6:], f"D {head_dim}", f"{config.rows}x{config.keys}", f"group {group}"]
    variant += ["split"] * split + ["batch"] * (not packed) + ["no append"] * (not append)
    variant += ["over 2 GiB"] * (not near) + ["64-bit strides"] * wide + ["unaligned"] * (not aligned)
    variant += ["lse"] * lse + ["slots"] * slots
    name = f"{kernel.__name__} {', '.join(variant)}"
    near_pointers = (ours if wide or not near else pointers) if TARGETS[architecture].backend == "hip" else ()
    return Build(
        "attention", kernel, name, architecture, signature, constants, config.options, divisible, near_pointers
    )


def build_head(
    kernel: Any,
    architecture: str,
    dtype: torch.dtype = torch.bfloat16,
    config: configs.head.HeadConfig | None = None,
    *,
    size: int = HIDDEN_SIZE,
    aligned: bool = True,
    packed: bool = True,
    bias: bool = False,
    noise: bool = False,
    rest: bool = False,
    grouped: bool = True,
    has_floor: bool = False,
    flags: bool = True,
    near: bool = True,
) -> Build:
    """A build of a kernel of the head as a launch would compile it; `config` is by default the smallest tile.

    `aligned`: base and strides of hidden states and weights are divisible by 16. `rest`: log-odds of a commit, or
    entropy. `grouped`: the first id is a multiple of 4. `flags`: there is a vocabulary, with suppressed ids, and the
    rule snaps. `near`: hidden states and weights have less than 2 GiB each.
    """
    config = config or configs.head.HEAD[architecture][dtype][noise][0]
    stats = kernel is head.head_stats_kernel
    absent = {"active_ptr"} if packed else {"cu_ptr", "starts_ptr"}
    absent |= set() if bias else {"bias_ptr"}
    absent |= set() if noise else {"noise_ptr", "clean_ptr"}
    absent |= set() if rest else {"entropy_ptr" if stats else "log_odds_ptr"}
    absent |= set() if flags else {"flags_ptr"}
    constants: dict[str, Any] = {
        "D": size, "HAS_FLOOR": has_floor, "SNAP": flags, "KEEP": has_floor, "HIDDEN": flags, "ALIGNED": aligned,
        "GROUPED": grouped, "FAST": config.fast, "BM": config.rows, "BV": config.ids, "BK": config.depth,
        "MERGED": config.merged, "PIN": config.pin, "CHUNK": configs.head.CHUNK, "WAIT": config.wait,
    }  # fmt: skip
    chosen = {name: constants.get(name) for name in kernel.arg_names if name in constants or name in absent}
    types = {**TYPES_OF_COMMIT, **dict.fromkeys(("h_ptr", "w_ptr", "bias_ptr"), TYPES[dtype])}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names if name not in chosen}
    variant = [str(dtype)[6:], f"{config.rows}x{config.ids}x{config.depth}"]
    variant += [] if stats else ["packed" if packed else "batch"]
    variant += ["noise"] * noise + ["entropy" if stats else "log-odds"] * rest + ["odd offset"] * (not grouped)
    variant += ["bias"] * bias + ["floor"] * has_floor + ["no vocabulary"] * (not flags)
    variant += [f"hidden size {size}"] * (size != HIDDEN_SIZE) + ["over 2 GiB"] * (not near)
    variant += ["unaligned"] * (not aligned)
    operands = ("h_ptr", "w_ptr")
    return Build(
        "head",
        kernel,
        f"{kernel.__name__} {', '.join(variant)}",
        architecture,
        signature,
        chosen,
        config.options,
        operands if aligned else (),
        operands if near and TARGETS[architecture].backend == "hip" else (),
    )


def build_block(
    kernel: Any,
    architecture: str,
    dtype: torch.dtype = torch.bfloat16,
    size: int = HIDDEN_SIZE,
    *,
    residual: bool = True,
    norms: bool = False,
    aligned: bool = True,
    near: bool = True,
) -> Build:
    """A build of a block kernel as a launch would compile it. `size`: of rows or heads, which is compiled in.

    `norms`: of heads that are turned. `aligned`: addresses and strides of what is given are divisible by 16. `near`:
    each tensor has less than 2 GiB.
    """
    config = configs.block.BLOCK[architecture][dtype]
    by_kernel = {
        "add_norm_kernel": lambda: config.norm(size),
        "rotate_kernel": lambda: config.rotation(size),
        "silu_mul_kernel": config.gate,
    }
    chosen = by_kernel[kernel.__name__]()
    options = {name: chosen.pop(name) for name in ("num_warps", "num_stages")}
    absent = ["residual_ptr"] * (not residual) + ["q_norm_ptr", "k_norm_ptr"] * (not norms)
    constants: dict[str, Any] = {
        **chosen, "D": size, "STEP": block.UNIT if aligned else 1, **dict.fromkeys(absent),
    }  # fmt: skip
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    signature = {}
    for name in kernel.arg_names:
        if name not in constants:
            plain = TYPES[dtype] if name.endswith("_ptr") else "i64" if name.startswith("s_") else "i32"
            signature[name] = BLOCK_POINTERS.get(name, plain)
    pointers = tuple(name for name in signature if name.endswith("_ptr"))
    given = () if aligned else ("x_ptr", "residual_ptr", "q_ptr", "k_ptr")
    variant = [str(dtype)[6:], *([f"size {size}"] if "D" in constants else [])]
    variant += ["residual"] * ("residual_ptr" in signature) + ["norms"] * ("q_norm_ptr" in signature)
    variant += ["over 2 GiB"] * (not near)
    variant += ["unaligned"] * (not aligned)
    return Build(
        "block",
        kernel,
        f"{kernel.__name__} {', '.join(variant)}",
        architecture,
        signature,
        constants,
        options,
        tuple(name for name in pointers if name not in given),
        pointers if near and TARGETS[architecture].backend == "hip" else (),
    )


FAMILIES = ("commit", "attention", "head", "block")


def representative(architecture: str) -> Iterator[Build]:
    """The build of each kernel that decoding uses most."""
    for kernel in (commit.commit_kernel, commit.stats_kernel, commit.select_kernel):
        yield build(kernel, architecture, torch.bfloat16)
    yield build(commit.commit_kernel, architecture, torch.bfloat16, noise=True)
    yield build_attention(architecture)
    yield build_head(head.head_commit_kernel, architecture)
    yield build_block(block.add_norm_kernel, architecture)
    yield build_block(block.rotate_kernel, architecture, size=128)
    yield build_block(block.silu_mul_kernel, architecture)


def shipped(architecture: str, family: str) -> Iterator[Build]:
    """Builds of one family for every dtype, tile, alignment and variant whose code differs notably."""
    by_family = {
        "commit": _shipped_commit,
        "attention": _shipped_attention,
        "head": _shipped_head,
        "block": _shipped_block,
    }
    return by_family[family](architecture)


def _shipped_commit(architecture: str) -> Iterator[Build]:
    flags = (True, False)
    for dtype, aligned, hidden in itertools.product(configs.device.DTYPES, flags, flags):
        splits = configs.commit.MOST_SPLITS if hidden else 1
        options: dict[str, Any] = {"aligned": aligned, "hidden": hidden, "splits": splits}
        yield build(commit.stats_kernel, architecture, dtype, **options)
        for has_floor in flags:
            yield build(commit.commit_kernel, architecture, dtype, **options, has_floor=has_floor, packed=not has_floor)
    for packed, has_floor, keep in itertools.product(flags, flags, flags):
        options = {"packed": packed, "has_floor": has_floor, "keep": keep}
        yield build(commit.commit_kernel, architecture, torch.bfloat16, **options, splits=2 if keep else 4)
        yield build(commit.select_kernel, architecture, torch.float32, **options)
    for kernel in (commit.commit_kernel, commit.stats_kernel):
        yield build(kernel, architecture, torch.bfloat16, flags=False, snap=False)
    yield from _shipped_noisy(architecture)


def _shipped_noisy(architecture: str) -> Iterator[Build]:
    """Noise, with what else can be asked for; the entropy and the log-odds of a commit without noise."""
    for dtype, noise in itertools.product(configs.device.DTYPES, (True, False)):
        for aligned in (True, False):
            yield build(commit.commit_kernel, architecture, dtype, aligned=aligned, noise=noise, log_odds=True)
            yield build(commit.stats_kernel, architecture, dtype, aligned=aligned, noise=noise, entropy=True)
    for options in ({"splits": 1, "hidden": False}, {"packed": False}):
        yield build(commit.commit_kernel, architecture, torch.bfloat16, noise=True, **options)
    for grouped in (True, False):
        yield build(commit.stats_kernel, architecture, torch.bfloat16, noise=True, grouped=grouped)


def _shipped_attention(architecture: str) -> Iterator[Build]:
    for dtype, head_dim in itertools.product(configs.device.DTYPES, HEAD_DIMS):
        for config in configs.attention.ATTENTION[architecture][dtype][configs.attention.padded_size(head_dim)]:
            yield build_attention(architecture, dtype, head_dim, config)
            if dtype == torch.bfloat16:
                yield build_attention(architecture, dtype, head_dim, config, split=False)
    variants: list[dict[str, Any]] = [
        {"packed": False}, {"append": False}, {"group": 1}, {"head_dim": 80}, {"aligned": False}, {"wide": True},
        {"lse": True}, {"slots": True},
    ]  # fmt: skip
    if TARGETS[architecture].backend == "hip":
        variants.append({"near": False})
    for options in variants:
        yield build_attention(architecture, **options)


def _shipped_head(architecture: str) -> Iterator[Build]:
    kernels, hip = (head.head_stats_kernel, head.head_commit_kernel), TARGETS[architecture].backend == "hip"
    for noise in (False, True):
        for config, kernel in itertools.product(configs.head.HEAD[architecture][torch.bfloat16][noise], kernels):
            yield build_head(kernel, architecture, torch.bfloat16, config, noise=noise, rest=noise)
        for config in configs.head.HEAD[architecture][torch.float32][noise]:
            yield build_head(kernels[noise], architecture, torch.float32, config, noise=noise, rest=noise)
    for config in configs.head.HEAD[architecture][torch.float16][False]:
        yield build_head(head.head_commit_kernel, architecture, torch.float16, config)
    variants: list[dict[str, Any]] = [
        {"packed": False, "has_floor": True}, {"bias": True, "rest": True}, {"noise": True}, {"flags": False},
        {"aligned": False, "size": 1001}, *([{"near": False}] if hip else []),
    ]  # fmt: skip
    for options in variants:
        yield build_head(head.head_commit_kernel, architecture, **options)
    for options in ({"noise": True, "grouped": False}, {"rest": True, "size": 1008}):
        yield build_head(head.head_stats_kernel, architecture, **options)


def _shipped_block(architecture: str) -> Iterator[Build]:
    """Rows of the hidden sizes of LLaDA and Dream, of heads, and the longest ones; heads of several sizes."""
    norm, rotate, gate = block.add_norm_kernel, block.rotate_kernel, block.silu_mul_kernel
    for dtype in configs.device.DTYPES:
        yield build_block(norm, architecture, dtype)
        yield build_block(norm, architecture, dtype, 32768)
        yield build_block(norm, architecture, dtype, 128, residual=False)
        yield build_block(rotate, architecture, dtype, 128)
        yield build_block(rotate, architecture, dtype, 128, norms=True)
        yield build_block(gate, architecture, dtype)
    yield build_block(norm, architecture, size=3584)
    for size in (64, 80, 256):
        yield build_block(rotate, architecture, size=size)
    yield build_block(rotate, architecture, size=256, norms=True)
    far = ({"near": False},) if TARGETS[architecture].backend == "hip" else ()
    for options in ({"aligned": False}, *far):
        yield build_block(norm, architecture, **options)
        yield build_block(rotate, architecture, size=128, **options)
        yield build_block(rotate, architecture, size=128, norms=True, **options)
        yield build_block(gate, architecture, **options)

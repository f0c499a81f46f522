"""What is proven is what is launched: every build is the compilation that some call of the launchers would need."""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from lsp_kernels import PrefixRule, Vocabulary
from lsp_kernels.triton import attention, block, commit, configs, head
from lsp_kernels.triton.aot import TARGETS, builds
from lsp_kernels.triton.aot.builds import Build
from lsp_kernels.triton.warmup import compile_commit, compile_head
from tests.support import ints
from tests.triton.launches import Compilation, captured, of_build

MAP_NORESERVE = 0x4000  # of Linux, which not every Python names
DTYPES = {pointer: dtype for dtype, pointer in builds.TYPES.items()}


def commit_call(made: Build) -> None:
    """Calls the operation of a commit kernel as its build says."""
    chosen, types = made.constants, made.signature
    rule = PrefixRule(
        floor=4.0 if chosen.get("HAS_FLOOR") else None,
        snap=chosen.get("SNAP", True),
        no_delimiter="keep" if chosen.get("KEEP") else "minimum",
    )
    size = 64 if chosen.get("ALIGNED", True) else 63
    vocabulary = Vocabulary(size, delimiters=[3], suppress=[5] if chosen.get("HIDDEN") else [])
    tables = vocabulary.tables if "flags_ptr" in types else (None, None, 0)
    packed = "cu_ptr" in types or made.kernel is commit.stats_kernel
    shape = [4] if packed else [2, 2]
    sequences = (
        ints(0, 3, 4) if "cu_ptr" in types else None,
        ints(1, 1) if "active_ptr" in types else None,
        ints(0, 0) if "starts_ptr" in types else None,
    )
    if made.kernel is commit.select_kernel:
        commit.select_prefix(torch.zeros(shape), torch.zeros(shape).long(), *sequences, tables[0], *rule.arguments)
        return
    logits, splits = torch.zeros(*shape, size, dtype=DTYPES[types["x_ptr"]]), chosen["SPLITS"]
    noise = torch.zeros(*shape, 3, dtype=torch.int64) if "noise_ptr" in types else None
    if made.kernel is commit.stats_kernel:
        options = (0 if chosen["GROUPED"] else 1, noise, "entropy_ptr" in types)
        commit.token_stats(logits, *tables, *options, None, None, splits=splits)
    else:
        options = (noise, "log_odds_ptr" in types)
        commit.commit_prefix(logits, *sequences, *tables, *rule.arguments, *options, None, None, splits=splits)


@cache
def memory(size: int) -> Tensor:
    """Bytes that cost nothing until they are touched, which they are not."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)


class Operands:
    """Tensors for a build of attention: where they lie and which strides they have decides what Triton compiles."""

    def __init__(self, made: Build) -> None:
        marks = dict(of_build(made).attributes)
        self.unaligned = "divisibility" not in marks.get("q_ptr", "")
        self.wide = made.constants["WIDE"]
        hip = TARGETS[made.architecture].backend == "hip"
        self.far = self.wide or (hip and "range" not in marks.get("q_ptr", ""))
        self.used = 0

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Contiguous, or with large or odd strides but for the last; the tensors share no element."""
        room = memory(2**40 if self.far else 2**30).view(dtype)
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        if self.wide or self.unaligned:
            step = 2**31 if self.wide else shape[-1] + 1
            strides = [*(step * (i + 1) for i in range(len(shape) - 1)), 1]
        start, self.used = self.used, self.used + (2**36 if self.far else 2**22)
        return room.as_strided(shape, strides, start + self.unaligned)


def attention_call(made: Build) -> None:
    """Calls attention with the tile, the splits and the tensors that a build says."""
    chosen, types, make = made.constants, made.signature, Operands(made)
    dtype, group, size = DTYPES[types["q_ptr"]], chosen["G"], chosen["D"]
    tiles = configs.attention.ATTENTION[made.architecture][dtype][chosen["DP"]]
    (tile,) = [t for t in tiles if (t.rows, t.keys) == (chosen["BM"], chosen["BN"])]
    tokens = [2] if "cu_ptr" in types else [1, 2]
    q, k, v = (make.tensor([*tokens, heads, size], dtype) for heads in (group, 1, 1))
    k_cache, v_cache = (make.tensor([1, 1, 4, size], dtype) for _ in range(2))
    make.wide = False  # the output is contiguous
    out = make.tensor([math.prod(tokens) * group * size], dtype).as_strided(q.shape, torch.empty(q.shape).stride())
    named = {
        "q": q, "k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "prefix_lens": ints(2), "scale": 1.0,
        "cu_seqlens": ints(0, 2) if "cu_ptr" in types else None,
        "append_lens": ints(1) if "append_ptr" in types else None, "slots": ints(0) if "slots_ptr" in types else None,
        "out": out, "lse": torch.zeros(q.shape[:-1]) if "lse_ptr" in types else None,
    }  # fmt: skip
    schema = torch.ops.lsp.suffix_attention_into.default._schema
    operands = [named.get(argument.name) for argument in schema.arguments]
    attention.suffix_attention_into(*operands, splits=2 if chosen["SPLIT"] else 1, config=tile)


def head_call(made: Build) -> None:
    """Calls an operation of the head with the tile and the tensors that a build says."""
    chosen, types, marks = made.constants, made.signature, dict(of_build(made).attributes)
    dtype, size, ids = DTYPES[types["h_ptr"]], chosen["D"], 48
    far = TARGETS[made.architecture].backend == "hip" and "range" not in marks.get("h_ptr", "")
    unaligned = "divisibility" not in marks.get("h_ptr", "")
    room = memory(2**40 if far else 2**30).view(dtype)
    packed = "cu_ptr" in types or made.kernel is head.head_stats_kernel
    shape = [4, size] if packed else [2, 2, size]
    hidden = room[unaligned : unaligned + 4 * size].view(shape)
    weight = room.as_strided([ids, size], [size, 1], 2**22 + unaligned)
    bias = torch.zeros(ids, dtype=dtype) if "bias_ptr" in types else None
    vocabulary = Vocabulary(ids, delimiters=[3], suppress=[5])
    tables = vocabulary.tables if "flags_ptr" in types else (None, None, 0)
    noise = torch.zeros(*shape[:-1], 3, dtype=torch.int64) if "noise_ptr" in types else None
    tiles = configs.head.HEAD[made.architecture][dtype][noise is not None]
    (tile,) = [t for t in tiles if (t.rows, t.ids, t.depth) == (chosen["BM"], chosen["BV"], chosen["BK"])]
    if made.kernel is head.head_stats_kernel:
        options = (0 if chosen["GROUPED"] else 3, noise, "entropy_ptr" in types, None, None)
        head.linear_token_stats(hidden, weight, bias, *tables, *options, config=tile)
        return
    sequences = (
        ints(0, 3, 4) if "cu_ptr" in types else None,
        ints(1, 1) if "active_ptr" in types else None,
        ints(0, 0) if "starts_ptr" in types else None,
    )
    keep, floor = "keep" if chosen["KEEP"] else "minimum", 4.0 if chosen["HAS_FLOOR"] else None
    rule = PrefixRule(floor=floor, snap=chosen["SNAP"], no_delimiter=keep).arguments
    options = (noise, "log_odds_ptr" in types, None, None)
    head.linear_commit_prefix(hidden, weight, bias, *sequences, *tables, *rule, *options, config=tile)


def block_call(made: Build) -> None:
    """Calls an operation of a block on tensors that lie as a build says."""
    chosen, marks = made.constants, dict(of_build(made).attributes)
    dtype = DTYPES[made.signature.get("x_ptr", made.signature.get("q_ptr"))]
    far = TARGETS[made.architecture].backend == "hip" and not any("range" in mark for mark in marks.values())
    shift, room = chosen["STEP"] == 1, memory(2**40 if far else 2**30)
    size = chosen.get("D", 64)

    def tensor(*shape: int, place: int, dtype: torch.dtype = dtype, shift: int = shift) -> Tensor:
        """In memory of its own; of odd strides and an odd address if it is shifted."""
        strides = [2 * math.prod(shape[i + 1 :]) + shift for i in range(len(shape) - 2)]
        strides += [shape[-1] + shift] * (len(shape) > 1)
        return room.view(dtype).as_strided(shape, [*strides, 1], place * 2**24 + shift)

    def fresh(like: Tensor, *shape: int) -> Tensor:
        return tensor(*(shape[0] if len(shape) == 1 else shape), place=4, shift=0)

    with mock.patch.object(Tensor, "new_empty", fresh):  # a result is as far away as the operands
        if made.kernel is block.add_norm_kernel:
            residual = tensor(2, size, place=1) if "residual_ptr" in made.signature else None
            block.add_norm(tensor(2, size, place=0), residual, tensor(size, place=2, shift=0), 1e-6)
        elif made.kernel is block.silu_mul_kernel:
            block.silu_mul(tensor(2, 2 * size, place=0))
        else:
            tables = (tensor(2, size // 2, place=place, dtype=torch.float32, shift=0) for place in (2, 3))
            norms = [tensor(size, place=place, shift=0) if "q_norm_ptr" in made.signature else None for place in (4, 5)]
            block.rotate_(tensor(2, 3, size, place=0), tensor(2, 1, size, place=1), *tables, *norms, 1e-6)


CALLS = {"commit": commit_call, "attention": attention_call, "head": head_call, "block": block_call}


@pytest.mark.parametrize("family", builds.FAMILIES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_build_is_one_that_a_launch_would_compile(target: str, family: str) -> None:
    usual = [made for made in builds.representative(target) if made.family == family]
    for made in [*usual, *builds.shipped(target, family)]:
        with captured(target) as launched:
            CALLS[made.family](made)
        assert launched == [of_build(made)], made.name


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"options": {"num_warps": 2, "num_stages": 1, "maxnreg": 80}}, id="warps"),
        pytest.param({"options": {"num_warps": 8, "num_stages": 1}}, id="registers"),
        pytest.param({"aligned": ("x_ptr",)}, id="divisibility"),
        pytest.param({"near": ("x_ptr",)}, id="range"),
    ],
)
def test_another_build_than_the_launched_one_is_noticed(change: dict[str, Any]) -> None:
    target = "gfx942" if "near" in change else "sm_90"
    made = builds.build(commit.commit_kernel, target, torch.bfloat16)
    with captured(target) as launched:
        commit_call(made)
    assert launched == [of_build(made)]
    assert launched != [of_build(dataclasses.replace(made, **change))]


def compilations(
    target: str, logits: Tensor, batch: bool, vocabulary: Vocabulary | None, noise: bool = False, more: bool = False
) -> set[Compilation]:
    """What the three operations need for these logits, with every number of splits that shapes may choose.

    `more`: entropy and log-odds too.
    """
    tables = (None, None, 0) if vocabulary is None else vocabulary.tables
    rule, flags = PrefixRule(snap=vocabulary is not None).arguments, tables[0]
    sequences = (None, ints(*[1] * logits.size(0)), None) if batch else (ints(0, 1), None, ints(0))
    margins = torch.zeros(logits.shape[:-1])
    table = torch.zeros(*logits.shape[:-1], 3, dtype=torch.int64) if noise else None
    with captured(target) as launched:
        for splits in configs.commit.split_counts():
            commit.token_stats(logits, *tables, 8, table, more, None, None, splits=splits)
            commit.commit_prefix(logits, *sequences, *tables, *rule, table, more, None, None, splits=splits)
        commit.select_prefix(margins, margins.long(), *sequences, flags, *rule)
    return set(launched)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("batch", [True, False], ids=["batch", "packed"])
@pytest.mark.parametrize(("size", "noise", "more"), [(64, False, False), (63, False, False), (64, True, True)])
def test_a_warmup_compiles_all_that_calls_of_its_kind_need(
    target: str, batch: bool, size: int, noise: bool, more: bool
) -> None:
    """Whatever the number of rows, the alignment of pointers, and the strides, beyond 32 bits too."""
    vocabulary = Vocabulary(size, delimiters=[3], suppress=[5])
    rule, dims = PrefixRule().arguments, [1, 1] if batch else [1]
    sequences = (None, ints(1), None) if batch else (ints(0, 1), None, ints(0))
    with captured(target) as launched:
        compile_commit(torch.zeros(*dims, size), *sequences, vocabulary.tables, rule, noise, more, more)
    warm = set(launched)
    for rows in (1, 3, 16, 1000):
        shape = [2, rows, size] if batch else [rows, size]
        contiguous = torch.zeros(shape)
        shifted = torch.zeros(contiguous.numel() + 1)[1:].view(shape)
        far = memory(2**40).view(torch.float32).as_strided([*dims, size], [*[2**31] * len(dims), 1])
        for logits in (contiguous, shifted, far):
            assert compilations(target, logits, batch, vocabulary, noise, more) <= warm
    others = [(torch.half, noise, more), (torch.float32, not noise, more), (torch.float32, noise, not more)]
    for dtype, *options in others:
        other = compilations(target, torch.zeros(*dims, size, dtype=dtype), batch, vocabulary, *options)
        assert len(other & warm) == 1  # the rule alone reads no logits


@pytest.mark.parametrize(
    ("logits", "flags"),
    [
        pytest.param(torch.zeros(4, 63), None, id="vocabulary"),
        pytest.param(torch.zeros(4, 80)[:, 4:68], None, id="aligned pointer"),
        pytest.param(torch.zeros(4, 80)[:, 3:67], None, id="pointer"),
        pytest.param(torch.zeros(4, 72)[:, :64], None, id="stride of rows"),
        pytest.param(torch.zeros(2, 4 * 64 + 8)[:, : 4 * 64].unflatten(1, (4, 64)), None, id="stride of sequences"),
        pytest.param(torch.zeros(4, 64), torch.zeros(65, dtype=torch.uint8)[1:], id="flags"),
    ],
)
def test_only_rows_and_flags_that_begin_at_multiples_of_16_count_as_aligned(
    logits: Tensor, flags: Tensor | None, request: pytest.FixtureRequest
) -> None:
    with captured("sm_90") as launched:
        commit.token_stats(logits, flags, None, 0, 0, None, False, None, None, splits=1)
    assert dict(launched[0].constants)["ALIGNED"] == ("aligned pointer" in request.node.name)


def head_compilations(target: str, hidden: Tensor, weight: Tensor, noise: bool) -> set[Compilation]:
    """What the two operations of the head need for these operands."""
    rule = PrefixRule(snap=False).arguments
    table = torch.zeros(*hidden.shape[:-1], 3, dtype=torch.int64) if noise else None
    with captured(target) as launched:
        head.linear_token_stats(hidden, weight, None, None, None, 0, 0, table, False, None, None)
        sequences = (ints(0, hidden.size(0)), None, None)
        head.linear_commit_prefix(hidden, weight, None, *sequences, None, None, 0, *rule, table, False, None, None)
    return set(launched)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("noise", [False, True], ids=["greedy", "noise"])
def test_a_warmup_of_the_head_compiles_all_that_calls_of_its_kind_need(target: str, noise: bool) -> None:
    """Whatever the number of rows and ids."""
    rule, dtype = PrefixRule(snap=False).arguments, torch.bfloat16
    with captured(target) as launched:
        sequences = (ints(0, 1), None, None)
        operands = (torch.zeros(1, 64, dtype=dtype), torch.zeros(40, 64, dtype=dtype), None, sequences)
        compile_head(*operands, (None, None, 0), rule, noise, False, False)
    warm, used = set(launched), set()
    for rows, ids in ((1, 9), (17, 1000), (40, 20), (70, 64), (300, 48)):
        hidden, weight = torch.zeros(rows, 64, dtype=dtype), torch.zeros(ids, 64, dtype=dtype)
        used |= head_compilations(target, hidden, weight, noise)
    assert used <= warm
    assert len(used) == len(warm)
    assert not head_compilations(target, torch.zeros(9, 64), torch.zeros(9, 64), noise) & warm

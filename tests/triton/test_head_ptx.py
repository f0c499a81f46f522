"""The compiled PTX of the head kernels, executed: exact, within bounds, without races, each weight read once per tile.

Tiles of 64 rows and more use wgmma on sm_90 and tcgen05 on sm_100.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch

from lsp_kernels import Commit, Noise, PrefixRule, TokenStats, Vocabulary, reference
from lsp_kernels.triton import configs
from lsp_kernels.triton.aot.builds import TYPES, Build, build_head, shipped
from lsp_kernels.triton.head import head_commit_kernel, head_stats_kernel
from tests.support import ints, same
from tests.triton.emulated import around
from tests.virtual_gpu import RaceError, launch
from tests.virtual_gpu.mutate import with_ticket, without_each_barrier

TARGETS = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
DTYPES = {pointer: dtype for dtype, pointer in TYPES.items()}
SIZE = 64  # of hidden states
IDS = 272  # two tiles of ids and a ragged end


class HeadInputs:
    """Hidden states that are small integers, so that every sum is exact, in packed sequences or a batch of two.

    There are scored rows in two tiles of the build, rows that are not scored between them, and a sequence without rows.
    """

    def __init__(self, made: Build, programs: int = 5, rows: int | None = None, size: int | None = None) -> None:
        chosen, types = made.constants, made.signature
        self.made, self.programs = made, programs
        size = chosen["D"] if size is None else size
        dtype, rows = DTYPES[types["h_ptr"]], rows or chosen["BM"] + 7
        self.batched = made.kernel is head_commit_kernel and "cu_ptr" not in types
        generator = torch.Generator().manual_seed(programs)
        integers = [torch.randint(-3, 4, (n, size), generator=generator).to(dtype) for n in (2 * rows, IDS)]
        self.hidden, self.weight = integers
        self.bias = torch.arange(IDS).remainder(5).to(dtype) if "bias_ptr" in types else None
        if self.batched:
            self.hidden = self.hidden.view(2, rows, size)
        elif made.kernel is head_stats_kernel:
            self.hidden = self.hidden[:rows]
        hidden_ids = [1, 5, IDS - 2] if chosen["HIDDEN"] else []
        self.vocabulary = Vocabulary(IDS, range(0, IDS, 3), range(0, IDS, 40), hidden_ids) if chosen["HIDDEN"] else None
        self.cu_rows = ints(0, rows, rows, 2 * rows - 3) if "cu_ptr" in types else None
        self.starts = ints(2, 0, 0) if "starts_ptr" in types else None
        self.n_active = ints(rows, rows - 2) if "active_ptr" in types else None
        keep, floor = "keep" if chosen.get("KEEP") else "minimum", 1.0 if chosen.get("HAS_FLOOR") else None
        self.rule = PrefixRule(0.25, 0.75, snap=chosen.get("SNAP", True), floor=floor, no_delimiter=keep)
        self.id_offset = 0 if chosen.get("GROUPED", True) else 3
        self.noise = None
        if "noise_ptr" in types:
            shape = self.hidden.shape[:-1]
            self.noise = Noise(torch.tensor(0.7).expand(shape), 12, torch.arange(shape[-1]), 3)
        self.tickets = torch.empty(0)

    def prepare(self) -> tuple[tuple[int], list[Any], Commit | TokenStats]:
        """Grid, run-time arguments in the kernel's order, and the outputs that it will write."""
        made, chosen = self.made, self.made.constants
        shape, commit = self.hidden.shape[:-1], made.kernel is head_commit_kernel
        rows, batch = math.prod(shape), 0
        if commit:
            batch = shape[0] if self.batched else self.cu_rows.numel() - 1
        programs = max(self.programs, -(-rows // chosen["BM"]))
        partials = torch.full((7 * programs * chosen["BM"],), -1, dtype=torch.int32)
        self.tickets = torch.zeros(batch + programs, dtype=torch.int32)
        tokens, floats = torch.full(shape, -7), [torch.full(shape, torch.nan) for _ in range(5)]
        lengths, finished = torch.full((batch,), -7, dtype=torch.int32), torch.full((batch,), 7, dtype=torch.uint8)
        unit = 16 if chosen["ALIGNED"] else 1
        suppressed = None if self.vocabulary is None else self.vocabulary.suppressed
        named = {
            "h_ptr": self.hidden, "w_ptr": self.weight, "bias_ptr": self.bias,
            "s_batch": self.hidden.stride(0) // unit if self.hidden.dim() == 3 else 0,
            "s_row": self.hidden.stride(-2) // unit, "s_w": self.weight.stride(0) // unit, "cu_ptr": self.cu_rows,
            "active_ptr": self.n_active, "starts_ptr": self.starts,
            "flags_ptr": None if self.vocabulary is None else self.vocabulary.flags,
            "noise_ptr": None if self.noise is None else self.noise.table, "length_ptr": lengths,
            "finished_ptr": finished, "token_ptr": tokens, "margin_ptr": floats[1], "top1_ptr": floats[0],
            "top2_ptr": floats[1], "log_odds_ptr": floats[2], "entropy_ptr": floats[3], "clean_ptr": floats[4],
            "value_ptr": partials.view(torch.float32), "ticket_ptr": self.tickets, "batch": batch,
            "rows": rows, "length": shape[-1], "vocabulary": IDS,
            "lowest": 0 if self.vocabulary is None else self.vocabulary.lowest,
            "others": IDS - 1 - (0 if suppressed is None else suppressed.numel()), "id_offset": self.id_offset,
            "alpha": self.rule.alpha_ppm, "beta": self.rule.beta_ppm, "min_length": self.rule.min_length,
            "window": self.rule.window, "floor": self.rule.floor or 0.0,
        }  # fmt: skip
        if commit:
            odds = floats[2] if "log_odds_ptr" in made.signature else None
            outputs = Commit(lengths, finished.view(torch.bool), tokens, floats[1], floats[0], odds)
        else:
            asked = [
                floats[i] if name in made.signature else None for i, name in ((3, "entropy_ptr"), (4, "clean_ptr"))
            ]
            outputs = TokenStats(tokens, *floats[:3], *asked)
        return (programs,), [named[name] for name in made.signature], outputs

    def expected(self) -> Commit | TokenStats:
        options = {"bias": self.bias, "vocabulary": self.vocabulary, "noise": self.noise}
        operands, asked = (self.hidden, self.weight), self.made.signature
        if self.made.kernel is head_commit_kernel:
            sequences = (self.cu_rows, self.n_active, self.starts)
            rest = {"rule": self.rule, "log_odds": "log_odds_ptr" in asked}
            return reference.linear_commit_prefix(*operands, *sequences, **options, **rest)
        rest = {"id_offset": self.id_offset, "entropy": "entropy_ptr" in asked}
        return reference.linear_token_stats(*operands, **options, **rest)

    def check(self, outputs: Commit | TokenStats) -> None:
        """Bit for bit without noise, but for log-odds and entropy; and every ticket is back at zero."""
        for name, got, wanted in zip(outputs._fields, outputs, self.expected(), strict=True):
            if wanted is None or not wanted.is_floating_point() or (self.noise is None and name.startswith("top")):
                same(got, wanted)
            else:
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4 if self.noise else 1e-5, equal_nan=True)
        assert not self.tickets.any()


def execute(made: Build, text: str | None = None, seed: int = 0, **options: Any) -> Any:
    """Runs a build, or a changed text of it, and checks its results."""
    case = HeadInputs(made, **options)
    compiled = made.compile()
    grid, arguments, outputs = case.prepare()
    run = launch(text or compiled.text, grid, arguments, shared=compiled.shared, seed=seed)
    case.check(outputs)
    return case, run


def tile_of(target: str, rows: int, noise: bool = False) -> configs.head.HeadConfig:
    (tile,) = (tile for tile in configs.head.HEAD[target][torch.bfloat16][noise] if tile.rows == rows)
    return tile


def ordinary(*names: str) -> list[Any]:
    """All targets; the ordinary tests run those that are named."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.targets) for name in TARGETS]


@pytest.mark.parametrize("target", ordinary("sm_80"))
def test_small_tiles_are_exact_in_any_order_of_programs(target: str) -> None:
    """Results are right, each weight is read once per tile of scored rows, and other rows are not read."""
    made = build_head(head_commit_kernel, target, size=SIZE)
    case, run = execute(made, seed=1)
    scored = case.expected().tokens >= 0
    tiles = -(-int(scored.sum()) // made.constants["BM"])
    assert tiles == 2
    assert (torch.from_numpy(run.reads(case.weight)) == tiles).all()
    assert (torch.from_numpy(run.reads(case.hidden))[~scored] == 0).all()


@pytest.mark.parametrize("rows", [64, pytest.param(128, marks=pytest.mark.targets)])
@pytest.mark.parametrize("target", ordinary("sm_90", "sm_100"))
def test_large_tiles_are_exact(target: str, rows: int) -> None:
    execute(build_head(head_stats_kernel, target, config=tile_of(target, rows), size=2 * SIZE), seed=2)


@pytest.mark.parametrize("target", ordinary("sm_90"))
def test_noise_and_entropy_are_those_of_the_definition(target: str) -> None:
    execute(build_head(head_stats_kernel, target, noise=True, rest=True, size=SIZE), seed=3, rows=5)


@pytest.mark.targets
@pytest.mark.parametrize("target", TARGETS)
def test_every_shipped_build_is_exact(target: str) -> None:
    """With a smaller hidden size, which the kernels are compiled for."""
    for made in shipped(target, "head"):
        small = {1001: 2 * SIZE + 9, 1008: 2 * SIZE + 16}.get(made.constants["D"], 2 * SIZE)
        execute(dataclasses.replace(made, constants=made.constants | {"D": small}), seed=4)


def test_a_relaxed_ticket_is_a_race() -> None:
    made = build_head(head_commit_kernel, "sm_80", size=SIZE)
    with pytest.raises(RaceError):
        execute(made, with_ticket(made.compile().text, "relaxed"))


@pytest.mark.targets
@pytest.mark.parametrize("kernel", [head_commit_kernel, head_stats_kernel], ids=["commit", "stats"])
def test_no_barrier_can_be_removed(kernel: Any) -> None:
    """Each is needed, except one before shared memory is used at all, one between two copies to different places, and
    the one that ends the pipeline of copies, after which another one comes before shared memory is used again."""
    made = build_head(kernel, "sm_80", size=SIZE)
    whole = made.compile().text
    barriers = [found.start() for found in re.finditer(r"bar\.sync", whole)]
    assert len(barriers) > 20
    for place, text in zip(barriers, without_each_barrier(whole), strict=True):
        try:
            execute(made, text, seed=1, **({} if kernel is head_commit_kernel else {"rows": 5}))
        except RaceError:
            continue
        before, after = around(whole, place)
        unused = not re.search(r"\.shared", whole[:place].partition("{")[2])
        assert unused or ("cp.async" in before and ("cp.async" in after or after.startswith("st.global"))), (
            before,
            after,
        )


def test_values_of_tensor_memory_that_are_not_pinned_are_read_too_early() -> None:
    """Triton 3.7.1 copies their registers before the wait for them."""
    made = build_head(head_stats_kernel, "sm_100", config=tile_of("sm_100", 64), size=2 * SIZE)
    execute(made, seed=1, rows=9)
    with pytest.raises(RaceError, match=r"in flight \(a tcgen05\.ld that no tcgen05\.wait::ld has waited for\)"):
        execute(dataclasses.replace(made, constants=made.constants | {"PIN": False}), seed=1, rows=9)


@pytest.mark.targets
def test_tensor_memory_that_is_cleared_without_a_barrier_after_its_read_is_a_race() -> None:
    made = build_head(head_stats_kernel, "sm_100", config=tile_of("sm_100", 128), size=2 * SIZE)
    whole = made.compile().text
    read = whole.index("tcgen05.wait::ld")
    barrier = whole.index("bar.sync", read)
    end = whole.index("\n", barrier)
    with pytest.raises(RaceError, match=r"tcgen05\.st"):
        execute(made, whole[:barrier] + whole[end:], seed=2)

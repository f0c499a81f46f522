"""The compiled PTX of the attention kernel, executed: as exact as torch's, within bounds, without races.

Tiles of 64 rows and more use wgmma and tcgen05 on sm_90 and sm_100: `test_tensor_cores.py` has these. The small ones
use mma.sync there too.
"""

from __future__ import annotations

import re

import pytest
import torch

from lsp_kernels.triton import configs
from lsp_kernels.triton.aot.builds import build_attention
from tests.attention_cases import (
    AttentionCase,
    check_attention,
    check_hidden,
    check_lse,
    check_nothing_seen,
    make_case,
)
from tests.triton.emulated import ROUNDED, Emulated, around, ragged
from tests.virtual_gpu import RaceError
from tests.virtual_gpu.mutate import with_ticket, without_each_barrier


def small_tile(target: str, head_dim: int = 128) -> configs.attention.AttentionConfig:
    return configs.attention.ATTENTION[target][torch.bfloat16][head_dim][0]


@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_120"])
def test_executed_code_is_as_exact_as_torch_and_the_cache_is_right_to_the_bit(target: str, split: bool) -> None:
    kernel = Emulated(build_attention(target, split=split), seed=1)
    check_attention(kernel.suffix_attention, ragged(), ROUNDED)


@pytest.mark.parametrize("rows", [16, 32, 128])
def test_small_and_large_tiles_are_as_exact(rows: int) -> None:
    (tile,) = (tile for tile in configs.attention.ATTENTION["sm_80"][torch.bfloat16][128] if tile.rows == rows)
    check_attention(Emulated(build_attention("sm_80", config=tile), seed=4).suffix_attention, ragged(), ROUNDED)


@pytest.mark.parametrize("index", [0, 1], ids=["16 rows", "32 rows"])
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_small_tiles_of_newer_targets_too(target: str, index: int) -> None:
    tile = configs.attention.ATTENTION[target][torch.bfloat16][64][index]
    kernel = Emulated(build_attention(target, head_dim=64, config=tile), seed=2)
    check_attention(kernel.suffix_attention, ragged(64), ROUNDED)


@pytest.mark.parametrize(
    ("options", "case"),
    [
        pytest.param({"dtype": torch.float16, "head_dim": 64}, ragged(64, torch.float16, fused=True), id="float16"),
        pytest.param({"dtype": torch.float32, "head_dim": 32}, ragged(32, torch.float32), id="float32"),
        pytest.param({"head_dim": 256}, ragged(256), id="head dimension 256"),
        pytest.param({"head_dim": 48, "append": False}, make_case([5], [40], None, heads=(7, 1), size=48,
                     dtype=torch.bfloat16), id="padded, nothing appended"),
        pytest.param({"head_dim": 32, "packed": False, "group": 3}, make_case([6, 6], [40, 0], [6, 2], heads=(6, 2),
                     dtype=torch.bfloat16, batched=True, scale=-0.3), id="batch"),
        pytest.param({"head_dim": 32, "aligned": False}, ragged(32), id="unaligned"),
        pytest.param({"head_dim": 32, "wide": True}, ragged(32), id="64-bit strides"),
        pytest.param({"head_dim": 32, "slots": True}, ragged(32, slots=[3, 0, 1]), id="slots"),
        pytest.param({"head_dim": 32}, ragged(32, unused=40), id="rows past the last border"),
        pytest.param({"head_dim": 32, "split": False}, ragged(32, unused=1), id="one row past the last border"),
    ],
)  # fmt: skip
def test_other_builds_are_as_exact(options: dict, case: AttentionCase) -> None:
    check_attention(Emulated(build_attention("sm_80", **options), seed=3).suffix_attention, case, ROUNDED)


@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
def test_the_log_sum_exp_is_that_of_the_scores(split: bool) -> None:
    kernel = Emulated(build_attention("sm_80", head_dim=64, split=split, lse=True))
    check_lse(kernel.suffix_attention, ragged(64, unused=12))


@pytest.mark.parametrize(("extra", "shared"), [(2, 0), (3, 6), (5, 6), (6, 9), (7, 9)])
def test_extra_programs_divide_what_they_can(extra: int, shared: int) -> None:
    """Three tiles with three chunks of keys: into two splits each with 3 extra programs, into three splits with 6."""
    case = make_case([1, 4, 2, 1], [0, 100, 0, 128], [1, 2, 0, 0], heads=(7, 1), size=32, dtype=torch.bfloat16)
    kernel = Emulated(build_attention("sm_80", head_dim=32, config=small_tile("sm_80", 32)), seed=5, extra=extra)
    check_attention(kernel.suffix_attention, case, ROUNDED)
    assert kernel.published == shared


@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
def test_keys_that_score_minus_infinity_have_no_weight(split: bool) -> None:
    kernel = Emulated(build_attention("sm_80", head_dim=64, split=split, lse=True, config=small_tile("sm_80", 64)))
    check_hidden(kernel.suffix_attention, ragged(64), slice(0, 66), ROUNDED)


@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
def test_a_query_that_sees_nothing_gives_zero(split: bool) -> None:
    kernel = Emulated(build_attention("sm_80", head_dim=64, split=split, lse=True, group=2))
    case = make_case([5], [140], [5], heads=(4, 2), size=64, dtype=torch.bfloat16)
    check_nothing_seen(kernel.suffix_attention, case)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_keys_are_read_once_per_tile_and_slots_past_the_prefix_never(target: str) -> None:
    case = ragged(64).with_fresh_cache()
    kernel = Emulated(build_attention(target, head_dim=64))
    case.run(kernel.suffix_attention)
    for cache in (case.k_cache, case.v_cache):
        reads = torch.from_numpy(kernel.launched.reads(cache))
        for b, (prefix, tiles) in enumerate([(70, 1), (3, 0), (0, 2)]):
            assert (reads[b, :, :prefix] == tiles).all()
            assert (reads[b, :, prefix:] == 0).all()


def test_a_relaxed_ticket_is_a_race() -> None:
    kernel = Emulated(build_attention("sm_80", head_dim=32, config=small_tile("sm_80", 32)))
    kernel.text = with_ticket(kernel.text, "relaxed")
    with pytest.raises(RaceError):
        ragged(32).run(kernel.suffix_attention)


def test_no_barrier_can_be_removed() -> None:
    """So many sequences that every loop runs twice: then each barrier is needed, except one between two copies to
    different places."""
    empty = [0] * configs.attention.BORDERS
    case = make_case([5, 10, *empty], [70, 0, *empty], [5, 9, *empty], heads=(7, 1), size=64, dtype=torch.bfloat16)
    kernel = Emulated(build_attention("sm_80", head_dim=64, config=small_tile("sm_80", 64)))
    whole = kernel.compiled.text
    barriers = [found.start() for found in re.finditer(r"bar\.sync", whole)]
    for place, text in zip(barriers, without_each_barrier(whole), strict=True):
        kernel.text = text
        try:
            case.with_fresh_cache().run(kernel.suffix_attention)
        except RaceError:
            continue
        assert all("cp.async" in access for access in around(whole, place))

"""The tiles that use wgmma on sm_90 and tcgen05 on sm_100, executed: exact, ordered, and no wait or fence can go.

The ordinary tests take the smallest tiles; ``make test-targets`` takes every shipped build.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from lsp_kernels.triton import configs
from lsp_kernels.triton.aot.builds import Build, build_attention, shipped
from tests.attention_cases import AttentionCase, check_attention, make_case
from tests.triton.emulated import ROUNDED, Emulated, ragged
from tests.triton.mutants import Defect, damaged
from tests.virtual_gpu import PtxError, RaceError
from tests.virtual_gpu.mutate import (
    ASYNCHRONOUS,
    BARRIER,
    Mutant,
    with_weaker_waits,
    with_wrong_descriptors,
    without_each,
)

TARGETS = ("sm_90", "sm_100")
TILES = [(32, 64), (128, 64), (128, 128), (256, 64)]  # head dimension and rows, of each kind that differs
DTYPES = {"*bf16": torch.bfloat16, "*fp16": torch.float16, "*fp32": torch.float32}
Tile = configs.attention.AttentionConfig
Context = tuple[str, str, str]
Explained = dict[Context, tuple[int, str]]


def tile_of(target: str, head_dim: int, rows: int) -> Tile:
    (tile,) = (tile for tile in configs.attention.ATTENTION[target][torch.bfloat16][head_dim] if tile.rows == rows)
    return tile


@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
@pytest.mark.parametrize(("head_dim", "rows"), [(128, 64), (64, 128)])
@pytest.mark.parametrize("target", TARGETS)
def test_executed_code_is_as_exact_as_torch(target: str, head_dim: int, rows: int, split: bool) -> None:
    kernel = Emulated(build_attention(target, head_dim=head_dim, config=tile_of(target, head_dim, rows), split=split))
    check_attention(kernel.suffix_attention, ragged(head_dim), ROUNDED)


def suitable_case(made: Build) -> AttentionCase:
    """A small case that a build can be launched with."""
    chosen, signature = made.constants, made.signature
    batched, appends = "cu_ptr" not in signature, [5, 0, 9] if "append_ptr" in signature else None
    options = {"slots": [3, 0, 1]} if "slots_ptr" in signature else {}
    return make_case(
        [10, 10, 10] if batched else [5, 0, 10], [150, 3, 0], appends, heads=(chosen["G"], 1), size=chosen["D"],
        dtype=DTYPES[signature["q_ptr"]], batched=batched, **options,
    )  # fmt: skip


@pytest.mark.targets
@pytest.mark.parametrize("target", TARGETS)
def test_every_shipped_build_is_as_exact_as_torch(target: str) -> None:
    for made in shipped(target, "attention"):
        check_attention(Emulated(made, seed=6).suffix_attention, suitable_case(made), ROUNDED)


@pytest.mark.parametrize("head_dim", [64, 256])
def test_two_stages_lack_a_proxy_fence_on_sm_100(head_dim: int) -> None:
    """Triton 3.7.1 fences the first values before their copy has landed, so no configuration may have two stages."""
    tile = dataclasses.replace(tile_of("sm_100", head_dim, 64), stages=2)
    kernel = Emulated(build_attention("sm_100", head_dim=head_dim, config=tile))
    with pytest.raises(RaceError, match=r"written since the last fence\.proxy\.async: .*tcgen05\.mma"):
        ragged(head_dim).run(kernel.suffix_attention)


def test_triton_emits_no_fences_of_tensor_memory() -> None:
    """So `launch(..., tensor_fences=True)`, which demands what the PTX manual does, cannot be used on its kernels."""
    assert "tcgen05.fence" not in build_attention("sm_100", config=tile_of("sm_100", 128, 64)).compile().text


DEFECTS = [
    ("keys past the end are seen", 'b_s = tl.where(m_n[None, :], b_s, float("-inf"))', "b_s = b_s"),
    ("values of the wrong tile", "key.to(tl.int64) * s_value", "i_c.to(tl.int64) * s_value"),
    ("sums are not rescaled", "b_o * rescale[:, None]", "b_o"),
    ("the pass ends where the prefix does", "end = tl.where(frozen, prefix, n)", "end = prefix + 0 * n"),
    ("values in the order of keys", "o_n[:, None] * s_value", "(BN - 1 - o_n)[:, None] * s_value"),
    ("weights are not added up", "b_sum * rescale + tl.sum(b_p, 1)", "b_sum * rescale + tl.max(b_p, 1)"),
]


@pytest.mark.parametrize(
    ("target", "chosen"),
    [
        *(pytest.param(target, DEFECTS[i : i + 1], id=f"{target}-{DEFECTS[i][0]}") for i, target in enumerate(TARGETS)),
        *(pytest.param(target, DEFECTS, id=f"{target}-all", marks=pytest.mark.targets) for target in TARGETS),
    ],
)
def test_a_defect_of_the_tiles_is_noticed(target: str, chosen: list[tuple[str, str, str]], tmp_path: Path) -> None:
    made = build_attention(target, head_dim=32, config=tile_of(target, 32, 64), split=False)
    for name, old, new in chosen:
        module = damaged(Defect(name, "attention", old, new, ()), tmp_path, "attention")
        with pytest.raises((AssertionError, PtxError)):
            check_attention(Emulated(dataclasses.replace(made, kernel=module.attention_kernel)).suffix_attention,
                            ragged(32), ROUNDED)  # fmt: skip


class Trial:
    """One kernel whose damaged copies are executed, on cases that reach what orders; if `thorough`, every barrier."""

    def __init__(self, target: str, head_dim: int, rows: int, *, split: bool = False, thorough: bool = False) -> None:
        made = build_attention(target, head_dim=head_dim, config=tile_of(target, head_dim, rows), split=split)
        self.kernel, self.head_dim, self.thorough = Emulated(made, seed=1), head_dim, thorough
        self.text, self.splits = self.kernel.text, 2 if split else 1

    def cases(self) -> Iterator[tuple[AttentionCase, int]]:
        """Cases and in how many parts to divide their keys. Loops are entered again, the last chunk lies in each stage
        of the pipeline, and there is a tile without rows. Thoroughly: there are also more sequences than borders that
        are read at once."""
        options = {"heads": (7, 1), "size": self.head_dim, "dtype": torch.bfloat16}
        for prefix in (330, 390, 450):
            yield make_case([5, 0, 10], [prefix, 3, 0], [5, 0, 9], **options), self.splits
        if self.thorough:
            empty = [0] * configs.attention.BORDERS
            yield make_case([1, *empty], [1, *empty], [1, *empty], **options), 1

    def survives(self, text: str) -> bool:
        self.kernel.text = text
        try:
            for case, splits in self.cases():
                self.kernel.splits = splits
                check_attention(self.kernel.suffix_attention, case, ROUNDED)
        except (AssertionError, PtxError):
            return False
        return True

    def unexplained(self, mutants: Iterable[Mutant], explained: Explained) -> list[tuple[int, Context]]:
        """Damaged copies that work, though no reason is known, or more of them than are known."""
        survivors = [mutant for mutant in mutants if self.survives(mutant.text)]
        counts = Counter(mutant.context for mutant in survivors)
        return [(m.line, m.context) for m in survivors if counts[m.context] > explained.get(m.context, (0, ""))[0]]


# Instructions that can go because others do the same, found by reading the PTX: between which neighbours, how often at
# most, and why.
_JOINED = "the copies join the next group, which the same wait is for"
_APART = "the copies before and behind it have different places"
_FENCED = "another fence.proxy.async comes before the matrix instruction"
_NEXT = "another barrier comes before anything that it orders"
_STORED = "another tcgen05.wait::st of the same warp comes before anybody reads the words"
_SEEN = "every warp has itself waited for the mma that read the place of these copies"
_OTHERS = "it lets other programs allocate tensor memory"
_UNUSED = "the mbarrier's bytes are not used for anything else"
SUPERFLUOUS: Explained = {
    ("cp.async", "cp.async.commit_group", "cp.async"): (2, _JOINED),
    ("cp.async.commit_group", "bar.sync", "cp.async"): (2, _APART),
    ("cp.async.commit_group", "fence.proxy.async", "cp.async.wait_group"): (1, _FENCED),
    ("cp.async.commit_group", "fence.proxy.async", "bar.sync"): (1, _FENCED),
    ("tcgen05.commit", "fence.proxy.async", "tcgen05.mma"): (1, _FENCED),
    ("cp.async.wait_group", "bar.sync", "st.shared"): (1, "each warp stores over what it has copied itself"),
    ("cp.async.wait_group", "bar.sync", "mbarrier.try_wait"): (2, _NEXT),
    ("ld.shared", "bar.sync", "tcgen05.relinquish_alloc_permit"): (1, _NEXT),
    ("ld.shared", "bar.sync", "tcgen05.dealloc"): (1, _NEXT),
    ("mbarrier.init", "bar.sync", "cp.async"): (1, _NEXT),
    ("tcgen05.wait::st", "bar.sync", "mbarrier.init"): (1, _NEXT),
    ("tcgen05.wait::st", "bar.sync", "tcgen05.ld"): (2, _NEXT),
    ("tcgen05.wait::st", "bar.sync", "stmatrix"): (2, _NEXT),
    ("tcgen05.st", "tcgen05.wait::st", "bar.sync"): (3, _STORED),
    ("tcgen05.commit", "bar.sync", "cp.async"): (1, _SEEN),
    ("fence.proxy.async", "bar.sync", "cp.async"): (1, _SEEN),
    ("bar.sync", "tcgen05.relinquish_alloc_permit", "bar.sync"): (1, _OTHERS),
    ("bar.sync", "mbarrier.inval", "mbarrier.inval"): (1, _UNUSED),
    ("mbarrier.inval", "mbarrier.inval", "mbarrier.inval"): (2, _UNUSED),
    ("mbarrier.inval", "mbarrier.inval", "tcgen05.ld"): (1, _UNUSED),
}
STRONGER: Explained = {
    ("wgmma.wait_group", "cp.async.wait_group", "bar.sync"): (1, "nothing is stored over the newest copies, of values"),
}


@pytest.mark.parametrize("target", ["sm_90", pytest.param("sm_100", marks=pytest.mark.targets)])
def test_no_wait_or_fence_can_go(target: str) -> None:
    trial = Trial(target, 32, 64)
    assert trial.survives(trial.text)
    mutants = list(without_each(trial.text, ASYNCHRONOUS))
    assert len(mutants) > 10
    assert trial.unexplained(mutants, SUPERFLUOUS) == []


@pytest.mark.targets
@pytest.mark.parametrize(("head_dim", "rows"), TILES)
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_that_orders_can_go(target: str, head_dim: int, rows: int) -> None:
    trial = Trial(target, head_dim, rows, split=True, thorough=True)
    assert trial.survives(trial.text)
    assert trial.unexplained(without_each(trial.text, f"{BARRIER}|{ASYNCHRONOUS}"), SUPERFLUOUS) == []
    assert trial.unexplained(with_weaker_waits(trial.text), STRONGER) == []


@pytest.mark.parametrize(
    ("head_dim", "rows"), [TILES[0], *(pytest.param(*tile, marks=pytest.mark.targets) for tile in TILES[1:])]
)
@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_matrix_descriptor_is_noticed(target: str, head_dim: int, rows: int) -> None:
    trial = Trial(target, head_dim, rows)
    assert trial.survives(trial.text)
    mutants = list(with_wrong_descriptors(trial.text))
    assert len(mutants) >= 8
    assert not any(trial.survives(text) for text in mutants)

"""Each seeded defect of the attention kernel is noticed by the cases named beside it; the sound kernel passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import triton.language as tl

from lsp_kernels import reference
from lsp_kernels.triton import attention, configs
from tests.attention_cases import (
    AttentionCase,
    check_attention,
    check_clamped,
    check_hidden,
    check_lse,
    check_nothing_seen,
    make_case,
)
from tests.support import ints
from tests.triton.interpreter import checked
from tests.triton.mutants import NOTICED, Defect, damaged, tried
from tests.triton.served import Served, limit_extra


def compare(served: Served, case: AttentionCase) -> None:
    """Against the definition, twice with one workspace."""
    room = (torch.empty(90_000, dtype=torch.int32), torch.zeros(80, dtype=torch.int32))
    for seed in (1, 2):
        with checked(seed):
            check_attention(served.suffix_attention, case, factor=2.0, workspace=room)


def several_sequences(served: Served) -> None:
    """Two heads of K/V, a group that does not divide a tile, empty sequences, ragged ends of prefix and pass."""
    compare(served, make_case([9, 0, 3], [37, 7, 5], [9, 0, 2], heads=(14, 2)))


def batch(served: Served) -> None:
    compare(served, make_case([5, 5], [20, 33], [5, 0], heads=(3, 1), batched=True))


def rising_scores(served: Served) -> None:
    """The largest score comes last."""
    case = make_case([4], [70], None, heads=(2, 1))
    case.k_cache[0, 0, :70] = case.q[0, 0] * torch.linspace(0, 0.5, 70)[:, None]
    compare(served, case)


def nothing_seen(served: Served) -> None:
    """Chunks of keys, and all keys of a head, score -inf."""
    with checked():
        check_hidden(served.suffix_attention, make_case([4], [70], None, heads=(2, 1)), slice(0, 40), 2.0)
        check_nothing_seen(served.suffix_attention, make_case([4], [70], None, heads=(2, 2)))


def log_sum_exp(served: Served) -> None:
    with checked():
        check_lse(served.suffix_attention, make_case([9, 0, 3], [37, 7, 5], [9, 0, 2], heads=(14, 2)))


def stale_values(served: Served) -> None:
    """All tiles of keys lie within the tensors, so that only what stale slots hold can be noticed."""
    compare(served, make_case([16], [20], [4], heads=(1, 1), slack=8))


def long_append(served: Served) -> None:
    compare(served, make_case([60], [0], [55], heads=(1, 1)))


def other_strides(served: Served) -> None:
    """V, its cache and its heads do not lie in memory as K's do."""
    case = make_case([6, 2], [30, 3], [6, 1], heads=(2, 2))
    case.v = torch.full((8, 6, 50), torch.nan)[:, 1::3, :32].copy_(case.v)
    case.v_cache = case.v_cache.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)  # slots outermost
    compare(served, case)


def padded_head(served: Served) -> None:
    """A head dimension between two powers of two, with NaN behind every head."""
    case = make_case([5], [19], [3], heads=(2, 1), size=48)
    for name in ("k", "v", "k_cache", "v_cache"):
        tensor = getattr(case, name)
        room = torch.full((*tensor.shape[:-1], 64), torch.nan)
        setattr(case, name, room[..., :48].copy_(tensor))
    compare(served, case)


def wrong_lengths(served: Served) -> None:
    """Clamped as the reference clamps them."""
    with checked():
        check_clamped(served.suffix_attention, [6, 6, 6], prefixes=[20, 99, -3], appends=[6, 2, -1])


def wrong_borders(served: Served) -> None:
    """Nothing is touched out of bounds, and no ticket is left behind."""
    borders = ([9, 15, 12, 18], [-5, 6, 12, 99], [0, 18, 6, 12], [0, 6, 12, -4])
    run_with_borders(served, make_case([6, 6, 6], [20] * 3, [6] * 3, heads=(7, 1)), *borders)


def overlapping_sequences(served: Served) -> None:
    """More tiles than a launch has, which ends between two splits of one tile if nothing prevents it."""
    case = make_case([18, *[0] * 9], [20] * 10, None, heads=(7, 1))
    run_with_borders(served, case, [*[0, 18] * 5, 18])


def run_with_borders(served: Served, case: AttentionCase, *wrong: list[int]) -> None:
    room = (torch.empty(200_000, dtype=torch.int32), torch.zeros(80, dtype=torch.int32))
    for borders in wrong:
        case.cu_seqlens = torch.tensor(borders).int()
        with checked(races=False):
            case.with_fresh_cache().run(served.suffix_attention, workspace=room)
        assert not room[1].any()


def unused_rows(served: Served) -> None:
    """Most rows are past the last border, in a ragged number of tiles, with and without the log-sum-exp."""
    case = make_case([1], [9], [1], heads=(14, 2), unused=30)
    compare(served, case)
    with checked():
        check_lse(served.suffix_attention, case)


def other_slots(served: Served) -> None:
    compare(served, make_case([9, 0, 3], [37, 7, 5], [9, 0, 2], heads=(4, 2), slots=[3, 0, 1]))


def wrong_slots(served: Served) -> None:
    """Clamped as the reference clamps them."""
    case = make_case([4, 4], [20, 9], None, slots=[0, 1])
    for cache in (case.k_cache, case.v_cache):
        cache.nan_to_num_()
    case.slots = ints(-5, 99)
    with checked():
        out = case.run(served.suffix_attention)
    torch.testing.assert_close(out, case.run(reference.suffix_attention), rtol=0, atol=1e-5)


def crowded(served: Served) -> None:
    """Fewer extra programs than the long prefixes could use, in a workspace of the exact size.

    With one length of a split to try, nothing fits and nothing is divided.
    """
    case = make_case([*[3] * 8, 40, 5], [*[0] * 8, 60, 99], [*[3] * 8, 20, 0], heads=(2, 2))
    for lengths in (16, 1):
        with pytest.MonkeyPatch.context() as patch:
            limit_extra(patch, extra=5, most=6)
            patch.setattr(served.module, "DOUBLINGS", tl.constexpr(lengths))
            sizes = configs.attention.workspace_of(case.q, case.k_cache, case.prefix_lens)
            room = tuple(torch.zeros(size, dtype=torch.int32) for size in sizes)
            with checked(lengths):
                check_attention(Served(served.module).suffix_attention, case, factor=2.0, workspace=room)
        assert not room[1].any()


CASES: dict[str, Callable[[Served], None]] = {
    f.__name__: f
    for f in (several_sequences, batch, rising_scores, nothing_seen, log_sum_exp, stale_values, long_append,
              other_strides, padded_head, wrong_lengths, wrong_borders, overlapping_sequences, unused_rows,
              other_slots, wrong_slots, crowded)
}  # fmt: skip

DEFECTS = [
    Defect("append to the wrong slot", "attention", "slot = prefix + token", "slot = 0 * prefix + token",
           ("several_sequences", "batch")),
    Defect("append of the first block alone", "attention", "range(worker * APPEND, append, workers * APPEND)",
           "range(worker * APPEND, tl.minimum(append, workers * APPEND), workers * APPEND)", ("long_append",)),
    Defect("append one too many", "attention", "(j0 + o_j < append)", "(j0 + o_j <= append)", ("long_append",)),
    Defect("append by every program", "attention", "s_vcs, number, tl.cdiv(rows, BM) * splits",
           "s_vcs, number - i_s, tl.cdiv(rows, BM) * splits", ("several_sequences",)),
    Defect("reads what this launch appends", "attention", "    chunks = chunks_of(n, prefix, BN)",
           "    prefix += append\n    chunks = chunks_of(n, prefix, BN)", ("several_sequences", "batch")),
    Defect("wrong head group", "attention", "h64 * G * s_qh", "h64 * s_qh", ("several_sequences",)),
    Defect("head of the wrong token", "attention", "o_h = (row + o_m) % G", "o_h = o_m % G", ("several_sequences",)),
    Defect("wrong head of K", "attention", "t64 * s_kt + h64 * s_kh", "t64 * s_kt", ("several_sequences",)),
    Defect("stale maximum", "attention", "b_v, b_o * rescale[:, None]", "b_v, b_o", ("rising_scores",)),
    Defect("stale sum", "attention", "b_sum * rescale + tl.sum", "b_sum + tl.sum", ("rising_scores",)),
    Defect("splits merged without rescaling", "attention", 'cache_modifier=".cg") * other[:, None]',
           'cache_modifier=".cg")', ("rising_scores",)),
    Defect("sums merged without rescaling", "attention", "b_sum * mine + b_l * other", "b_sum * mine + b_l",
           ("rising_scores",)),
    Defect("-inf subtracted from -inf", "attention", 'tl.where(largest == float("-inf"), 0.0, largest)', "largest",
           ("nothing_seen",)),
    Defect("nothing divided by nothing", "attention", "tl.where(b_sum == 0.0, 1.0, b_sum)", "b_sum", ("nothing_seen",)),
    Defect("natural logarithm to base 2", "attention", "(b_max + tl.log2(total)) * LN2", "b_max + tl.log2(total)",
           ("log_sum_exp",)),
    Defect("scores of a ragged end not masked", "attention", 'tl.where(m_n[None, :], b_s, float("-inf"))', "b_s",
           ("several_sequences",)),
    Defect("key mask off by one", "attention", "m_n = key + o_n < end", "m_n = key + o_n <= end",
           ("several_sequences", "batch")),
    Defect("V not masked over stale NaN", "attention", "mask=m_v, other=0.0", "mask=m_v | (o_d >= 0)[None, :]",
           ("stale_values",)),
    Defect("K not masked", "attention", "mask=m_k, other=0.0", "mask=m_k | (o_d >= 0)[:, None]",
           ("several_sequences",)),
    Defect("padding of K read", "attention", "m_k = m_k & (o_d < D)[:, None]", "pass", ("padded_head",)),
    Defect("padding of Q read", "attention", "m_q = (row + o_m < rows)[:, None] & (o_d < D)[None, :]",
           "m_q = (row + o_m < rows)[:, None]", ("padded_head",)),
    Defect("rows of the next sequence", "attention", "m_r = row + o_m < rows", "m_r = o_m >= 0",
           ("several_sequences",)),
    Defect("queries past the tokens", "attention", "m_q = (row + o_m < rows)[:, None]", "m_q = (o_m >= 0)[:, None]",
           ("several_sequences",)),
    Defect("scale dropped", "attention", 'input_precision="ieee") * scale', 'input_precision="ieee") + 0 * scale',
           ("several_sequences", "batch")),
    Defect("stride of K used for V", "attention", "s_value = tl.where(frozen, s_vc, s_v)", "s_value = s_key",
           ("other_strides",)),
    Defect("stride of K used to append V", "attention", "o_j[:, None] * s_v +", "o_j[:, None] * s_k +",
           ("other_strides",)),
    Defect("cache of another sequence", "attention", "p_vc = vc_ptr + c64 * s_vcb", "p_vc = vc_ptr + c64 * s_kcb",
           ("other_strides",)),
    Defect("a chunk in two splits", "attention", "tl.minimum((i_s + 1) * share, chunks)",
           "tl.minimum((i_s + 1) * share + 1, chunks)", ("several_sequences",)),
    Defect("a split merged twice", "attention", "p_o += BM * DP", "p_o += 0", ("several_sequences",)),
    Defect("splits share a slot", "attention", "tl.store(p_o + i_s * (BM * DP)", "tl.store(p_o",
           ("several_sequences",)),
    Defect("empty split takes a ticket", "attention", "if i_s < active:", "if i_s < splits:", ("several_sequences",)),
    Defect("ticket off by one", "attention", "== active - 1", "== active - 2", ("several_sequences",)),
    Defect("ticket not reset", "attention", "tl.store(ticket_ptr + i_tile, 0)", "pass", ("several_sequences",)),
    Defect("ticket of another tile", "attention", "tl.atomic_add(ticket_ptr + i_tile, 1",
           "tl.atomic_add(ticket_ptr + i_h, 1", ("several_sequences",)),
    Defect("relaxed ticket", "attention", 'sem="acq_rel"', 'sem="relaxed"', ("several_sequences",)),
    Defect("tile of the sequence before", "attention", "tl.cumsum(programs, 0) <= i_p", "tl.cumsum(programs, 0) < i_p",
           ("several_sequences",)),
    Defect("programs of earlier borders forgotten", "attention", "before += tl.sum(programs, 0)", "pass",
           ("several_sequences",)),
    Defect("more splits than programs", "attention", "(needed > extra)", "(needed > 2 * extra)", ("crowded",)),
    Defect("splits that do not fit", "attention", "(doublings < DOUBLINGS) & (given <= tiles)", "given <= tiles",
           ("crowded",)),
    Defect("divided although borders decrease", "attention", "(doublings < DOUBLINGS) & (given <= tiles)",
           "doublings < DOUBLINGS", ("overlapping_sequences",)),
    Defect("places of whole tiles", "attention", "passed & (splits > 1)", "passed", ("crowded",)),
    Defect("places shared by sequences", "attention", "i_h * places + place + number", "i_h * places + number",
           ("crowded",)),
    Defect("places shared by heads", "attention", "i_h * places + place + number", "place + number", ("crowded",)),
    Defect("an unused tile not written", "attention", "i_r = tl.num_programs(0) - 1 - tl.program_id(0)",
           "i_r = tl.num_programs(0) - tl.program_id(0)", ("unused_rows",)),
    Defect("the last unused tile not written", "attention", "if i_r < tl.cdiv(rows, BM):", "if i_r < rows // BM:",
           ("unused_rows",)),
    Defect("zeros over used rows", "attention", "out_ptr, lse_ptr, end.to(tl.int64),",
           "out_ptr, lse_ptr, end.to(tl.int64) * 0,", ("unused_rows",)),
    Defect("unused rows weigh something", "attention", 'b_none + float("-inf")', "b_none", ("unused_rows",)),
    Defect("unused rows join the last sequence", "attention",
           "n = clamp(tl.load(cu_ptr + i_b + 1, mask=m_b, other=0), begin, length) - begin",
           "n = tl.where(i_b == batch - 1, length, clamp(tl.load(cu_ptr + i_b + 1, mask=m_b, other=0), begin, length))"
           " - begin", ("unused_rows",)),
    Defect("slots ignored", "attention", "c64 = clamp(tl.load(slots_ptr + i_b), 0, cache_rows - 1).to(tl.int64)",
           "pass", ("other_slots",)),
    Defect("slot not clamped", "attention", "clamp(tl.load(slots_ptr + i_b), 0, cache_rows - 1)",
           "tl.load(slots_ptr + i_b)", ("wrong_slots",)),
    Defect("slot of the cache of V ignored", "attention", "p_vc = vc_ptr + c64 * s_vcb", "p_vc = vc_ptr + b64 * s_vcb",
           ("other_slots",)),
    Defect("output of the first sequence", "attention", "t64 += b64 * length", "pass", ("batch",)),
    Defect("capacity ignored by the append", "attention", "tl.minimum(n, capacity - prefix)", "n", ("wrong_lengths",)),
    Defect("prefix past the capacity", "attention",
           "prefix = clamp(tl.load(prefix_ptr + i_b, mask=m_b, other=0), 0, capacity)",
           "prefix = tl.load(prefix_ptr + i_b, mask=m_b, other=0)", ("wrong_lengths",)),
    Defect("border past the tokens", "attention",
           "n = clamp(tl.load(cu_ptr + i_b + 1, mask=m_b, other=0), begin, length) - begin",
           "n = tl.load(cu_ptr + i_b + 1, mask=m_b, other=0) - begin", ("wrong_borders",)),
    Defect("border before the tokens", "attention",
           "begin = clamp(tl.load(cu_ptr + i_b, mask=m_b, other=0), 0, length)",
           "begin = tl.load(cu_ptr + i_b, mask=m_b, other=0)", ("wrong_borders",)),
    Defect("last border past the tokens", "attention", "end = clamp(tl.load(cu_ptr + batch), 0, length)",
           "end = tl.minimum(tl.load(cu_ptr + batch), length)", ("wrong_borders",)),
    Defect("work without a sequence", "attention", "(number < 0) | (i_t >= tl.cdiv(rows, BM))", "number < 0",
           ("several_sequences",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("splits", [1, 3])
def test_the_sound_kernel_passes(case: str, splits: int) -> None:
    CASES[case](Served(attention, splits))


@pytest.mark.parametrize("defect", tried(DEFECTS))
def test_defect_is_noticed(defect: Defect, tmp_path: Path) -> None:
    module = damaged(defect, tmp_path, "attention")
    for case in defect.cases:
        with pytest.raises(NOTICED):
            CASES[case](Served(module, 1 if case == "long_append" else 3))

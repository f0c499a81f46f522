"""Each seeded defect of the head kernels is noticed by the cases named beside it; sound kernels pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lsp_kernels import Noise, PrefixRule, Vocabulary, reference
from lsp_kernels.triton import head
from tests.support import ints, same
from tests.triton.interpreter import checked
from tests.triton.mutants import NOTICED, Defect, damaged, tried
from tests.triton.served import Served

PLAIN = PrefixRule(0.25, 0.75, snap=False)
PROGRAMS = 4


def integers(rows: int, size: int = 20, ids: int = 40) -> tuple[Tensor, Tensor]:
    """Hidden states and weights that are small integers, so that every logit is exact."""
    generator = torch.Generator().manual_seed(rows)
    hidden, weight = (torch.randint(-3, 4, (n, size), generator=generator).float() for n in (rows, ids))
    return hidden, weight


def room() -> tuple[Tensor, Tensor]:
    return torch.empty(4096, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)


def compare(served: Served, hidden: Tensor, weight: Tensor, rule: PrefixRule = PLAIN, **arguments: object) -> None:
    """Against the reference; tickets are zero afterwards."""
    expected = reference.linear_commit_prefix(hidden, weight, rule=rule, **arguments)
    shared = room()
    with checked(1, overflow=True):
        got = served.linear_commit_prefix(hidden, weight, rule=rule, workspace=shared, **arguments)
    for one, other in zip(got[:5], expected[:5], strict=True):
        same(one, other)
    if arguments.get("log_odds"):
        torch.testing.assert_close(got.log_odds, expected.log_odds, rtol=0, atol=1e-5, equal_nan=True)
    assert not shared[1].any()


def compare_stats(served: Served, hidden: Tensor, weight: Tensor, **arguments: object) -> None:
    expected = reference.linear_token_stats(hidden, weight, **arguments)
    shared, exact = room(), arguments.get("noise") is None
    with checked(1, overflow=True):
        got = served.linear_token_stats(hidden, weight, workspace=shared, **arguments)
    same(got.tokens, expected.tokens)
    for name, one, other in zip(got._fields, got, expected, strict=True):
        if exact and name in ("top1", "top2"):
            same(one, other)
        elif other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not shared[1].any()


def several_tiles(served: Served) -> None:
    """Two tiles of rows, a hidden size and ranges of ids that are no multiple of a tile's."""
    compare_stats(served, *integers(19), entropy=True)


def packed(served: Served) -> None:
    """More sequences than are looked at at once, one over several tiles, several in one, empty ones, unused rows."""
    hidden, weight = integers(52)
    borders, starts = ints(1, 26, 26, 30, 31, 31, 36, 39, 40, 41, 49), ints(2, 0, 0, 0, 0, 1, 0, 0, 0, 0)
    compare(served, hidden, weight, cu_rows=borders, starts=starts)


def batch(served: Served) -> None:
    """Rows before and behind the scored ones, which hold NaN and lie apart in memory."""
    hidden, weight = integers(60)
    wide = torch.full((3, 24, 20), math.nan)[:, 1:21].copy_(hidden.view(3, 20, 20))
    compare(served, wide, weight, n_active=ints(16, 3, 0), starts=ints(4, 0, 9))


def strided(served: Served) -> None:
    """Weights that lie apart, with NaN between them."""
    hidden, weight = integers(5)
    compare_stats(served, hidden, torch.full((40, 32), math.nan)[:, 3:23].copy_(weight))


def unscored_rows(served: Served) -> None:
    """They are not read."""
    hidden, weight = integers(30)
    with checked(overflow=True) as launches:
        got = served.linear_commit_prefix(hidden, weight, starts=ints(3), rule=PLAIN)
    reads = torch.from_numpy(launches[-1].reads(hidden))
    assert torch.equal((reads > 0).any(-1), got.tokens >= 0)


def negative(served: Served) -> None:
    """All logits are below that of weights of zero."""
    compare_stats(served, torch.ones(3, 20), -1.0 - torch.arange(40).remainder(7).float()[:, None].expand(40, 20))


def ties(served: Served) -> None:
    """Equal logits in several ranges, several tiles of ids, and one tile."""
    hidden, weight = torch.ones(18, 20), torch.zeros(40, 20)
    weight[[3, 5, 20, 39]] = 1.0
    compare(served, hidden, weight)
    compare_stats(served, hidden, weight, entropy=True)


def suppressed(served: Served) -> None:
    hidden, weight = integers(20)
    best = reference.linear_token_stats(hidden, weight).tokens.unique().tolist()
    compare(served, hidden, weight, vocabulary=Vocabulary(40, suppress=best), log_odds=True)
    compare_stats(served, hidden, weight, vocabulary=Vocabulary(40, suppress=best))


def biased(served: Served) -> None:
    hidden, weight = integers(20)
    compare_stats(served, hidden, weight, bias=torch.arange(40).remainder(9).float())


def not_a_number(served: Served) -> None:
    """In one row one, in the middle of a tile of ids; in another all."""
    hidden, weight = integers(20)
    weight[:, 0] = 1.0
    weight[33, 0] = math.inf
    hidden[:, 0] = 1.0
    hidden[4, 0] = 0.0
    hidden[2] = math.nan
    compare_stats(served, hidden, weight)
    compare(served, hidden, weight)


def all_minus_infinity(served: Served) -> None:
    hidden, weight = torch.ones(4, 20), torch.full((40, 20), -math.inf)
    compare_stats(served, hidden, weight, vocabulary=Vocabulary(40, suppress=[0, 1]), id_offset=9)
    compare(served, hidden, weight, vocabulary=Vocabulary(40, suppress=[0, 1]))


def shard(served: Served) -> None:
    compare_stats(served, *integers(6), id_offset=1000)


def noisy(served: Served) -> None:
    """Rows of other seeds, positions and temperatures, with an offset and without."""
    hidden, weight = integers(19)
    noise = Noise(torch.tensor([0.0, 2.0, 5.0, 9.0]).repeat(5)[:19], torch.arange(19) // 3, torch.arange(19), 2)
    for id_offset in (4, 7):
        compare_stats(served, hidden, weight, noise=noise, entropy=True, id_offset=id_offset)
    hidden, table = hidden[:18].view(2, 9, 20), Noise(4.0, torch.tensor([[3], [4]]), torch.arange(9), 1)
    expected = reference.linear_commit_prefix(hidden, weight, rule=PLAIN, noise=table, log_odds=True)
    with checked(3):
        got = served.linear_commit_prefix(hidden, weight, rule=PLAIN, noise=table, log_odds=True)
    same(got.tokens, expected.tokens)
    for one, other in zip(got[3:], expected[3:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def decreasing_borders(served: Served) -> None:
    hidden, weight = integers(30)
    shared = room()
    with checked(overflow=True):
        got = served.linear_commit_prefix(hidden, weight, ints(0, 30, 5, 30), rule=PLAIN, workspace=shared)
    assert not shared[1].any()
    assert not got.lengths.any()
    assert (got.tokens == -1).all()


def wrong_lengths(served: Served) -> None:
    """Nothing is touched out of bounds, and no ticket is left behind."""
    hidden, weight = integers(30)
    shared = room()
    for borders in ((-5, 6, 12, 99), (3, 99, 99, 99)):
        with checked(overflow=True):
            served.linear_commit_prefix(hidden, weight, ints(*borders), rule=PLAIN, workspace=shared)
        assert not shared[1].any()


CASES: dict[str, Callable[[Served], None]] = {
    f.__name__: f
    for f in (several_tiles, packed, batch, strided, unscored_rows, negative, ties, suppressed, biased, not_a_number,
              all_minus_infinity, shard, noisy, decreasing_borders, wrong_lengths)
}  # fmt: skip

PUBLISHED = "        publish_split(found, tl.arange(0, BM) * used + i_r, p_value, plane, NOISE, True"
DEFECTS = [
    Defect("the last range of ids left out", "tiles", "(vocabulary - 1) // share + 1\n", "(vocabulary - 1) // share\n",
           ("several_tiles",)),
    Defect("ranges of ids overlap", "tiles", "v0 = begin + i_v * BV", "v0 = begin // 2 + i_v * BV",
           ("several_tiles",)),
    Defect("ids past the range seen", "tiles", 'x = tl.where(m_v[None, :], x, float("-inf"))', "pass",
           ("negative",)),
    Defect("weights past the vocabulary read", "tiles", "m_w = m_v[None, :]", "m_w = (m_v | True)[None, :]",
           ("several_tiles",)),
    Defect("hidden states past their end read", "tiles", "m_h = m_h & m_k[None, :]", "pass", ("several_tiles",)),
    Defect("the end of the weights read", "tiles", "m_w = m_w & m_k[:, None]", "pass", ("several_tiles",)),
    Defect("rows past the last read", "tiles", "m_h = m_m[:, None]", "m_h = (m_m | True)[:, None]", ("unscored_rows",)),
    Defect("products of the last part alone", "tiles", 'tl.dot(h, w, x, input_precision="ieee")',
           'tl.dot(h, w, input_precision="ieee")', ("several_tiles",)),
    Defect("stride of the weights forgotten", "tiles", "v0.to(tl.int64) * s_w, s_w", "v0.to(tl.int64) * s_w, D",
           ("strided",)),
    Defect("an id of the tile as that of the vocabulary", "tiles", "(v0 + o_v)[None, :], draw is not None",
           "(0 * v0 + o_v)[None, :], draw is not None", ("several_tiles",)),
    Defect("the highest id of equal logits", "tiles", "won = b_top > a_top", "won = b_top >= a_top", ("ties",)),
    Defect("the winner is also second", "tiles", 'others = tl.where(won, float("-inf"), y)', "others = y",
           ("several_tiles",)),
    Defect("the loser is not second", "tiles",
           "second = tl.maximum(second, loser, propagate_nan=tl.PropagateNan.ALL)", "pass", ("several_tiles",)),
    Defect("NaN lost in a tile of ids", "tiles", 'tl.where(nan, float("nan"), second), clean, high, total, spread',
           "second, clean, high, total, spread", ("not_a_number",)),
    Defect("NaN lost between tiles of ids", "tiles",
           "second = tl.maximum(a_second, b_second, propagate_nan=tl.PropagateNan.ALL)",
           "second = tl.maximum(a_second, b_second)", ("not_a_number",)),
    Defect("suppressed ids seen", "tiles", "        if HIDDEN:", "        if False:", ("suppressed",)),
    Defect("bias of the wrong id", "tiles", "bias_ptr + v0 + o_v", "bias_ptr + o_v", ("biased",)),
    Defect("flags of the wrong id", "tiles", "flags_ptr + v0 + o_v", "flags_ptr + o_v", ("suppressed",)),
    Defect("lowest id forgotten", "head", 'tl.where(top == float("-inf"), lowest, token)', "token",
           ("all_minus_infinity",)),
    Defect("offset forgotten", "head", ".to(tl.int64) + id_offset, mask=m_m)", ".to(tl.int64), mask=m_m)", ("shard",)),
    Defect("weights of the others not rescaled", "tiles", "b_total * weight(b_high, high) + weight(loser, high)",
           "b_total + weight(loser, high)", ("several_tiles",)),
    Defect("a displaced best is forgotten by the log-odds", "tiles",
           "b_total * weight(b_high, high) + weight(loser, high)", "b_total * weight(b_high, high)",
           ("several_tiles",)),
    Defect("entropy not rescaled", "tiles", "(b_spread + distance(b_high, high) * b_total)", "b_spread * 1.0",
           ("several_tiles",)),
    Defect("clean logit of the loser", "tiles", "tl.where(won, b_clean, a_clean)", "tl.where(won, a_clean, b_clean)",
           ("noisy",)),
    Defect("noise of ids without the offset", "tiles", "id_offset + v0, BV", "id_offset * 0 + v0, BV", ("noisy",)),
    Defect("noise of the first row", "head", "noise_at(noise_ptr, tl.where(m_m, row, q0)[:, None])",
           "noise_at(noise_ptr, tl.where(m_m, q0, q0)[:, None])", ("noisy",)),
    Defect("noise of the number among the scored", "head", "noise_at(noise_ptr, row[:, None])",
           "noise_at(noise_ptr, tl.where(m_m, q, 0)[:, None])", ("noisy",)),
    Defect("hidden states of the number among the scored", "head", "row = tl.where(m_m, first + (q - before), 0)",
           "row = tl.where(m_m, q + 0 * first, 0)", ("packed", "batch")),
    Defect("sequences before are not counted", "tiles", "seen += tl.sum(scored, 0)", "pass", ("packed",)),
    Defect("a row of the next sequence", "tiles", "(end[None, :] <= q[:, None])", "(end[None, :] < q[:, None])",
           ("packed", "batch")),
    Defect("stride of a batch forgotten", "tiles", "(s_batch - length.to(tl.int64) * s_row)",
           "(0 * s_batch + length.to(tl.int64) * 0 * s_row)", ("batch",)),
    Defect("decreasing borders committed", "tiles", "total = tl.where(decreasing, 0, total)", "pass",
           ("decreasing_borders",)),
    Defect("unscored rows unwritten", "head", "tl.store(token_ptr + row, tl.full((CHUNK,), -1, tl.int64), mask=m)",
           "pass", ("packed", "batch")),
    Defect("rows before the start unwritten", "head", "(row < first) | (row - first", "(row - first",
           ("packed", "batch")),
    Defect("rows after the last border join a sequence", "tiles", "tl.where(b < batch, tl.minimum(given, wanted), 0)",
           "tl.minimum(given, wanted)", ("packed",)),
    Defect("length of an empty sequence unwritten", "head",
           "tl.store(length_ptr + b0 + o, tl.zeros((CHUNK,), tl.int32), mask=m)", "pass", ("packed", "batch")),
    Defect("ticket of a tile off by one", "head", '+ batch + i_t, 1, sem="acq_rel", scope="gpu") == used - 1',
           '+ batch + i_t, 1, sem="acq_rel", scope="gpu") == used - 2', ("packed",)),
    Defect("ticket of a tile not reset", "head", "tl.store(ticket_ptr + batch + i_t, 0)", "pass", ("packed",)),
    Defect("ticket of a tile relaxed", "head", 'ticket_ptr + i_t, 1, sem="acq_rel"',
           'ticket_ptr + i_t, 1, sem="relaxed"', ("several_tiles",)),
    Defect("tickets of tiles and sequences mixed", "head", "tl.atomic_add(ticket_ptr + batch + i_t, 1",
           "tl.atomic_add(ticket_ptr + i_t, 1", ("packed",)),
    Defect("ticket of a sequence relaxed", "head", 'ticket_ptr + i_b, here, sem="acq_rel"',
           'ticket_ptr + i_b, here, sem="relaxed"', ("packed",)),
    Defect("ticket of a sequence counts tiles", "head", "tl.atomic_add(ticket_ptr + i_b, here,",
           "tl.atomic_add(ticket_ptr + i_b, 1,", ("packed",)),
    Defect("ticket of a sequence not reset", "head", "tl.store(ticket_ptr + i_b, 0)", "pass", ("packed",)),
    Defect("the last sequence of a tile left out", "head", "tl.max(tl.where(m_m, b, 0), 0) + 1)",
           "tl.max(tl.where(m_m, b, 0), 0))", ("packed",)),
    Defect("the last ranges not merged", "tiles", "range(0, used, MERGED)", "range(0, used - MERGED + 1, MERGED)",
           ("several_tiles",)),
    Defect("partials of rows mixed", "tiles", "o_m[:, None] * used + o_r[None, :]", "o_m[:, None] + o_r[None, :]",
           ("several_tiles",)),
    Defect("partials of tiles mixed", "head", f"p_value = value_ptr + q0.to(tl.int64) * used\n{PUBLISHED}",
           f"p_value = value_ptr\n{PUBLISHED}", ("several_tiles",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sound_kernels_pass(case: str) -> None:
    CASES[case](Served(head, PROGRAMS))


@pytest.mark.parametrize("defect", tried(DEFECTS))
def test_defect_is_noticed(defect: Defect, tmp_path: Path) -> None:
    module = damaged(defect, tmp_path, "head")
    for case in defect.cases:
        with pytest.raises(NOTICED):
            CASES[case](Served(module, PROGRAMS))

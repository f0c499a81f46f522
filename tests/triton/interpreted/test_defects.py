"""Each seeded defect of the commit kernels is noticed by the cases named beside it; sound kernels pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lsp_kernels import Noise, PrefixRule, Vocabulary, reference
from lsp_kernels.triton import commit
from tests.support import in_sparse_file, ints, same
from tests.triton.interpreter import checked
from tests.triton.mutants import NOTICED, Defect, damaged, tried
from tests.triton.served import Served


def compare(
    served: Served,
    logits: torch.Tensor,
    rule: PrefixRule,
    vocabulary: Vocabulary | None = None,
    **arguments: torch.Tensor,
) -> None:
    """Against the reference, twice with one workspace, whose tickets are zero afterwards."""
    expected = reference.commit_prefix(logits, rule=rule, vocabulary=vocabulary, **arguments)
    room = (torch.empty(4096, dtype=torch.int32), torch.zeros(64, dtype=torch.int32))
    for seed in (1, 2):
        with checked(seed):
            got = served.commit_prefix(logits, rule=rule, vocabulary=vocabulary, workspace=room, **arguments)
        for one, other in zip(got, expected, strict=True):
            same(one, other)
        assert not room[1].any()


def compare_stats(served: Served, logits: torch.Tensor, vocabulary: Vocabulary | None = None) -> None:
    """With the entropy and without."""
    expected = reference.token_stats(logits, vocabulary=vocabulary, entropy=True)
    room = (torch.empty(4096, dtype=torch.int32), torch.zeros(64, dtype=torch.int32))
    for entropy in (False, True):
        with checked(3):
            stats = served.token_stats(logits, vocabulary=vocabulary, entropy=entropy, workspace=room)
        assert not room[1].any()
        for one, other in zip(stats[:3], expected[:3], strict=True):
            same(one, other)
        torch.testing.assert_close(stats.log_odds, expected.log_odds, rtol=0, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(stats.entropy, expected.entropy, rtol=1e-5, atol=0, equal_nan=True)


def compare_drawn(served: Served, logits: torch.Tensor, noise: Noise, id_offset: int = 0) -> None:
    """Rows whose two largest noisy logits are far apart, so that all is near the reference."""
    expected = reference.token_stats(logits, noise=noise, id_offset=id_offset, entropy=True)
    assert (expected.margins > 1e-3).logical_or(expected.margins.isnan()).all()
    with checked(3):
        stats = served.token_stats(logits, noise=noise, id_offset=id_offset, entropy=True)
    same(stats.tokens, expected.tokens)
    same(stats.clean, expected.clean)
    for one, other in zip(stats[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


def compare_drawn_commit(served: Served, logits: torch.Tensor, noise: Noise, **arguments: torch.Tensor) -> None:
    expected = reference.commit_prefix(logits, rule=PLAIN, noise=noise, log_odds=True, **arguments)
    with checked(4):
        got = served.commit_prefix(logits, rule=PLAIN, noise=noise, log_odds=True, **arguments)
    for one, other in zip(got[:3], expected[:3], strict=True):
        same(one, other)
    for one, other in zip(got[3:], expected[3:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


def with_margins(margins: list[float], tokens: list[int], size: int = 70) -> torch.Tensor:
    logits = torch.zeros(len(margins), size)
    logits[torch.arange(len(margins)), torch.tensor(tokens)] = torch.tensor(margins)
    return logits


PLAIN = PrefixRule(snap=False)
FALLING = [9.0, 8, 7, 6, 5, 4, 3, 2.5, 2.2, 2, 1.8, 1.6, 1.4, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6]


def ragged_end(served: Served) -> None:
    logits = torch.full((3, 10, 170), -1.0)
    logits[:, :, 149] = 2.0
    whole = torch.full((3, 10, 180), 9.0)  # what lies behind the row must not be seen
    whole[:, :, :150] = logits[:, :, :150]
    compare(served, whole[:, :, :150], PLAIN)


def ties(served: Served) -> None:
    logits = torch.zeros(4, 150)
    logits[:, [40, 72, 140]] = 1.0
    compare(served, logits, PLAIN)


def several_sequences(served: Served) -> None:
    torch.manual_seed(0)
    compare(served, torch.randn(21, 150), PLAIN, cu_rows=ints(0, 4, 4, 13, 21))


def batch(served: Served) -> None:
    """Unscored rows before and behind the scored ones, more rows than one chunk, and more scored ones than of L."""
    torch.manual_seed(0)
    compare(served, torch.randn(3, 11, 150), PLAIN, starts=ints(4, 0, 9))
    compare(served, torch.randn(2, 9, 150), PLAIN, n_active=ints(16, 3))


def wide_range(served: Served) -> None:
    """The candidate is the upper end of the range, in a later chunk of rows."""
    compare(served, with_margins(FALLING, [5] * 20), PrefixRule(snap=False, beta=0.6))


def window_edge(served: Served) -> None:
    """The only delimiter lies exactly `window` tokens before the end of the candidate."""
    tokens = [5] * 20
    tokens[1] = 7
    compare(served, with_margins(FALLING, tokens), PrefixRule(window=8), Vocabulary(70, delimiters=[7]))


def minimum_in_the_first_chunk(served: Served) -> None:
    """After the first chunk of rows no margin is a new minimum, though each falls within its own chunk."""
    margins = [9.0, 8, 0.5, 7, 7, 7, 7, 7, 6, 5, 4, 3, 2, 3, 3, 3, 3, 3, 3, 3]
    compare(served, with_margins(margins, [5] * 20), PrefixRule(snap=False, alpha=0.05, beta=0.7))


def far_rows(served: Served, tmp_path: Path) -> None:
    rows = in_sparse_file(tmp_path / "rows", (3, 40), (2**30 + 8, 1)).copy_(torch.randn(3, 40))
    with checked():
        got = served.commit_prefix(rows, rule=PrefixRule(beta=1.0, snap=False))
    same(got.tokens, reference.token_stats(rows.clone()).tokens)


def suppressed(served: Served) -> None:
    logits = torch.zeros(4, 300)
    logits[:, 3], logits[:, 280], logits[:, 100] = 9.0, 8.0, 1.0
    logits[1, 3] = math.nan
    compare(served, logits, PLAIN, Vocabulary(300, suppress=[0, 3, 280]))  # by two programs: the last group from 160 on
    logits[:, 170] = 9.5
    compare(served, logits, PLAIN, Vocabulary(300, suppress=[0, 3, 170, 280]))
    compare(served, logits, PLAIN, Vocabulary(300, suppress=[170]))
    nothing, lowest = torch.full((2, 60), -math.inf), Vocabulary(60, suppress=[0, 1, 2, 5])
    compare(served, nothing, PLAIN, lowest)
    compare_stats(served, nothing, lowest)


def falling_borders(served: Served) -> None:
    """Nothing is committed, and all tickets are back at zero."""
    logits, room = torch.randn(6, 150), (torch.empty(64, dtype=torch.int32), torch.zeros(9, dtype=torch.int32))
    with checked():
        bad = served.commit_prefix(logits, ints(0, 4, 2, 6), rule=PLAIN, workspace=room)
        assert bad.lengths.tolist() == [0, 0, 0]
        assert not room[1].any()


def signed_margins(served: Served) -> None:
    rule = PrefixRule(beta=0.75, snap=False)
    for margins in ([-1.0, -2, -3, -3, -3, -3, -3, -4], [1.0, 0, -0.0, 1, 1, 1, 1, 1]):
        values, tokens = torch.tensor(margins), torch.zeros(8, dtype=torch.int64)
        with checked():
            lengths, _ = served.select_prefix(values, tokens, rule=rule)
        same(lengths, reference.select_prefix(values, tokens, rule=rule)[0])


def nan(served: Served) -> None:
    logits = torch.randn(3, 6, 150)
    logits[1, 2, 90] = math.nan
    compare(served, logits, PLAIN)


def stops(served: Served) -> None:
    compare(served, with_margins(FALLING, [5] * 4 + [9] + [5] * 15), PLAIN, Vocabulary(70, stops=[9]))


def empty_sequences(served: Served) -> None:
    compare(served, torch.randn(5, 40), PLAIN, cu_rows=ints(0, 0, 5, 5), n_active=ints(0, 5, 0))
    compare(served, torch.randn(2, 5, 40), PLAIN, n_active=ints(0, 5))


def floors(served: Served) -> None:
    compare(served, with_margins(FALLING, [5] * 20), PrefixRule(floor=2.0, beta=1.0, snap=False))


def all_delimiters(served: Served) -> None:
    everywhere = Vocabulary(70, delimiters=range(70))
    compare(served, with_margins(FALLING, [5] * 20), PrefixRule(beta=1.0, no_delimiter="keep"), everywhere)
    compare(served, with_margins(FALLING, [5] * 20), PrefixRule(min_length=15), everywhere)
    nowhere = Vocabulary(70, delimiters=[69])
    compare(served, with_margins(FALLING, [5] * 20), PrefixRule(min_length=3, no_delimiter="keep"), nowhere)
    compare(served, with_margins(FALLING, [5] * 20), PrefixRule(min_length=3), nowhere)


def infinities(served: Served) -> None:
    logits = torch.zeros(4, 150)
    logits[0, [3, 100]] = math.inf
    logits[1] = -math.inf
    logits[2, 80] = math.inf
    compare(served, logits, PrefixRule(snap=False, beta=1.0))
    compare_stats(served, logits)


def peaks(served: Served) -> None:
    logits = torch.randn(3, 150)
    logits[0, 77] = 30
    logits[1, 77] = 200
    compare_stats(served, logits)
    compare_stats(served, torch.linspace(-3, 3, 600)[None])


def noise_of(*shape: int, temperature: float = 1.0) -> Noise:
    """Temperatures, seeds, positions and passes that differ from row to row."""
    rows = torch.arange(math.prod(shape)).view(shape)
    return Noise(temperature * (1 + rows % 3), (rows << 40) - 7, 3 + rows, 1 + 2 * rows)


def drawn(served: Served) -> None:
    torch.manual_seed(1)
    compare_drawn(served, 2 * torch.randn(5, 330), noise_of(5))
    compare_drawn_commit(served, torch.randn(21, 150), noise_of(21), cu_rows=ints(0, 4, 4, 13, 21))


def drawn_batch(served: Served) -> None:
    torch.manual_seed(2)
    compare_drawn_commit(served, torch.randn(3, 11, 70), noise_of(3, 11), starts=ints(4, 0, 9))


def odd_ids(served: Served) -> None:
    torch.manual_seed(3)
    compare_drawn(served, torch.randn(3, 150), noise_of(3), id_offset=7)


def largest_noise(served: Served) -> None:
    """With this seed, id 3 gets the integer 2^32 - 129: E is about 2^-25, and 1 - u has hardly a digit of it."""
    compare_drawn(served, torch.zeros(1, 64), Noise(torch.ones(1), 39075, 0, 0))


def late_noise(served: Served) -> None:
    """Large logits first, but noise lifts later ones above them, in a tile that a tighter bound would skip."""
    logits = torch.full((6, 400), -6.0)
    logits[:, :3] = torch.tensor([2.0, 1.0, 0.0])
    compare_drawn(served, logits, noise_of(6))


def skipped(served: Served) -> None:
    """Tiles that no noise lifts still have weight, and a NaN in one of them counts."""
    torch.manual_seed(5)
    logits = torch.randn(4, 400) - 1.0
    logits[:, [1, 2, 225, 226]] = torch.tensor([5.0, 4.0, 5.5, 4.5])  # early in each split
    logits[2, 300] = logits[3, 390] = math.nan
    compare_drawn(served, logits, Noise(torch.tensor([0.0, 0.02, 0.05, 0.05]), 1, torch.arange(4), 2))


def late_second(served: Served) -> None:
    """The second best of a greedy row comes late: it is below the best of the tiles before."""
    logits = torch.zeros(1, 400)
    logits[0, [1, 190, 225, 390]] = torch.tensor([9.0, 5.0, 8.0, 6.0])
    compare_drawn(served, logits, Noise(torch.zeros(1), 1, 2, 3))
    logits[0, 1] = 5.5
    compare_drawn(served, logits, Noise(torch.zeros(1), 1, 2, 3))


def two_peaks(served: Served) -> None:
    """Of two equal peaks noise chooses one; the other is the best of its lane, and far above all other clean logits."""
    logits = torch.zeros(2, 300)
    logits[:, :2] = 200.0
    compare_drawn(served, logits, noise_of(2))


def entropies(served: Served) -> None:
    torch.manual_seed(6)
    compare_stats(served, torch.randn(3, 300) * torch.tensor([[0.1], [3.0], [10.0]]))
    compare_stats(served, torch.linspace(-3, 3, 300)[None])
    peaked = torch.zeros(1, 40)
    peaked[0, 9] = 22.0
    compare_stats(served, peaked)


CASES: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (ragged_end, ties, several_sequences, batch, wide_range, window_edge, minimum_in_the_first_chunk, far_rows,
              suppressed, falling_borders, signed_margins, nan, stops, empty_sequences, floors, all_delimiters,
              infinities, peaks, drawn, drawn_batch, odd_ids, largest_noise, late_noise, late_second,
              two_peaks, skipped, entropies)
}  # fmt: skip

DEFECTS = [
    Defect("missing mask", "top2", "m = st + o < end\n", "m = st + o < end + BLOCK\n", ("ragged_end",)),
    Defect("wrong tie rule", "top2", "tl.where(x > v1, tile, i1)", "tl.where(x >= v1, tile, i1)", ("ties",)),
    Defect("highest id of equal splits", "top2", "token = tl.min(tl.where(v1 == first, i1, BIG), AXIS, keep_dims=True)",
           "token = tl.max(tl.where(v1 == first, i1, -1), AXIS, keep_dims=True)", ("ties",)),
    Defect("ticket off by one", "commit", "== scored - 1", "== scored - 2", ("several_sequences",)),
    Defect("ticket not reset", "commit", "tl.store(ticket_ptr + b, 0)", "pass", ("several_sequences",)),
    Defect("relaxed ticket", "commit", 'ticket_ptr + b, 1, sem="acq_rel"', 'ticket_ptr + b, 1, sem="relaxed"',
           ("several_sequences",)),
    Defect("ticket of another sequence", "commit", "tl.atomic_add(ticket_ptr + b, 1", "tl.atomic_add(ticket_ptr, 1",
           ("several_sequences",)),
    Defect("ticket of a row off by one", "commit", "== SPLITS - 1", "== SPLITS - 2", ("several_sequences",)),
    Defect("ticket of a row not reset", "commit", "tl.store(ticket_ptr + batch + slot, 0)", "pass",
           ("several_sequences", "batch")),
    Defect("relaxed ticket of a row", "commit", 'batch + slot, 1, sem="acq_rel"', 'batch + slot, 1, sem="relaxed"',
           ("several_sequences", "batch")),
    Defect("ticket of another row", "commit", "tl.atomic_add(ticket_ptr + batch + slot, 1",
           "tl.atomic_add(ticket_ptr + batch, 1", ("several_sequences", "batch")),
    Defect("tickets of rows among those of sequences", "commit", "tl.atomic_add(ticket_ptr + batch + slot, 1",
           "tl.atomic_add(ticket_ptr + slot, 1", ("several_sequences", "batch")),
    Defect("splits of another row", "rows", "q = row.to(tl.int64) * SPLITS", "q = row.to(tl.int64)",
           ("several_sequences", "peaks")),
    Defect("statistics: ticket off by one", "stats", "== SPLITS - 1", "== SPLITS - 2", ("peaks",)),
    Defect("statistics: ticket not reset", "stats", "tl.store(ticket_ptr + row, 0)", "pass", ("peaks",)),
    Defect("statistics: relaxed ticket", "stats", 'sem="acq_rel"', 'sem="relaxed"', ("peaks",)),
    Defect("scan off by one", "rule", "(j >= lo) & (j <= hi)", "(j >= lo) & (j < hi)", ("wide_range",)),
    Defect("window off by one", "rule", "tl.maximum(length - window, 1)", "tl.maximum(length - window + 1, 1)",
           ("window_edge",)),
    Defect("lost carry between chunks", "rule", "& ((prefix_min >> 32) < least)", "& ((prefix_min >> 32) < BIG)",
           ("minimum_in_the_first_chunk",)),
    Defect("last chunk only", "rule", "longest = tl.maximum(longest, tl.max", "longest = tl.minimum(BIG, tl.max",
           ("minimum_in_the_first_chunk",)),
    Defect("int32 row offset", "commit", "o_row = row.to(tl.int64) * s_row",
           "o_row = (row * s_row).to(tl.int32)", ("far_rows",)),
    Defect("suppressed id wins", "top2", 'tl.where((flags & SUPPRESSED) != 0, float("-inf"), x)', "x + 0 * flags",
           ("suppressed",)),
    Defect("suppressed ids at the end of a group missed", "top2",
           " | tl.load(flags_ptr + st + N * BLOCK - 1)", "", ("suppressed",)),
    Defect("suppressed ids at the start of a group missed", "top2",
           "tl.load(flags_ptr + st) | tl.load", "tl.load", ("suppressed",)),
    Defect("falling borders leave tickets", "rows", "b = tl.where(before > BIG, batch, before.to(tl.int32))",
           "b = before.to(tl.int32)", ("falling_borders",)),
    Defect("signed margins by their bits", "rule", "return bits ^ ((bits >> 31) & BIG)", "return bits",
           ("signed_margins",)),
    Defect("minus zero below zero", "rule", "bits = (x + 0.0).to", "bits = x.to", ("signed_margins",)),
    Defect("lowest id though suppressed", "commit", 'tl.where(v1 == float("-inf"), lowest, i1)', "(i1 + 0 * lowest)",
           ("suppressed",)),
    Defect("statistics: lowest id though suppressed", "stats", 'tl.where(top == float("-inf"), lowest, token)',
           "(token + 0 * lowest)", ("suppressed",)),
    Defect("NaN ignored", "top2", "second = tl.maximum(v2, loser, propagate_nan=tl.PropagateNan.ALL)",
           "second = tl.maximum(v2, loser)", ("nan",)),
    Defect("NaN does not empty the commit", "rule", "nothing = (nan != 0) | (n == 0)", "nothing = n == 0", ("nan",)),
    Defect("stop ignored", "rule", "length = tl.minimum(length, stop)", "length = length + 0 * stop", ("stops",)),
    Defect("stop not reported", "rule", "finished = stop <= length", "finished = stop < 0", ("stops",)),
    Defect("empty sequence unwritten", "commit", "tl.store(length_ptr + b, 0)", "pass", ("empty_sequences",)),
    Defect("unscored rows unwritten", "commit", "tl.store(token_ptr + slot, -1)", "pass", ("several_sequences",)),
    Defect("unscored rows of a batch unwritten", "commit",
           "clear_unscored(token_ptr, margin_ptr, top1_ptr, log_odds_ptr, b * length, length, first, scored, ROWS)\n",
           "pass\n", ("batch",)),
    Defect("scored rows of a batch cleared", "commit", "(o_r >= first + scored)", "(o_r >= first)", ("batch",)),
    Defect("rows before the start of a batch unwritten", "commit", "((o_r < first) | (o_r >= first + scored))",
           "(o_r >= first + scored)", ("batch",)),
    Defect("rows of the next sequence cleared", "commit", "m_r = (o_r < begin + length) & (", "m_r = (", ("batch",)),
    Defect("slots of a batch taken for rows", "commit", "row = first + j", "row = slot + 0 * first", ("batch",)),
    Defect("start of a sequence forgotten", "commit", "j = slot - first", "j = slot + 0 * first",
           ("several_sequences",)),
    Defect("floor exclusive", "rule", "margin < floor", "margin <= floor", ("floors",)),
    Defect("minimum length ignored", "rule", "tl.minimum(tl.maximum(length, min_length), n)", "tl.minimum(length, n)",
           ("all_delimiters",)),
    Defect("no delimiter, wrong way round", "rule", "otherwise = length if KEEP else min_length",
           "otherwise = min_length if KEEP else length", ("all_delimiters",)),
    Defect("whole sequence not reachable", "rule", "(longest == 0) | (hi == n)", "longest == 0", ("all_delimiters",)),
    Defect("infinite margins", "commit", "tl.where(v1 == v2, 0.0, v1 - v2)", "v1 - v2", ("infinities",)),
    Defect("winner counted among the rest", "top2", "tl.where(won, 0.0, weight(clean, high))", "weight(clean, high)",
           ("peaks", "drawn")),
    Defect("weights not rescaled", "top2", "tl.where(x > r, s * e + 1.0, s + e)", "s + e", ("peaks", "drawn")),
    Defect("log-odds without an end", "odds", "alone, above), HIGHEST_LOG_ODDS)", "alone, above), 1e9)", ("peaks",)),
    Defect("words in another order", "noise", "tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))",
           "tl.interleave(tl.interleave(w0, w1), tl.interleave(w2, w3))", ("drawn",)),
    Defect("words of odd ids in another order", "noise", "tl.where((o & 1) != 0, w3, w2)",
           "tl.where((o & 1) != 0, w2, w3)", ("odd_ids",)),
    Defect("odd ids begin a group", "noise", "o = (first & 3) + along", "o = along",
           ("odd_ids",)),
    Defect("position and pass swapped", "noise", "tl.philox(seed, group, position, number,",
           "tl.philox(seed, group, number, position,", ("drawn",)),
    Defect("halves of the seed swapped", "noise", "tl.philox(seed, group",
           "tl.philox((seed << 32) | ((seed >> 32) & WORD), group", ("drawn",)),
    Defect("upper half by 1 - u", "noise", "log2(tl.where(lower, log2(u, FAST) * -LN2, u * p), FAST) * -LN2",
           "log2(log2(tl.where(lower, u, 1.0 - u), FAST) * -LN2 + 0.0 * p, FAST) * -LN2", ("largest_noise",)),
    Defect("halves swapped", "noise", "lower = words < UPPER", "lower = words >= UPPER", ("drawn",)),
    Defect("temperature of the next row", "noise", "tl.load(p_row + 2)", "tl.load(p_row + 5)", ("drawn",)),
    Defect("noise of another row", "commit", "noise_at(noise_ptr, row)", "noise_at(noise_ptr, slot)", ("drawn_batch",)),
    Defect("noise of one split for all", "top2", "id_offset + tile, BLOCK", "id_offset + tile % (4 * BLOCK), BLOCK",
           ("drawn",)),
    Defect("clean logit of the old winner lost", "top2", "join(lanes, tl.where(won, clean, x), ENTROPY)",
           "join(lanes, x, ENTROPY)", ("drawn",)),
    Defect("clean logit of the first winner", "top2", "tl.where(won, x, clean), r, s, t", "clean, r, s, t", ("drawn",)),
    Defect("noisy logit as the clean one", "top2", "tl.where(won, x, clean), r, s, t",
           "tl.where(won, y, clean), r, s, t", ("drawn",)),
    Defect("clean logits of other lanes lost", "top2", "tl.where(won, r, tl.maximum(r, clean))", "r", ("two_peaks",)),
    Defect("skip bound too tight", "noise", "MOST_NOISE = tl.constexpr(22.9)", "MOST_NOISE = tl.constexpr(3.0)",
           ("late_noise",)),
    Defect("skip bound from the best", "top2", "tl.max(tl.where(v1 == tl.max(v1, 0), v2, v1), 0)", "tl.max(v1, 0)",
           ("late_second",)),
    Defect("weights of skipped tiles lost", "top2", "lanes = join(lanes, xs[k], ENTROPY)", "lanes = lanes + ()",
           ("skipped",)),
    Defect("NaN skipped", "top2", 'tl.max(tl.where(x == x, x, float("inf")), 0)',
           'tl.max(tl.where(x == x, x, float("-inf")), 0)', ("skipped",)),
    Defect("entropy not rescaled", "top2", "tl.where(x > r, (t + d * s) * e, t + d * e)", "t + d * e", ("entropies",)),
    Defect("entropy rescaled without its shift", "top2", "(t + d * s) * e, t", "t * e, t", ("entropies",)),
    Defect("entropy of lanes without their shift", "top2", "spread = (t + distance(r, high) * s) * weight(r, high)",
           "spread = t * weight(r, high)", ("entropies",)),
    Defect("entropy of infinite distances", "top2", "tl.where(low == high, 0.0, low - high), LEAST_DISTANCE)",
           "tl.where(low == high, 0.0, low - high), float('-inf'))", ("infinities",)),
    Defect("entropy of nothing", "odds", "tl.log2(others.to(tl.float32) + 1.0) * LN2, entropy)", "entropy, entropy)",
           ("infinities",)),
    Defect("small entropies rounded off", "odds", "tl.where(y == 1.0, x, tl.log2(y) * LN2 * (x / (y - 1.0)))",
           "tl.log2(y) * LN2", ("entropies",)),
    Defect("entropy without the token's share", "odds", "total - 1.0 + e_own", "total - 1.0", ("drawn",)),
    Defect("log-odds of unscored rows unwritten", "commit", "tl.store(log_odds_ptr + o_r, nothing, mask=m_r)", "pass",
           ("drawn_batch",)),
    Defect("log-odds of unscored slots unwritten", "commit", 'tl.store(log_odds_ptr + slot, float("-inf"))', "pass",
           ("drawn",)),
    Defect("planes of noise and entropy shared", "rows", "tl.store(value_ptr + (6 if NOISE else 4) * plane",
           "tl.store(value_ptr + 4 * plane", ("drawn",)),
    Defect("statistics: first id of the shard forgotten", "stats", ".to(tl.int64) + id_offset)", ".to(tl.int64))",
           ("odd_ids",)),
]  # fmt: skip


def run(case: str, served: Served, tmp_path: Path) -> None:
    CASES[case](served, tmp_path) if case == "far_rows" else CASES[case](served)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("splits", [1, 2])
def test_sound_kernels_pass(case: str, splits: int, tmp_path: Path) -> None:
    run(case, Served(commit, splits), tmp_path)


@pytest.mark.parametrize("defect", tried(DEFECTS))
def test_defect_is_noticed(defect: Defect, tmp_path: Path) -> None:
    module = damaged(defect, tmp_path)
    for case in defect.cases:
        with pytest.raises(NOTICED):
            run(case, Served(module, 2), tmp_path)

"""The loop on scripted models, written out by hand: fronts, blocks, islands, stops, NaN, noise, errors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import lsp
from lsp_kernels import PrefixRule, Vocabulary
from tests import oracle
from tests.lsp.recorder import SCHEDULERS, Recorder, commits, last, scripted

SIZE, OPEN = 20, 19  # ids 0 to 18, and the mask


def typist(text: dict[int, int], margins: dict[int, float] | float = 5.0, *, shifted: bool = False, **config: object):
    """A model that predicts these tokens at these positions, with these margins; elsewhere token 0 with margin 1."""

    def rows(ids: list[int]) -> np.ndarray:
        z = np.zeros((len(ids) + 1, SIZE), dtype=np.float32)
        for p in range(len(ids)):
            margin = margins if isinstance(margins, float) else margins.get(p, 1.0)
            z[p, text.get(p, 0)] = margin
        return z[1:] if shifted else z[:-1]

    return scripted(rows, SIZE, OPEN, shifted=shifted, **config)


def decode(model: Recorder, prompts: list[list[int]], new: int, scheduler: object, **options: object):
    known = Vocabulary(SIZE, [2], options.pop("stops", ()))
    return last(lsp.decode(model, prompts, new, scheduler, known, lsp.Options(**options)))


def segments(model: Recorder, b: int = 0) -> list[tuple[list[int], int]]:
    """Per pass the tokens and how many of them were appended."""
    return [(step[b].tokens, step[b].append) for step in model.passes]


def test_the_front_is_appended_one_pass_after_its_commit() -> None:
    model = typist({p: p for p in range(9)})
    state = decode(model, [[15, 16]], 5, lsp.FixedPrefix(2))
    assert state.canvases[0].run.tolist() == [2, 3, 4, 5, 6]
    m = OPEN
    assert segments(model) == [([15, 16, m, m, m, m, m], 2), ([2, 3, m, m, m], 2), ([4, 5, m], 2)]
    assert model.slots[-1][0] == {0: (0, 15), 1: (0, 16), 2: (1, 2), 3: (1, 3), 4: (2, 4), 5: (2, 5)}


def test_a_scattered_scheduler_freezes_nothing_until_the_left_end_is_filled() -> None:
    model = typist({p: p for p in range(9)}, {1: 1.0, 2: 3.0, 3: 4.0, 4: 2.0})
    decode(model, [[15]], 4, lsp.Full())
    m = OPEN
    assert segments(model) == [
        ([15, m, m, m, m], 1),
        ([m, m, 3, m], 0),
        ([m, 2, 3, m], 0),
        ([m, 2, 3, 4], 0),
    ]


def test_with_shifted_logits_the_last_committed_token_stays_in_the_pass() -> None:
    m = OPEN
    model = typist({p: p for p in range(9)}, shifted=True)
    assert decode(model, [[15, 16]], 4, lsp.FixedPrefix(2)).canvases[0].run.tolist() == [2, 3, 4, 5]
    assert segments(model) == [([15, 16, m, m, m, m], 1), ([16, 2, 3, m, m], 2)]

    model = typist({p: p for p in range(9)}, {1: 1.0, 2: 3.0, 3: 4.0, 4: 2.0}, shifted=True)
    state = decode(model, [[15]], 4, lsp.TopK(2))
    assert state.canvases[0].run.tolist() == [1, 2, 3, 4]
    assert segments(model) == [([15, m, m, m, m], 0), ([15, m, 2, 3, m], 0)]


def test_a_block_cache_freezes_what_lies_before_the_block() -> None:
    m = OPEN
    model = typist({p: p for p in range(9)})
    decode(model, [[15]], 4, lsp.FixedPrefix(1), block_length=2, cache="block", lookahead=1)
    assert segments(model) == [([15, m, m, m], 1), ([1, m, m], 0), ([15, 1, 2, m, m], 3), ([3, m], 0)]
    assert [step[0].held for step in model.passes] == [0, 1, 0, 3]


def test_only_masks_of_the_block_are_committed_while_prophet_may_commit_all() -> None:
    margins = {1: 1.0, 2: 2.0, 3: 9.0, 4: 9.0}
    model = typist({}, margins)
    assert commits(decode(model, [[15]], 4, lsp.Threshold(0.5), block_length=2).canvases[0]) == [1, 1, 2]
    model = typist({}, margins)
    assert commits(decode(model, [[15]], 4, lsp.Prophet((5.25, 9, 9)), block_length=2).canvases[0]) == [4]
    model = typist({}, margins)
    assert commits(decode(model, [[15]], 4, lsp.Prophet((5.26, 99, 99)), block_length=2).canvases[0]) == [1, 3]
    model = typist({}, margins)
    assert commits(decode(model, [[15]], 4, lsp.Prophet((9.0, 9, 9), region=2), block_length=2).canvases[0]) == [4]


def test_islands_are_committed_instead_of_a_forced_first_token() -> None:
    rule = PrefixRule(floor=2.0, beta=1.0, snap=False)
    margins = {1: 1.0, 2: 4.0, 3: 1.5, 4: 6.0, 5: 1.75}

    def chosen(islands: float | None, stuck: str = "first") -> list[list[int]]:
        scheduler, known = lsp.LongestStablePrefix(rule, islands, stuck, fade=0), Vocabulary(SIZE)
        loop = lsp.decode(typist({}, margins), [[15]], 5, scheduler, known, lsp.Options())
        masks = [set(np.flatnonzero(state.canvases[0].masked).tolist()) for state in loop]
        return [sorted(before - after) for before, after in pairwise(masks)]

    assert chosen(islands=None) == [[1], [2], [3], [4], [5]]
    assert chosen(islands=4.0) == [[2, 4], [1], [3], [5]]
    assert chosen(islands=5.0) == [[4], [1], [2], [3], [5]]
    assert chosen(islands=9.0) == [[1], [2], [3], [4], [5]]
    assert chosen(islands=9.0, stuck="best") == [[4], [2], [5], [3], [1]]


def test_a_sure_stop_is_an_island_at_any_time_and_drops_the_tail() -> None:
    rule = PrefixRule(floor=2.0, beta=1.0, snap=False)
    margins = {1: 3.0, 2: 1.0, 3: 1.0, 4: 6.0, 5: 9.0}
    model = typist({1: 1, 4: 17}, margins)
    state = decode(model, [[15]], 5, lsp.LongestStablePrefix(rule, islands=5.0, fade=0), stops=[17])
    assert commits(state.canvases[0])[0] == 2
    assert state.canvases[0].run.tolist() == [1, 0, 0, 17]
    assert len(model.passes[1][0].tokens) == 4  # what follows the stop is in no pass any more


def test_stops_drop_what_follows_them_unless_told_otherwise() -> None:
    margins = {1: 1.0, 2: 2.0, 3: 8.0, 4: 4.0, 5: 9.0}
    model = typist({3: 17, 5: 18}, margins)
    state = decode(model, [[15]], 6, lsp.Full(), stops=[17, 18])
    assert state.canvases[0].run.tolist() == [0, 0, 17]
    assert [len(step[0].tokens) for step in model.passes] == [7, 5, 3, 3]  # the far stop, then the near one
    for scheduler in (lsp.Full(), lsp.LongestStablePrefix(), lsp.FixedPrefix(3)):
        state = decode(typist({3: 17, 5: 18}, margins), [[15]], 6, scheduler, stops=[17, 18], stop_early=False)
        assert state.canvases[0].run.tolist() == [0, 0, 17, 0, 18, 0]


def test_the_mask_is_never_committed_whatever_the_vocabulary_says() -> None:
    model = typist(dict.fromkeys(range(9), OPEN))
    for scheduler in (lsp.Full(), lsp.LongestStablePrefix(), lsp.ScatteredMargin()):
        assert OPEN not in decode(model, [[15]], 5, scheduler).canvases[0].run


NAN_SCHEDULERS = [*SCHEDULERS.values(), lsp.Full(), lsp.Factor()]


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("scheduler", NAN_SCHEDULERS, ids=lambda s: type(s).__name__)
def test_nan_is_an_error_that_names_sequence_and_step_and_keeps_what_was_committed(
    scheduler: object, temperature: float
) -> None:
    calls = {15: 0, 16: 0, 17: 0}

    def rows(ids: list[int]) -> np.ndarray:
        z = np.random.default_rng(ids).normal(size=(len(ids), SIZE)).astype(np.float32) / 9  # unsure: little at a time
        calls[ids[0]] += 1
        z[-1, OPEN] = np.nan  # which is never looked at
        if ids[0] == 16 and calls[16] == 2:
            z[ids.index(OPEN), 3] = np.nan
        return z

    known, options = Vocabulary(SIZE, [2]), lsp.Options(temperature=temperature)
    loop = lsp.decode(scripted(rows, SIZE, OPEN), [[15], [16], [17]], 12, scheduler, known, options)
    next(loop)
    committed = [canvas.tokens.tolist() for canvas in next(loop).canvases]
    with pytest.raises(lsp.DecodingError, match="NaN in sequence 1, pass 1; nothing of this pass") as caught:
        next(loop)
    kept = caught.value.progress
    assert kept.passes == 1
    for before, canvas in zip(committed, kept.canvases, strict=True):
        assert canvas.tokens.tolist() == before
        assert (~canvas.masked[1:]).sum() == sum(commits(canvas)) > 0


@pytest.mark.abuse("prompts and generation")
def test_nan_is_laid_to_the_right_sequence_when_others_are_finished() -> None:
    def rows(ids: list[int]) -> np.ndarray:
        z = np.zeros((len(ids), SIZE), dtype=np.float32)
        z[:, 17 if ids[0] == 15 else 3] = np.nan if ids[0] == 16 and ids.count(OPEN) == 2 else 5.0
        return z

    with pytest.raises(lsp.DecodingError, match="NaN in sequence 2, pass 2") as caught:
        decode(scripted(rows, SIZE, OPEN), [[15], [14], [16]], 4, lsp.FixedPrefix(1), stops=[17])
    assert [canvas.run.tolist() for canvas in caught.value.progress.canvases] == [[17], [3, 3], [3, 3]]


def test_nan_that_no_scheduler_looks_at_is_no_error() -> None:
    def rows(ids: list[int]) -> np.ndarray:
        z = np.zeros((len(ids), SIZE), dtype=np.float32)
        if ids.count(OPEN) == 8:
            z[-1] = np.nan
        return z

    state = decode(scripted(rows, SIZE, OPEN), [[15]], 8, lsp.LongestStablePrefix(PrefixRule(0.1, 0.5, snap=False)))
    assert not state.canvases[0].active


def test_temperature_samples_from_the_softmax() -> None:
    """A single mask after the same prompt, for many seeds: frequencies are the probabilities at that temperature."""
    z = np.array([2.0, 1.0, 0.0, -1.0, 3.0], dtype=np.float32)
    model = scripted(lambda ids: np.tile(z, (len(ids), 1)), 5, 4)
    known, count = Vocabulary(5), 4000
    state = last(lsp.decode(model, [[0]] * count, 1, lsp.Full(), known, lsp.Options(temperature=2.0), range(count)))
    found = np.bincount([int(canvas.run[0]) for canvas in state.canvases], minlength=5) / count
    weights = np.exp(z[:4] / 2)
    assert found[4] == 0
    assert np.abs(found[:4] - weights / weights.sum()).max() < 4 * (0.25 / count) ** 0.5


@pytest.mark.parametrize("seeds", [[3, 4, 3], [-1, 2**64 - 1, 2**63], [-(2**63), 2**32, 2**32 + 1]], ids=str)
def test_noise_is_that_of_the_seed_the_position_and_the_pass_of_the_sequence(seeds: list[int]) -> None:
    """On flat logits the noise alone decides: all of it is the oracle's, also when sequences begin in later passes."""
    flat = lambda ids: np.zeros((len(ids), SIZE), dtype=np.float32)  # noqa: E731
    known, options = Vocabulary(SIZE, [2]), lsp.Options(temperature=0.7)
    prompts = [[15], [15, 16], [15] * 5]

    def noisiest(seed: int, position: int, number: int) -> int:
        draw = oracle.Draw(1.0, seed, position, number)
        return max(range(OPEN), key=lambda token: oracle.gumbel(draw, token))

    for seats in (1, 2, 3):
        model = scripted(flat, SIZE, OPEN)
        state = last(lsp.decode(model, prompts, 20, lsp.FixedPrefix(8), known, options, seeds, seats))
        for prompt, seed, canvas in zip(prompts, seeds, state.canvases, strict=True):
            assert canvas.run.tolist() == [noisiest(seed, len(prompt) + i, i // 8) for i in range(20)]


def test_confidence_is_that_of_the_drawn_token_without_noise() -> None:
    """And margins are those of the noisy logits."""
    z = np.array([1.0, 0.5, 0.0, -0.5, 9.0], dtype=np.float32)
    seen = []

    def look(step: lsp.Step) -> list[lsp.Chosen]:
        masks = [canvas.masks for canvas in step.canvases]
        seen.extend(step.stats(masks))
        return [(where, stats.tokens) for where, stats in zip(masks, seen, strict=True)]

    model = scripted(lambda ids: np.tile(z, (len(ids), 1)), 5, 4)
    last(lsp.decode(model, [[0]], 30, look, Vocabulary(5), lsp.Options(temperature=2.0), [8]))
    (stats,) = seen
    rows = [oracle.score_row(z.tolist(), {4}, oracle.Draw(2.0, 8, 1 + i, 0)) for i in range(30)]
    assert stats.tokens.tolist() == [row.token for row in rows]
    np.testing.assert_allclose(stats.margins, [row.margin for row in rows], atol=1e-4)
    np.testing.assert_allclose(stats.log_odds, [row.log_odds for row in rows], atol=1e-5)
    weights = np.exp(z[:4].astype(np.float64))
    np.testing.assert_allclose(stats.confidence, (weights / weights.sum())[stats.tokens], atol=1e-6)
    assert set(stats.tokens.tolist()) == {0, 1, 2, 3}


def test_nothing_to_do_takes_no_pass() -> None:
    model = typist({})
    assert [c.run.tolist() for c in decode(model, [[15], []], 0, lsp.Full()).canvases] == [[], []]
    assert decode(model, [], 5, lsp.Full()).canvases == []
    assert model.passes == []


def test_an_empty_prompt_works_unless_logits_are_shifted() -> None:
    for scheduler in (lsp.Full(), lsp.FixedPrefix(2), lsp.LongestStablePrefix()):
        state = decode(typist({0: 4, 1: 5, 2: 6}), [[], [15]], 3, scheduler)
        assert [canvas.run.tolist() for canvas in state.canvases] == [[4, 5, 6], [5, 6, 0]]
    with pytest.raises(ValueError, match=r"Invalid prompts\[1\]: expected at least one token, .* shifted, got none"):
        decode(typist({}, shifted=True), [[15], []], 3, lsp.Full())


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_length": 0}, "Invalid block_length"),
        ({"lookahead": 0}, "Invalid lookahead: expected at least 1 without blocks"),
        ({"lookahead": -1, "block_length": 4}, "Invalid lookahead"),
        ({"refresh_every": 0}, "Invalid refresh_every"),
        ({"cache": "some"}, "Invalid cache: expected 'prefix', 'block', 'dual' or 'none', got 'some'"),
        ({"cache": "dual"}, "Invalid cache: 'dual' expects a block_length and no refresh"),
        ({"cache": "dual", "block_length": 4, "refresh_every": 2}, "Invalid cache: 'dual' expects a block_length and"),
        ({"cache": "block"}, "Invalid cache: 'block' expects a block_length"),
        ({"recompute": -1}, "Invalid recompute: expected an integer from 0 to"),
        (
            {"blocks": "long", "block_length": 4},
            "Invalid blocks: expected 'fixed', 'delimiter', 'sliding' or 'growing'",
        ),
        ({"blocks": "growing"}, "Invalid blocks: 'growing' expects a block_length, got None"),
        ({"blocks": "sliding"}, "Invalid blocks: 'sliding' expects a block_length, got None"),
        ({"delimiter_confidence": 0.0}, r"Invalid delimiter_confidence: expected a confidence from 0 to 1, got 0\.0"),
        (
            {"blocks": "sliding", "block_length": 4, "cache": "block"},
            "Invalid cache: 'block' expects blocks that stay for some passes, got blocks='sliding'",
        ),
        ({"cache": "block", "block_length": 4, "refresh_every": 2}, "Invalid cache: 'block' expects"),
        ({"cache": "block", "block_length": 4, "refresh_scattered": True}, "Invalid cache: 'block' expects"),
        ({"temperature": -1.0}, "Invalid temperature"),
        ({"temperature": float("nan")}, "Invalid temperature"),
        ({"temperature": float("inf")}, "Invalid temperature: expected a number from 0 to 1e30, got inf"),
        ({"temperature": 1e31}, "Invalid temperature: expected a number from 0 to 1e30, got 1e\\+31"),
    ],
)
def test_options_that_make_no_sense_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lsp.Options(**options)


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize("options", [{}, {"block_length": 64, "cache": "block"}], ids=str)
def test_what_does_not_fit_into_memory_is_refused_at_once(options: dict) -> None:
    with pytest.raises(MemoryError, match=r"Invalid capacity: expected room for .*, \d+ bytes, got \d+ free"):
        decode(typist({}), [[15]] * 1000, 2**31 - 2, lsp.Full(), **options)

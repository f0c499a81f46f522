"""Blocks that end at a confident delimiter, and blocks that slide with the first mask, under any scheduler."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lsp
from lsp_kernels import Vocabulary
from tests.lsp.agreement import check_agreement
from tests.lsp.recorder import scripted
from tests.lsp.simulation import Seen, threshold
from tests.support import examples

COMMA, WORD, MASK = 0, 1, 2
VOCABULARY = Vocabulary(3, delimiters=[COMMA])


def text(*tokens: tuple[int, float]) -> np.ndarray:
    """Rows that predict each of these tokens with this confidence."""
    rows = np.zeros((len(tokens), 3), dtype=np.float32)
    for row, (token, confidence) in zip(rows, tokens, strict=True):
        row[token] = math.log(confidence / (1 - confidence))
    return rows


def blocks_of(rows: np.ndarray, scheduler: object = None, **options: object) -> list[list[int]]:
    """The masks that might be committed in each pass, after no prompt, one token a pass from the left."""
    seen: list[list[int]] = []

    def first(step: lsp.decoding.Step) -> list:
        seen.append(step.canvases[0].masks.tolist())
        return (scheduler or lsp.FixedPrefix(1))(step)

    model = scripted(lambda ids: rows[: len(ids)], 3, MASK)
    for _ in lsp.decode(model, [[]], len(rows), first, VOCABULARY, lsp.Options(**options)):
        pass
    return seen


SENTENCE = text(*[(WORD, 0.9), (COMMA, 0.6), (WORD, 0.9), (COMMA, 0.8)], *[(WORD, 0.99)] * 12)


def test_a_block_ends_at_the_most_confident_delimiter_of_a_quarter_of_the_masks() -> None:
    ends = [masks[-1] for masks in blocks_of(SENTENCE, block_length=6, blocks="delimiter")]
    assert ends == [3] * 4 + [9] * 6 + [15] * 6  # 0 to 3 by the comma at 3, then no comma: 6 positions each


def test_a_delimiter_that_is_not_confident_enough_does_not_end_a_block() -> None:
    given = {"block_length": 6, "blocks": "delimiter"}
    assert blocks_of(SENTENCE, delimiter_confidence=0.85, **given)[0] == [0, 1, 2, 3, 4, 5]
    assert blocks_of(SENTENCE, delimiter_confidence=0.79, **given)[0] == [0, 1, 2, 3]


def test_an_end_that_is_settled_stays_for_the_whole_block() -> None:
    """Even if a later pass predicts something else."""
    later = np.roll(SENTENCE, 2, axis=0)
    passes = iter([SENTENCE, *[later] * 99])
    seen = []

    def first(step: lsp.decoding.Step) -> list:
        seen.append(step.canvases[0].masks[-1])
        return lsp.FixedPrefix(1)(step)

    model = scripted(lambda ids: next(passes), 3, MASK)
    for _ in lsp.decode(model, [[]], 16, first, VOCABULARY, lsp.Options(block_length=8, blocks="delimiter")):
        pass
    assert seen[:5] == [3, 3, 3, 3, 5]


def test_a_block_slides_with_the_first_mask() -> None:
    seen = blocks_of(SENTENCE[:6], block_length=3, blocks="sliding")
    assert seen == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5], [5]]
    best = blocks_of(
        text((WORD, 0.6), (WORD, 0.9), (WORD, 0.7), (WORD, 0.8)), lsp.Full(), block_length=2, blocks="sliding"
    )
    assert best == [[0, 1], [0], [2, 3], [2]]  # it stays while the first mask does


def within_block(scheduler: lsp.AdaBlock | lsp.SlidingBlock, seen: Seen) -> set[int]:
    return threshold(scheduler, seen)


@pytest.mark.parametrize("scheduler", [lsp.AdaBlock(0.6), lsp.SlidingBlock(0.6)], ids=lambda s: s.key)
@examples(40)
@given(data=st.data())
def test_the_rivals_commit_as_the_threshold_does(scheduler: lsp.Scheduler, data: st.DataObject) -> None:
    check_agreement(scheduler, data, within_block)


def block_length(tokens: list[int], confidence: list[float], begin: int, usual: int, enough: float) -> int:
    """AdaBlock's rule in other words, for a canvas of predicted tokens and their confidences."""
    total = len(tokens)
    places = [p for p in range(begin, begin + min(int(0.25 * total), total - begin)) if tokens[p] == COMMA]
    best = max(places, key=lambda p: confidence[p], default=None)
    if best is not None and confidence[best] >= enough:
        return best - begin + 1
    return min(usual, total - begin)


@examples(50)
@given(
    st.lists(st.sampled_from([COMMA, WORD]), min_size=4, max_size=24),
    st.integers(1, 9),
    st.sampled_from([0.3, 0.6, 0.9]),
    st.integers(0, 10**6),
)
def test_blocks_are_as_long_as_adablocks_rule_says(tokens: list[int], usual: int, enough: float, seed: int) -> None:
    confidence = np.random.default_rng(seed).permutation(np.linspace(0.51, 0.98, len(tokens))).tolist()
    given_options = {"block_length": usual, "blocks": "delimiter", "delimiter_confidence": enough + 1e-3}
    seen = blocks_of(text(*zip(tokens, confidence, strict=True)), **given_options)
    begin = 0
    while begin < len(tokens):
        length = block_length(tokens, confidence, begin, usual, enough + 1e-3)
        for first in range(begin, begin + length):
            assert seen[first] == list(range(first, begin + length))
        begin += length


def test_a_block_that_ends_at_a_delimiter_freezes_nothing_past_its_start_on_fast_dllms_cache() -> None:
    model = scripted(lambda ids: SENTENCE[: len(ids)], 3, MASK)
    options = lsp.Options(block_length=6, blocks="delimiter", cache="block")
    for _ in lsp.decode(model, [[]], 16, lsp.FixedPrefix(2), VOCABULARY, options):
        pass
    held = [segments[0].held for segments in model.passes]
    starts = [(segments[0].positions[0], segments[0].append) for segments in model.passes]
    assert held == [0, 0, 0, 4, 4, 0, 10, 10]  # blocks 0-3, 4-9, 10-15; the first pass of each computes everything
    assert starts == [(0, 0), (0, 0), (0, 4), (4, 0), (4, 0), (0, 10), (10, 0), (10, 0)]


def test_the_rivals_bring_their_options_along_and_a_trace_shows_them() -> None:
    model = lsp.load("tiny")
    for key, notes in (
        ("adablock", ["p = 0.9", "block length 16", "blocks delimiter", "cache block"]),
        ("sliding", ["p = 0.9", "block length 16", "blocks sliding", "recompute 24"]),
    ):
        (trace,) = lsp.trace(model, "Use 3, 5 and 7 to make 15.\n", max_new_tokens=24, scheduler=key)
        assert trace.notes == notes
    (trace,) = lsp.trace(
        model, "Use 3, 5 and 7 to make 15.\n", max_new_tokens=24, scheduler="adablock", delimiter_confidence=0.5
    )
    assert "delimiter confidence 0.5" in trace.notes


def test_blocks_by_delimiters_need_delimiters() -> None:
    model = scripted(lambda ids: SENTENCE[: len(ids)], 3, MASK)
    with pytest.raises(ValueError, match="Invalid blocks: 'delimiter' expects a vocabulary with delimiters, got none"):
        next(lsp.decode(model, [[]], 4, lsp.AdaBlock(), Vocabulary(3)))

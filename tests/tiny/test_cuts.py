"""Parallel cuts: every segment is predicted from what a suffix mask would show, and nothing else."""

from dataclasses import replace

import pytest
import torch

from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training.curriculum import CURRICULA
from lsp.tiny.training.cuts import (
    BLOCK,
    FIRST_WEIGHT,
    ISLANDS,
    Row,
    block_cuts,
    fade,
    islands,
    lay_out,
    seen_from_cache,
    shown,
    window,
)
from lsp.tiny.training.data import WINDOW, Batches
from lsp.tiny.training.model import Config, TinyModel

MASK, EOS = 0, 1


def cuts(length, *places):
    return torch.tensor([i in places for i in range(length)])


@pytest.fixture
def rows():
    """Two prompts of 3 and 2 tokens; the segments of their answers begin at 3, 5, 6 and at 2, 4."""
    first, second = torch.tensor([5, 6, 7, 11, 12, 13, 14, EOS]), torch.tensor([8, 9, 21, 22, 23, EOS])
    return [Row(first, 3, torch.arange(8), cuts(8, 3, 5, 6)), Row(second, 2, torch.arange(6), cuts(6, 2, 4))]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TinyModel(Config(vocab_size=30, d_model=64, n_layers=2, n_heads=2, mlp_hidden_size=96)).eval()


def test_a_row_holds_the_answer_twice_at_the_same_places(rows):
    batch, _ = lay_out(rows, MASK, EOS)
    assert batch.inputs[0].tolist() == [5, 6, 7, 11, 12, 13, 14, EOS, *[MASK] * 5]
    assert batch.targets[0, 8:].tolist() == [11, 12, 13, 14, EOS]
    assert batch.positions[0].tolist() == [*range(8), *range(3, 8)]
    assert batch.inputs[1].tolist() == [8, 9, 21, 22, 23, EOS, EOS, EOS, *[MASK] * 4, EOS]
    assert batch.masked.sum(1).tolist() == [5, 4]
    assert batch.answer_tokens == 9


def test_the_first_token_of_a_segment_weighs_most_and_the_others_fade(rows):
    batch, _ = lay_out(rows, MASK, EOS)
    weak = fade(torch.tensor(1), 12).item()
    assert batch.weights[0, 8:].tolist() == pytest.approx([FIRST_WEIGHT, weak, FIRST_WEIGHT, FIRST_WEIGHT, weak])
    assert fade(torch.tensor([0, 24, 5000]), 24).tolist() == pytest.approx([1.0, 0.5, 0.1])


def test_islands_are_shown_near_a_cut_and_never_right_behind_it(rows):
    generator = torch.Generator().manual_seed(0)
    behind = torch.arange(40).repeat(500, 1)
    found = shown(behind, islands(500, 0.5, generator)[:, None], generator)
    assert 0.4 < found.any(1).float().mean() < 0.6
    assert found[:, 1:ISLANDS].any(0).all()
    assert not found[:, 0].any()
    assert not found[:, ISLANDS:].any()
    (row, _) = rows
    row = replace(row, islands=cuts(8, 4, 7))
    batch, _ = lay_out([row], MASK, EOS)
    assert batch.inputs[0, 8:].tolist() == [MASK, 12, MASK, MASK, EOS]
    assert batch.masked[0].nonzero()[:, 0].tolist() == [8, 10, 11]


def test_rows_get_islands_behind_their_own_cuts(rows):
    generator = torch.Generator().manual_seed(0)
    many = [row.with_islands(1.0, generator) for row in rows for _ in range(50)]
    assert any(row.islands.any() for row in many)
    assert not any((row.islands & row.cuts).any() for row in many)


def test_blocks_begin_behind_the_prompt_and_are_counted_from_there_in_a_window_too():
    whole = torch.arange(3 + 2 * BLOCK + 5)
    assert block_cuts(whole, 3, 3).nonzero()[:, 0].tolist() == [3, 3 + BLOCK, 3 + 2 * BLOCK]
    seen = torch.cat([whole[:3], whole[10:]])  # the given ones end at 14
    assert seen[block_cuts(seen, 3, 7)].tolist() == [14, 3 + BLOCK, 3 + 2 * BLOCK]


def test_segments_are_numbered_over_the_rows_whose_surest_tokens_are_shown(rows):
    first, second = rows
    plain, shown_first = replace(second, in_blocks=False), replace(first, in_blocks=True)
    _, blocks = lay_out([shown_first, plain, replace(second, in_blocks=True)], MASK, EOS)
    assert blocks[0].tolist() == [-1] * 8 + [0, 0, 1, 2, 2]
    assert (blocks[1] == -1).all()
    assert blocks[2].tolist() == [-1] * 8 + [3, 3, 4, 4, -1]


def test_a_held_prefix_sees_no_later_block_but_the_masks_and_the_rest_sees_everything():
    prompts, cuts = torch.tensor([4, 4]), torch.tensor([60, 80])
    masked = torch.zeros(2, 80, dtype=torch.bool)
    masked[0, 60:] = True
    masked[0, 65] = False  # an island
    whole = []
    for seed in range(20):
        seen = seen_from_cache(prompts, cuts, masked, torch.Generator().manual_seed(seed))
        assert seen[1].all()
        assert seen[0, 60:].all()
        assert seen[0, :, 60:][:, masked[0, 60:]].all()
        assert seen[0, :4, :4].all()
        assert not seen[0, :4, 4:60].any()
        assert not seen[0, :4, 65].any()
        answer = seen[0, 4:60, 4:60]
        assert answer.tril().sum() == 56 * 57 // 2  # the past
        ahead = answer.sum(1) - torch.arange(56) - 1  # of its own block
        assert (ahead.diff() >= -1).all()
        whole.append((answer.all(1).sum(), ahead.max()))
    assert all(0 < begun < 25 for begun, _ in whole)
    assert all(most >= 5 for _, most in whole)


def test_a_segment_is_predicted_as_after_a_cut(rows, model):
    """Each segment alone: the prompt and the answer before it, in the same segments, and its own masks."""
    batch, _ = lay_out(rows, MASK, EOS)
    logits = model.ff_out(model.hidden(batch.inputs, batch.visible, batch.positions))
    for i, one in enumerate(rows):
        row, prompt, starts = one.tokens, one.given, one.cuts
        begins = starts.nonzero()[:, 0].tolist()
        for begin, end in zip(begins, [*begins[1:], len(row)], strict=True):
            ids = torch.cat([row[:begin], torch.full((end - begin,), MASK)])[None]
            segment = starts.cumsum(0)[:end]
            visible = (segment[None, :] <= segment[:, None])[None, None]
            alone = model.ff_out(model.hidden(ids, visible))[0, begin:]
            place = 8 + begin - prompt
            torch.testing.assert_close(logits[i, place : place + end - begin], alone, atol=1e-5, rtol=1e-5)


def test_nothing_of_a_segment_or_behind_it_can_be_seen(rows, model):
    batch, _ = lay_out(rows, MASK, EOS)
    before = model.hidden(batch.inputs, batch.visible, batch.positions)
    changed = batch.inputs.clone()
    changed[0, 5:8] = 29  # the answer from the second cut on
    after = model.hidden(changed, batch.visible, batch.positions)
    torch.testing.assert_close(after[0, 8:11], before[0, 8:11])  # segments that begin before or at the change
    assert not torch.allclose(after[0, 11:], before[0, 11:], atol=1e-3)
    torch.testing.assert_close(after[1], before[1])


def test_training_and_inference_see_the_same(rows, model):
    batch, _ = lay_out(rows, MASK, EOS)
    arguments = batch.inputs, batch.visible, batch.positions
    torch.testing.assert_close(model.train().hidden(*arguments), model.eval().hidden(*arguments), atol=1e-5, rtol=1e-5)


def test_a_window_shows_some_lines_where_they_stand_and_gives_the_first():
    row = torch.tensor([5, 6, 3, 11, 12, 3, 13, 3, 14, 15, 16, 3, 17, EOS])  # a prompt of 3 tokens, 4 lines
    lines = torch.tensor([3])
    assert window(row, 3, lines, 4, torch.Generator()) == (pytest.approx(range(14)), 3)
    seen = set()
    for seed in range(30):
        places, given = window(row, 3, lines, 2, torch.Generator().manual_seed(seed))
        seen.add((tuple(places[3:].tolist()), given))
        assert places[:3].tolist() == [0, 1, 2]
    assert seen == {((3, 4, 5, 6, 7), 3), ((6, 7, 8, 9, 10, 11), 5), ((8, 9, 10, 11, 12, 13), 7)}


def test_a_window_is_predicted_at_its_places(rows, model):
    """Moved by the same distance, prompt and answer attend as before; the answer alone does not."""
    rows[0].places = torch.tensor([0, 1, 2, 53, 54, 55, 56, 57])
    apart, _ = lay_out(rows, MASK, EOS)
    assert apart.positions[0, 8:].tolist() == [53, 54, 55, 56, 57]
    rows[0].places = rows[0].places + 100
    moved, _ = lay_out(rows, MASK, EOS)
    rows[0].places = torch.arange(8)
    together, _ = lay_out(rows, MASK, EOS)
    one, other, third = (model.hidden(b.inputs, b.visible, b.positions)[0, 8:] for b in (apart, moved, together))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(one, third, atol=1e-3)


def test_the_parallel_batches_of_a_step_are_whole_traces_cut_at_lines_and_values():
    tokenizer = tokens.build(100)
    batches = Batches(tokenizer, 0, 1, curriculum=CURRICULA["traces"])
    begun, starts, ends = [], 0, 0
    for step in range(16):
        batch = batches.parallel("traces", step)
        again = Batches(tokenizer, 0, 1, curriculum=CURRICULA["traces"]).parallel("traces", step)
        assert torch.equal(batch.inputs, again.inputs)
        for targets, masked, weights in zip(batch.targets, batch.masked, batch.weights, strict=True):
            words = [tokenizer.id_to_token(i) for i in targets[masked].tolist()]
            assert words[-1] in (tokens.EOS, "\n")
            ends += words[-1] == tokens.EOS
            starts += words[0] == "start"
            assert sum(word in (tokens.EOS, "\n") for word in words) <= WINDOW
            heavy = (weights[masked] == FIRST_WEIGHT).nonzero()[:, 0].tolist()
            begun += [(words[i - 1], words[i]) for i in heavy if i]
    assert min(starts, ends) > 10
    lines = sum(before == "\n" for before, _ in begun)
    values = sum(before in (" a", " k", " n") and word[1:].isdigit() for before, word in begun)
    assert 0.2 < lines / len(begun) < 0.6
    assert 0.2 < values / len(begun) < 0.7


def test_programs_with_parallel_cuts_are_whole_and_cut_at_lines_and_results():
    tokenizer = tokens.build(100)
    batches, begun = Batches(tokenizer, 0, 0, curriculum=CURRICULA["traces"]), []
    for step in range(8):
        batch = batches.parallel("code", step)
        for targets, masked, weights in zip(batch.targets, batch.masked, batch.weights, strict=True):
            words = [tokenizer.id_to_token(i) for i in targets[masked].tolist()]
            assert words[0] == "def"
            assert words[-1] == tokens.EOS
            heavy = (weights[masked] == FIRST_WEIGHT).nonzero()[:, 0].tolist()
            begun += [words[i - 1] for i in heavy if i]
    assert sum(before.startswith("\n") for before in begun) > 100
    assert sum(before == "  #" for before in begun) > 20

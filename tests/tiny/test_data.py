"""Batches show the model what a decoder will meet, and nothing of the answer that it should not."""

import re

import pytest
import torch

from lsp.tiny.tasks import REGION, TASKS, region, split_of
from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training.curriculum import ANNOUNCES, CURRICULA, FIRST
from lsp.tiny.training.cuts import BLOCK, ISLANDS, WEIGHT_CAP, hide_line
from lsp.tiny.training.data import LINE_ENDS, POOL, Batches


@pytest.fixture(scope="module")
def tokenizer():
    return tokens.build()


def test_batches_depend_on_seed_rank_and_step_alone(tokenizer):
    one, two = Batches(tokenizer, 3, 1), Batches(tokenizer, 3, 1)
    for step in range(5):
        one.batch("code", step)
    assert torch.equal(one.batch("code", 5).inputs, two.batch("code", 5).inputs)
    assert not torch.equal(one.batch("sudoku", 5).inputs, one.batch("sudoku", 6).inputs)
    other = Batches(tokenizer, 3, 0)
    assert not torch.equal(one.batch("sudoku", 5).targets, other.batch("sudoku", 5).targets)


@pytest.mark.parametrize(
    ("task", "curriculum"),
    [(t, name) for name in CURRICULA for t in (TASKS[:4] if name == "first" else TASKS)],
)
def test_masks_hide_answers_and_never_prompts(tokenizer, task, curriculum):
    batches = Batches(tokenizer, 0, 0, curriculum=CURRICULA[curriculum])
    for step in range(20):
        batch = batches.batch(task, step)
        assert batch.masked.any(1).all()
        assert (batch.inputs[batch.masked] == batches.mask_id).all()
        shown = ~batch.masked
        assert torch.equal(batch.inputs[shown], batch.targets[shown])
        before = torch.arange(batch.inputs.shape[1]) < prompts_of(tokenizer, batch.targets)[:, None]
        assert before.any(1).all()
        assert not (batch.masked & before).any()
        assert (batch.weights[batch.masked] > 0).all()
        assert batch.weights.max() <= WEIGHT_CAP + 1e-4


def prompts_of(tokenizer, targets):
    """How many tokens the prompt of every row has, by its text."""
    ends = re.compile(
        r"(?:sudoku|grid):(?:\n[1-4_]{4}){4}\n|Trace from.*?\n[A-Z] end\n|Run this.*?\nfrom.*?\n|[A-Z].*?\n", re.S
    )
    lengths = []
    for row in targets.tolist():
        text = tokenizer.decode(row)
        match = ends.search(text)
        assert match
        lengths.append(len(tokenizer.encode(text[: match.end()]).ids))
    return torch.tensor(lengths)


def test_suffix_masks_cut_right_after_what_announces_a_result(tokenizer):
    batches = Batches(tokenizer, 0, 0)
    equals = tokens.token_id(tokenizer, ANNOUNCES["arithmetic"])
    suffixes = cuts = rows = 0
    for step in range(60):
        batch = batches.batch("arithmetic", step)
        first = batch.masked.int().argmax(1)
        is_suffix = batch.masked.sum(1) == batch.masked.shape[1] - first
        before = batch.targets[torch.arange(len(first)), first - 1]
        suffixes += int(is_suffix.sum())
        cuts += int((is_suffix & (before == equals)).sum())
        rows += len(first)
    assert 0.25 < suffixes / rows < 0.5
    assert 0.5 < cuts / suffixes < 0.8


def test_step_cuts_leave_whole_sentences(tokenizer):
    batches = Batches(tokenizer, 0, 0)
    stage = next(stage for stage in FIRST if stage.recipes["arithmetic"].step_cut > 0.3)
    ends = torch.tensor([tokens.token_id(tokenizer, token) for token in (".", "\n")])
    rows = cuts = 0
    for step in range(stage.first_step, stage.first_step + 40):
        batch = batches.batch("arithmetic", step)
        first = batch.masked.int().argmax(1)
        is_suffix = batch.masked.sum(1) == batch.masked.shape[1] - first
        before = batch.targets[torch.arange(len(first)), first - 1]
        rows += int(is_suffix.sum())
        cuts += int((is_suffix & torch.isin(before, ends)).sum())
    assert 0.3 < cuts / rows < 0.65


def test_some_batches_show_the_whole_answer_region(tokenizer):
    batches = Batches(tokenizer, 0, 0)
    widths = [batches.batch("countdown", step).inputs.shape[1] for step in range(120)]
    full = 11 + REGION
    assert max(widths) == full
    assert 0.05 < widths.count(full) / 120 < 0.3
    assert len(set(widths)) > 5  # the tail does not tell the answer's length


def test_result_masks_leave_no_later_mention_to_copy(tokenizer):
    batches = Batches(tokenizer, 0, 0)
    equals, newline = (tokens.token_id(tokenizer, token) for token in (" =", "\n"))
    targets = batches.batch("arithmetic", 1).targets
    prompts = (targets == newline).int().argmax(1) + 1
    hidden = batches._hide_results(targets, prompts, " =", torch.Generator().manual_seed(0))
    results = 0
    for row, masked in zip(targets.tolist(), hidden.tolist(), strict=True):
        signs = [i for i, token in enumerate(row) if token == equals]
        allowed = set()
        for start, end in zip(signs, [*signs[1:], len(row)], strict=True):
            mentions = {i for i in range(start, end) if row[i] == row[start + 1]}
            assert len({masked[i] for i in mentions}) == 1
            allowed |= mentions
            results += masked[start + 1]
        assert {i for i, is_hidden in enumerate(masked) if is_hidden} <= allowed
    assert 0.2 < results / int((targets == equals).sum()) < 0.6


def test_choice_masks_show_the_words_and_hide_most_numbers_and_operators(tokenizer):
    batches = Batches(tokenizer, 0, 0)
    targets = batches.batch("countdown", 1).targets
    prompts = (targets == tokens.token_id(tokenizer, "\n")).int().argmax(1) + 1
    hidden = batches._hide_choices(targets, prompts, torch.Generator().manual_seed(0))
    assert {tokenizer.id_to_token(i).strip() for i in targets[hidden].tolist()} <= {*"+-*", *map(str, range(51))}
    assert 6 < hidden.sum(1).float().mean() < 8
    assert (hidden.sum(1) == 8).any()


@pytest.mark.parametrize("curriculum", CURRICULA.values(), ids=CURRICULA)
def test_stages_follow_each_other_and_begin_with_a_pool(tokenizer, curriculum):
    for stage in curriculum.stages:
        assert curriculum.at(stage.first_step) is stage
        assert stage.first_step == 0 or curriculum.at(stage.first_step - 1) is not stage
        assert stage.first_step % POOL == 0
        assert stage.recipes.keys() == curriculum.stages[0].recipes.keys()
        assert stage.parallel.keys() == curriculum.stages[0].parallel.keys()
    assert curriculum.stages[-1].first_step < curriculum.steps


def test_countdown_trains_on_larger_numbers_too_and_never_on_a_test_problem(tokenizer):
    batches = Batches(tokenizer, 0, 0)
    rows = [row.tolist() for step in range(8) for row in batches.batch("countdown", step).targets]
    lines = [tokenizer.decode(row).split("\n")[0] for row in rows]
    seen = [tuple(map(int, re.findall(r"\d+", line))) for line in lines]
    keys = [f"countdown {tuple(sorted(numbers))} {target}" for *numbers, target in seen]
    assert {split_of(key) for key in keys} == {"train"}
    larger = sum(max(numbers) > 20 for *numbers, _ in seen)
    assert 0.1 < larger / len(seen) < 0.35


def test_some_batches_of_traces_show_their_longer_region(tokenizer):
    batches = Batches(tokenizer, 0, 0, curriculum=CURRICULA["traces"])
    last = CURRICULA["traces"].stages[-1].first_step
    shown = [batches.batch("traces", last + step).targets for step in range(40)]
    full = [int(prompts_of(tokenizer, t).max()) + region("traces") == t.shape[1] for t in shown]
    assert 3 < sum(full) < 20


@pytest.mark.parametrize("task", TASKS)
def test_both_templates_are_trained(tokenizer, task):
    batches = Batches(tokenizer, 0, 0, curriculum=CURRICULA["traces"])
    texts = [tokenizer.decode(row.tolist()) for step in range(64) for row in batches.batch(task, step).targets]
    second = ("How", "Fill", "Make", "Given", "Run")
    share = sum(text.startswith(second) for text in texts) / len(texts)
    assert 0.1 < share < 0.5


@pytest.mark.parametrize("task", TASKS)
def test_infilling_hides_one_whole_line_and_shows_everything_else(tokenizer, task):
    batches = Batches(tokenizer, 0, 0, curriculum=CURRICULA["traces"])
    ends = {tokens.token_id(tokenizer, word) for word in LINE_ENDS[task]}
    starts = set()
    for step in range(12):
        targets = batches.batch(task, step).targets
        prompts = prompts_of(tokenizer, targets)
        generator = torch.Generator().manual_seed(step)
        hidden = hide_line(targets, prompts, torch.tensor(sorted(ends)), batches.eos_id, generator)
        for row, prompt, masked in zip(targets.tolist(), prompts.tolist(), hidden, strict=True):
            places = masked.nonzero()[:, 0].tolist()
            assert places == list(range(places[0], places[-1] + 1))
            assert places[0] == prompt or row[places[0] - 1] in ends
            assert row[places[-1] + 1] in {*ends, batches.eos_id}
            assert not ends & {row[i] for i in places}
            starts.add(places[0] - prompt)
    assert len(starts) >= {"countdown": 2, "sudoku": 4}.get(task, 6)


def test_the_training_gets_infilling_masks_with_something_on_their_right(tokenizer):
    batches = Batches(tokenizer, 0, 0, curriculum=CURRICULA["traces"])
    newline = tokens.token_id(tokenizer, "\n")
    found = 0
    for step in range(80):
        batch = batches.batch("traces", step)
        for row, masked in zip(batch.targets.tolist(), batch.masked, strict=True):
            places = masked.nonzero()[:, 0].tolist()
            whole = places == list(range(places[0], places[-1] + 1)) and len(places) > 5
            found += whole and newline == row[places[0] - 1] and newline in row[places[-1] + 1 :][:1]
    assert 2 < found < 30


@pytest.mark.parametrize(("curriculum", "stage"), [(c, stage) for c in CURRICULA.values() for stage in c.stages])
def test_drills_hide_one_token_of_every_fact_and_show_what_gives_it(tokenizer, curriculum, stage):
    batches = Batches(tokenizer, 0, 0, curriculum=curriculum)
    batch = batches.drill(stage.first_step)
    assert len(batch.inputs) == sum(stage.drills.values())
    assert batch.answer_tokens == int(batch.masked.sum())
    unknown = tokens.token_id(tokenizer, tokens.UNKNOWN)
    assert not (batch.targets == unknown).any()
    kinds = [kind for kind, rows in stage.drills.items() for _ in range(rows)]
    for kind, targets, masked in zip(kinds, batch.targets, batch.masked, strict=True):
        text = tokenizer.decode(targets.tolist())
        hidden = [word.strip() for word in map(tokenizer.id_to_token, targets[masked].tolist())]
        if kind == "names":
            assert hidden == re.findall(r"Write (\w)", text)
        elif kind == "traces":
            computed = re.findall(r"[akn] (\d+)|(yes|no)", text.rpartition("#")[2])
            words = [number or verdict for number, verdict in computed]
            assert hidden == words[len(words) - len(hidden) :]
        elif kind == "code":
            steps = re.findall(r"# (\d+)\n *(?:\w = |if )(.*?):?  #", text)
            values = [eval(re.sub(r"\b[a-z]\b", value, code)) for value, code in steps]
            words = {"True": "yes", "False": "no"}
            assert hidden == [words.get(str(value), str(value)) for value in values]
        else:
            facts = re.findall(r"(\d+ [-+*/] \d+) = (\d+)", text)
            assert [str(int(eval(left))) for left, _ in facts] == [result for _, result in facts]
            for word, (left, result) in zip(hidden, facts, strict=True):
                assert word in left.split() if kind == "inverse" else word == result


@pytest.mark.parametrize("task", TASKS)
def test_the_last_run_shows_islands_and_prefixes_as_a_cache_holds_them(tokenizer, task):
    """Rows that are held in part are masked to their end but for islands near the cut."""
    batches = Batches(tokenizer, 0, 0, curriculum=CURRICULA["decoded"])
    held = with_islands = 0
    for step in range(160):
        batch = batches.batch(task, step)
        sees_all = batch.visible[:, 0].all(2).all(1)
        for row in (~sees_all).nonzero()[:, 0]:
            masked = batch.masked[row]
            first = int(masked.nonzero()[0])
            assert batch.visible[row, 0, first:].all()
            assert batch.visible[row, 0][:, masked].all()
            assert masked[first + ISLANDS :].all()
            held += 1
            with_islands += int((~masked[first:]).any())
    assert held > 5
    assert with_islands > 0


def test_blocks_of_traces_begin_where_a_decoder_begins_them_and_are_all_masked(tokenizer):
    batches, found = Batches(tokenizer, 0, 0, curriculum=CURRICULA["decoded"]), 0
    for step in range(20):
        batch = batches.batch("traces", step)
        if batch.blocks is None:
            continue
        for prompt, blocks, masked in zip(
            prompts_of(tokenizer, batch.targets), batch.blocks, batch.masked, strict=True
        ):
            places = (blocks >= 0).nonzero()[:, 0]
            if len(places):
                assert (places[0] - prompt) % BLOCK == 0
                assert places.tolist() == list(range(places[0], min(places[0] + BLOCK, len(blocks))))
                assert masked[places[0] :].all()
                assert not masked[: places[0]].any()
                found += 1
        assert ((batch.shares >= 0) & (batch.shares < 1)).all()
    assert found > 10


def test_parallel_batches_of_the_last_run_have_blocks_and_cuts(tokenizer):
    batches, in_blocks, rows = Batches(tokenizer, 0, 0, curriculum=CURRICULA["decoded"]), 0, 0
    for step in range(8):
        batch = batches.parallel("traces", step)
        chosen = batch.blocks >= 0
        assert batch.masked[chosen].all()
        assert len(batch.shares) == batch.blocks.max() + 1
        assert torch.bincount(batch.blocks[chosen]).max() == BLOCK
        in_blocks += int(chosen.any(1).sum())
        rows += len(batch.inputs)
    assert 0.6 < in_blocks / rows < 0.9

"""Guidance against plain, uncached computations: two whole sequences, and logits u + (s + 1) (c - u)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import lsp
from lsp.decoding.guidance import guided
from lsp.models import Transformer
from lsp_kernels import PrefixRule, Vocabulary
from tests.lsp.agreement import DELIMITERS, MASK, SIZE, STOPS, options, with_holes
from tests.lsp.checkpoints import DECODED, Case, ids_of
from tests.lsp.recorder import SCHEDULERS, Recorder, commits, last, scripted
from tests.lsp.simulation import Ambiguous, script, simulate
from tests.support import examples

CASES = {name: make() for name, make in DECODED.items()}
CHECKPOINT_MASK = 7
GUIDED = [SCHEDULERS[name] for name in ("guarded", "islands", "topk", "threshold", "less", "klass", "entropy")]
STABLE = lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=1.0, snap=False), 0.5, "first", stable=2, fade=0.0)


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def guided_by_hand(rows, prompt: list[int], negative: list[int] | None, scale: float, mask: int):
    """From ids to guided logits: the model on the sequence, and on the sequence without its prompt."""

    def model(ids: list[int]) -> np.ndarray:
        if negative is None:
            other = [mask if p < len(prompt) and prompt[p] != mask else token for p, token in enumerate(ids)]
            without = np.asarray(rows(other), dtype=np.float64)
        else:
            without = np.asarray(rows([*negative, *ids[len(prompt) :]]), dtype=np.float64)
            lead = len(prompt) - len(negative)
            without = without[-lead:] if lead < 0 else np.pad(without, ((lead, 0), (0, 0)))
        own = np.asarray(rows(ids), dtype=np.float64)
        return without + (scale + 1) * (own - without)

    return model


@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize("kind", ["prompt", "holes", "negative"])
@pytest.mark.parametrize("name", ["guarded", "topk"])
def test_uncached_passes_are_two_plain_computations(
    case: Case, exact: Transformer, name: str, kind: str, scale: float
) -> None:
    prompt, negative = ids_of(case, 9, seed=3), ids_of(case, 5, seed=4) if kind == "negative" else None
    if kind == "holes":
        prompt[2:4] = prompt[6:7] = [CHECKPOINT_MASK]
        prompt = prompt[:7] + ids_of(case, 2, seed=8)
    rows = lambda ids: case.logits(ids).numpy()  # noqa: E731
    by_hand = guided_by_hand(rows, prompt, negative, scale, CHECKPOINT_MASK)
    known = {"stops": [5], "delimiters": range(0, 200, 5)}
    wanted = simulate(
        by_hand, prompt, 10, SCHEDULERS[name], mask=CHECKPOINT_MASK, shifted=case.shifted, cache="none", **known
    )
    vocabulary = Vocabulary(case.vocab_size, known["delimiters"], known["stops"])
    given_options = lsp.Options(cache="none", cfg_scale=scale)
    negatives = None if negative is None else [negative]
    run = lsp.decode(exact, [prompt], 10, SCHEDULERS[name], vocabulary, given_options, negatives=negatives)
    (canvas,) = last(run).canvases
    assert canvas.run.tolist() == wanted.tokens
    assert commits(canvas) == [len(step.chosen) for step in wanted.passes]
    shorter = 4 if negative else 0
    assert canvas.positions == sum(2 * step.end - shorter for step in wanted.passes)
    plain = last(lsp.decode(exact, [prompt], 10, SCHEDULERS[name], vocabulary, lsp.Options(cache="none"))).canvases[0]
    assert plain.run.tolist() != wanted.tokens  # or guidance would not have been seen at work


@examples(120)
@given(data=st.data())
def test_commits_are_those_of_a_simulation_with_two_sequences(data: st.DataObject) -> None:
    """Under every cache, in ragged batches: a scripted model computes whole sequences, so nothing is approximated."""
    scheduler = data.draw(st.sampled_from([*GUIDED, STABLE]))
    shifted = data.draw(st.booleans(), "shifted")
    chosen = data.draw(options(lookahead=True), "options")
    new, seed = data.draw(st.integers(0, 9), "new"), data.draw(st.integers(0, 10**6), "seed")
    lengths = data.draw(st.lists(st.integers(int(shifted), 7), min_size=1, max_size=4), "prompts")
    batch_size, scale = data.draw(st.sampled_from([None, 1, 2]), "batch size"), data.draw(st.sampled_from([0.5, 3.0]))
    rows, rng = script(seed, SIZE, MASK), np.random.default_rng(seed)
    prompts = [rng.integers(0, MASK, size=n).tolist() for n in lengths]
    negatives = None
    if data.draw(st.booleans(), "holes"):
        prompts = [with_holes(prompt, int(shifted), rng) for prompt in prompts]
    elif data.draw(st.booleans(), "negatives"):
        negatives = [
            rng.integers(0, MASK, size=rng.integers(int(shifted), 9)).tolist() if rng.random() < 0.8 else None
            for _ in prompts
        ]
    try:
        expected = [
            simulate(
                guided_by_hand(rows, prompt, negative, scale, MASK),
                prompt,
                new,
                scheduler,
                mask=MASK,
                shifted=shifted,
                stops=STOPS,
                delimiters=DELIMITERS,
                **chosen,
            )
            for prompt, negative in zip(prompts, negatives or [None] * len(prompts), strict=True)
        ]
    except Ambiguous:
        assume(False)
    model = scripted(rows, SIZE, MASK, shifted=shifted)
    vocabulary, how = Vocabulary(SIZE, DELIMITERS, STOPS, suppress=[MASK]), lsp.Options(cfg_scale=scale, **chosen)
    run = lsp.decode(model, prompts, new, scheduler, vocabulary, how, batch_size=batch_size, negatives=negatives)
    for canvas, wanted in zip(last(run).canvases, expected, strict=True):
        assert canvas.run.tolist() == wanted.tokens
        assert commits(canvas) == [len(step.chosen) for step in wanted.passes]


@pytest.mark.parametrize("scheduler", [SCHEDULERS["threshold"], STABLE], ids=["threshold", "stable"])
def test_a_filter_draws_from_the_guided_logits(scheduler: lsp.Scheduler) -> None:
    """As from those of a model that computes them itself."""
    rows, prompt, known = script(5, SIZE, MASK), [1, 2, 3], Vocabulary(SIZE, DELIMITERS, suppress=[MASK])

    def decoded(model: Recorder, seed: int, **how: object) -> list[list[int]]:
        (canvas,) = last(lsp.decode(model, [prompt], 8, scheduler, known, lsp.Options(**how), [seed])).canvases
        return [canvas.run.tolist(), canvas.committed_in.tolist()]

    by_hand = lambda ids: guided_by_hand(rows, prompt, None, 0.5, MASK)(ids).astype(np.float32)  # noqa: E731
    how, changed = {"temperature": 0.8, "cache": "none"}, 0
    for seed in range(12):
        expected = decoded(scripted(by_hand, SIZE, MASK), seed, top_p=0.7, **how)
        assert decoded(scripted(rows, SIZE, MASK), seed, top_p=0.7, cfg_scale=0.5, **how) == expected
        changed += decoded(scripted(by_hand, SIZE, MASK), seed, **how) != expected
    assert changed > 3


def test_the_twin_has_its_own_prefix_and_front() -> None:
    m = MASK
    model = scripted(lambda ids: np.eye(SIZE, dtype=np.float32)[np.arange(len(ids)) % 6] * 5, SIZE, m)
    run = lsp.decode(
        model, [[9, 9]], 4, lsp.FixedPrefix(2), Vocabulary(SIZE), lsp.Options(cfg_scale=1.0), negatives=[[8, 8, 8]]
    )
    (canvas,) = last(run).canvases
    assert [[(s.tokens, s.append, s.held) for s in segments] for segments in model.passes] == [
        [([9, 9, m, m, m, m], 2, 0), ([8, 8, 8, m, m, m, m], 3, 0)],
        [([*canvas.run[:2], m, m], 2, 2), ([*canvas.run[:2], m, m], 2, 3)],
    ]
    assert [segments[1].positions for segments in model.passes] == [[0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 6]]

    model = scripted(lambda ids: np.eye(SIZE, dtype=np.float32)[np.arange(len(ids)) % 6] * 5, SIZE, m)
    last(lsp.decode(model, [[9, m, 9, m]], 0, lsp.FixedPrefix(1), Vocabulary(SIZE), lsp.Options(cfg_scale=1.0)))
    assert [[s.tokens for s in segments] for segments in model.passes] == [
        [[9, m, 9, m], [m, m, m, m]],  # what is given is a mask in the twin
        [[1, 9, m], [1, m, m]],
    ]


@pytest.mark.parametrize("cached", [{}, {"lookahead": 3}, {"block_length": 4, "cache": "block"}], ids=str)
def test_a_ragged_batch_and_graphs_change_nothing(case: Case, exact: Transformer, cached: dict) -> None:
    prompts = [ids_of(case, n, seed=n) for n in (9, 1, 12)]
    prompts[2][4:6] = [CHECKPOINT_MASK] * 2
    known, seeds = Vocabulary(case.vocab_size, range(0, 200, 5), range(100, 110)), [1, 2, 3]
    how = {"cfg_scale": 1.5, "temperature": 0.3, **cached}
    for graph in (False, True):
        given_options = lsp.Options(graph=graph, **how)
        together = last(lsp.decode(exact, prompts, 8, SCHEDULERS["islands"], known, given_options, seeds, 2)).canvases
        for prompt, seed, canvas in zip(prompts, seeds, together, strict=True):
            alone = lsp.decode(exact, [prompt], 8, SCHEDULERS["islands"], known, lsp.Options(**how), [seed])
            (own,) = last(alone).canvases
            assert canvas.run.tolist() == own.run.tolist()
            assert (canvas.passes, canvas.positions) == (own.passes, own.positions)


def test_the_fused_head_gets_guided_hidden_states_and_no_logits(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["llada"]
    model = lsp.load(case.save(tmp_path), dtype=torch.float32)
    recorder, prompt = Recorder(model), ids_of(case, 9, seed=3)
    from lsp.decoding import scoring

    monkeypatch.setattr(scoring.Scoring, "_logits", None)
    how = lsp.Options(cache="none", cfg_scale=2.0)
    state = last(lsp.decode(recorder, [prompt], 6, lsp.FixedPrefix(1), Vocabulary(case.vocab_size), how))
    for index, (own, twin) in enumerate(recorder.passes):
        logits = twin.logits + 3 * (own.logits - twin.logits)
        logits[:, CHECKPOINT_MASK] = -torch.inf
        assert int(logits[9 + index].argmax()) == int(state.canvases[0].run[index])


def test_guided_keeps_what_is_ruled_out() -> None:
    own, twin = torch.tensor([1.0, -torch.inf, 2.0]), torch.tensor([0.5, -torch.inf, 4.0])
    assert guided(own, twin, 1.0).tolist() == [1.5, -torch.inf, 0.0]
    assert guided(own.bfloat16(), twin.bfloat16(), 1.0).dtype == torch.bfloat16


def test_generate_takes_guidance_and_a_negative_prompt() -> None:
    model, prompts = lsp.load("tiny"), ["Use 3, 5 and 7 to make 15.\n", "Use 2, 9 and 14 to make 21.\n"]
    other = prompts[1]
    one_for_all = lsp.generate(model, prompts, max_new_tokens=32, cfg_scale=0.5, negative_prompt=other)
    one_each = lsp.generate(model, prompts, max_new_tokens=32, cfg_scale=0.5, negative_prompt=[other, other])
    assert [a.tokens for a in one_for_all] == [a.tokens for a in one_each]
    plain = lsp.generate(model, prompts, max_new_tokens=32, cache="none", scheduler="full")[1]
    how = {"max_new_tokens": 32, "cache": "none", "scheduler": "full"}
    same = lsp.generate(model, other, cfg_scale=3.0, negative_prompt=other, **how)
    assert same[0].tokens == plain.tokens  # a twin that is the sequence itself changes nothing
    assert same[0].positions == 2 * plain.positions


@pytest.mark.abuse("prompts and generation")
def test_wrong_guidance_is_named() -> None:
    model = lsp.adapt(torch.nn.Embedding(SIZE, SIZE), vocab_size=SIZE, mask_id=MASK, max_length=10)

    def fails(message: str, prompts: object = ((1, 2),), **arguments: object) -> None:
        with pytest.raises(ValueError, match=message):
            lsp.generate(model, [list(prompt) for prompt in prompts], max_new_tokens=4, **arguments)

    for scale in (-1.0, float("nan"), float("inf")):
        fails("Invalid cfg_scale: expected a finite number from 0", cfg_scale=scale)
    fails("Invalid negative_prompt: expected none without a cfg_scale, got one", negative_prompt=[1])
    several = "Invalid negative_prompt: expected one, or one for each of the 1 prompts, got 2"
    fails(several, cfg_scale=1.0, negative_prompt=[[1], [2]])
    fails(r"Invalid negative_prompt\[0\]\[1\]: expected no mask", cfg_scale=1.0, negative_prompt=[1, MASK])
    holes = r"Invalid negative_prompt\[0\]: expected none, as prompts\[0\] has masks"
    fails(holes, [[1, MASK]], cfg_scale=1.0, negative_prompt=[1])
    fails(r"Invalid negative_prompt\[0\]: expected at most 6 tokens, got 7", cfg_scale=1.0, negative_prompt=[1] * 7)

"""Fast-dLLM's dual cache, against a plain model that keeps the K/V of every position that it is told to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

import lsp
from lsp.models import Transformer
from lsp_kernels import PrefixCache, PrefixRule, Vocabulary
from tests import oracle
from tests.lsp import plain
from tests.lsp.checkpoints import DECODED, Case, ids_of
from tests.lsp.recorder import commits, last
from tests.lsp.simulation import RULES, Seen, seated

CASES = {name: make() for name, make in DECODED.items()}
MASK, STOPS, DELIMITERS = 7, range(100, 108), range(0, 200, 5)
LENGTHS, NEW = (9, 3, 6, 4), 14
SCHEDULERS = {
    "prefix": lsp.LongestStablePrefix(PrefixRule(0.1, 0.3)),
    "islands": lsp.LongestStablePrefix(PrefixRule(floor=1.5, beta=1.0, snap=False), islands=2.0),
    "stable": lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=1.0, snap=False), stable=2),
    "less": lsp.Less(0.1),
    "klass": lsp.Klass(0.05, 2.0),
    "entropy": lsp.EntropyBound(2.0),
    "factor": lsp.Factor(2.0),
    "threshold": lsp.Threshold(0.3),
}
OPTIONS = {
    "blocks of 4": {"block_length": 4},
    "blocks of 5, the tail too": {"block_length": 5, "stop_early": False},
    "lookahead": {"block_length": 4, "lookahead": 3},
    "nothing ahead": {"block_length": 6, "lookahead": 0},
    "one block": {"block_length": 50},
    "noise": {"block_length": 4, "temperature": 0.7},
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@dataclass
class Kept:
    """Attention in place of `plain.attention`: of each layer it keeps K and V by position.

    A pass is given all tokens of a sequence, but computes only those `inside`: they see each other and what is kept.
    """

    pairs: list[dict[int, tuple[Tensor, Tensor]]] = field(default_factory=list)
    inside: Sequence[int] = ()
    layer: int = 0

    def begin(self, inside: Sequence[int]) -> None:
        self.inside, self.layer = inside, 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor) -> Tensor:
        if self.layer == len(self.pairs):
            self.pairs.append({})
        kept = self.pairs[self.layer]
        kept |= {p: (k[p], v[p]) for p in self.inside}
        seen = sorted(kept)
        size, self.layer = q.shape[1] // heads, self.layer + 1
        out = torch.full_like(q, torch.nan)  # what is outside is never to be used
        for h in range(heads):
            g = h // (heads // kv_heads)
            mine, theirs = slice(h * size, (h + 1) * size), slice(g * size, (g + 1) * size)
            keys = torch.stack([kept[p][0][theirs] for p in seen])
            keys = keys * cos[seen] + plain.half_turn(keys) * sin[seen]
            values = torch.stack([kept[p][1][theirs] for p in seen])
            queries = q[self.inside][:, mine]
            queries = queries * cos[self.inside] + plain.half_turn(queries) * sin[self.inside]
            out[self.inside, mine] = (queries @ keys.T / size**0.5).softmax(-1) @ values
        return out

    def keep(self, positions: set[int]) -> None:
        """Forgets all but these."""
        self.pairs = [{p: pair for p, pair in kept.items() if p in positions} for kept in self.pairs]


@dataclass
class Pass:
    """What a pass covers, in its order, how much of it is kept, and what it commits."""

    positions: list[int]
    append: int
    held: int
    chosen: dict[int, int]


def simulate(case: Case, prompt: list[int], scheduler: object, seed: int, **options: object) -> tuple[list[int], list]:
    """Decodes one prompt, in which `MASK` is a hole: its tokens from the first mask on, and its passes."""
    length, lookahead = options["block_length"], options.get("lookahead")
    temperature, ends = options.get("temperature", 0.0), set(STOPS) if options.get("stop_early", True) else set()
    tokens: list[int | None] = [*(None if token == MASK else token for token in prompt), *[None] * NEW]
    given = [p for p, token in enumerate(tokens) if token is not None]
    origin, masks_at_start, tail = tokens.index(None), tokens.count(None), max(given, default=-1) + 1
    kept, held, passes, block, earlier = Kept(), set(), [], None, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "attention", kept)
        while None in tokens:
            first = tokens.index(None)
            begin = first - (first - origin) % length
            end = min(len(tokens), begin + length)
            inner = list(range(begin - case.shifted, end))
            if block != begin:
                last_one = len(tokens) if lookahead is None else min(len(tokens), end + lookahead)
                seen_once = [*range(last_one), *(p for p in given if last_one <= p < len(tokens))]
                block, held, around = begin, set(), [p for p in seen_once if p not in inner]
            else:
                held, around = {p for p in held if p < len(tokens)}, []
            kept.keep(held)
            where = [*around, *inner]
            kept.begin(where)
            logits = case.logits([MASK if token is None else token for token in tokens])
            masks = [p for p in sorted(where) if tokens[p] is None]
            rows = {p: logits[p - case.shifted].float().tolist() for p in masks}
            draws = {
                p: oracle.Draw(float(np.float32(temperature)), seed, p, len(passes)) if temperature else None
                for p in masks
            }
            scored = {p: oracle.score_row(rows[p], {MASK}, draws[p]) for p in masks}
            here = [p for p in masks if p < end]
            done = (masks_at_start - tokens.count(None)) / masks_at_start
            seen = Seen(scored, here, done, len(tokens), set(DELIMITERS), ends, rows, MASK, earlier)
            chosen = {p: scored[p].token for p in sorted(RULES[type(scheduler)](scheduler, seen))}
            earlier = [rows, *earlier]
            passes.append(Pass(where, len(around), len(held), chosen))
            held = held | set(around)
            for p, token in chosen.items():
                tokens[p] = token
            if stop := [p for p, token in chosen.items() if token in ends]:
                tokens = tokens[: max(tail, min(stop) + 1)]
    return tokens[origin:], passes


class Watched:
    """A model that writes down its passes: of each sequence the positions, how many are appended, how many are held."""

    def __init__(self, inner: Transformer) -> None:
        self.inner, self.passes = inner, []
        self.config, self.device, self.lm_head, self.cached = inner.config, inner.device, inner.lm_head, True

    def new_cache(self, batch: int, capacity: int) -> PrefixCache:
        cache = self.inner.new_cache(batch, capacity)
        for tensor in (*cache.k, *cache.v):  # a slot that is read before it is written shows
            tensor.fill_(torch.nan)
        return cache

    def __call__(self, tokens: Tensor, positions: Tensor, borders: Tensor, cache: PrefixCache, append: list) -> Tensor:
        held = cache.frozen
        cut = list(pairwise(borders.tolist()))
        self.passes.append([(positions[a:b].tolist(), append[i], held[i]) for i, (a, b) in enumerate(cut)])
        return self.inner(tokens, positions, borders, cache, append)


@pytest.mark.parametrize(
    ("name", "loop"),
    [
        *product(("islands", "threshold"), OPTIONS),
        *product(("prefix", "stable", "less", "klass", "factor"), ["blocks of 4"]),
    ],
)
def test_decoding_is_that_of_a_model_that_keeps_k_and_v_by_position(
    exact: Transformer, case: Case, name: str, loop: str
) -> None:
    check_decoding(exact, case, [ids_of(case, n, seed=n) for n in LENGTHS], SCHEDULERS[name], OPTIONS[loop])


@pytest.mark.parametrize(
    ("name", "loop"),
    [
        *product(["threshold"], OPTIONS),
        *product(("islands", "prefix"), ["blocks of 4", "lookahead"]),
        *product(("klass", "entropy"), ["lookahead"]),
    ],
)
def test_holes_are_filled_as_by_a_model_that_keeps_k_and_v_by_position(
    exact: Transformer, case: Case, name: str, loop: str
) -> None:
    """What is given right of the block is kept with the masks of the suffix, also past the lookahead."""
    prompts = []
    for n, holes in ((17, [(1, 4), (7, 9)]), (6, [(2, 3)]), (21, [(4, 5), (8, 14), (18, 21)]), (5, [])):
        prompt = ids_of(case, n, seed=n)
        for begin, end in holes:
            prompt[begin:end] = [MASK] * (end - begin)
        prompts.append(prompt)
    check_decoding(exact, case, prompts, SCHEDULERS[name], OPTIONS[loop])


def check_decoding(
    exact: Transformer, case: Case, prompts: list[list[int]], scheduler: lsp.Scheduler, options: dict
) -> None:
    """The loop's tokens and passes are those of the simulation, alone and with seats."""
    seeds = [3, 2**40, -1, 3]
    expected = [simulate(case, p, scheduler, s, **options) for p, s in zip(prompts, seeds, strict=True)]
    known = Vocabulary(case.vocab_size, DELIMITERS, STOPS)
    for batch_size in (None, 2):
        model = Watched(exact)
        given = lsp.Options(cache="dual", **options)
        end = last(lsp.decode(model, prompts, NEW, scheduler, known, given, seeds, batch_size))
        places = seated([len(passes) for _, passes in expected], batch_size or len(prompts))
        for canvas, (tokens, passes), mine in zip(end.canvases, expected, places, strict=True):
            assert canvas.run.tolist() == tokens
            assert commits(canvas) == [len(each.chosen) for each in passes]
            assert [model.passes[at][seat] for at, seat in mine] == [
                (each.positions, each.append, each.held) for each in passes
            ]
            assert canvas.positions == sum(len(each.positions) for each in passes)


def test_masks_of_the_suffix_are_predicted_by_their_own_rows(exact: Transformer, case: Case) -> None:
    """Those of the first pass, which has them before the block; a shifted model predicts the first from the block."""
    prompt, seen = ids_of(case, 5, seed=2), []

    def watch(step: lsp.decoding.Step) -> list:
        (canvas,) = step.canvases
        seen.append((canvas.masks_in_pass, step.stats([canvas.masks_in_pass])[0]))
        return lsp.Full()(step)

    options = lsp.Options(cache="dual", block_length=4)
    next(loop := lsp.decode(exact, [prompt], NEW, watch, Vocabulary(case.vocab_size), options))
    next(loop)
    where, stats = seen[0]
    assert where.tolist() == list(range(5, 5 + NEW))
    logits = case.logits([*prompt, *[MASK] * NEW])[where - case.shifted]
    logits[:, MASK] = -torch.inf
    assert stats.tokens.tolist() == logits.argmax(-1).tolist()
    best = logits.topk(2).values
    np.testing.assert_allclose(stats.margins, (best[:, 0] - best[:, 1]).numpy(), rtol=1e-4, atol=1e-4)


def test_the_cases_show_what_they_are_for() -> None:
    """Stops inside a block, so that the suffix is dropped, and texts that another cache would not give."""
    dropped, different = 0, 0
    for case in CASES.values():
        for n in LENGTHS:
            prompt = ids_of(case, n, seed=n)
            options = {"block_length": 4}
            tokens, passes = simulate(case, prompt, SCHEDULERS["threshold"], 0, **options)
            dropped += any(after.held < before.held + before.append for before, after in pairwise(passes))
            different += tokens != uncached(case, prompt, SCHEDULERS["threshold"], **options)
    assert dropped > 0
    assert different > 0


def uncached(case: Case, prompt: list[int], scheduler: object, **options: object) -> list[int]:
    from tests.lsp.simulation import simulate as simulate_uncached

    given = {"mask": MASK, "shifted": case.shifted, "stops": STOPS, "delimiters": DELIMITERS, "cache": "none"}
    return simulate_uncached(lambda ids: case.logits(ids).tolist(), prompt, NEW, scheduler, **given, **options).tokens


def test_a_stop_in_the_block_drops_the_suffix_from_the_cache() -> None:
    model = Watched(lsp.load("tiny"))

    def stop_first(step: lsp.decoding.Step) -> list:
        (canvas,) = step.canvases
        masks = canvas.masks
        return [(masks[-1:], np.array([5]))] if canvas.passes == 0 else lsp.FixedPrefix(1)(step)

    options = lsp.Options(cache="dual", block_length=4)
    last(lsp.decode(model, [[20, 21, 22]], 12, stop_first, Vocabulary(model.config.vocab_size, stops=[5]), options))
    first, *others = [each[0] for each in model.passes]
    assert first == ([0, 1, 2, *range(7, 15), 3, 4, 5, 6], 11, 0)
    assert others == [([3, 4, 5, 6], 0, 3)] * 3


def test_each_block_computes_everything_once_and_then_itself_alone() -> None:
    model = Watched(lsp.load("tiny"))
    options = lsp.Options(cache="dual", block_length=4, stop_early=False)
    end = last(lsp.decode(model, [[20, 21, 22]], 8, lsp.FixedPrefix(2), Vocabulary(model.config.vocab_size), options))
    assert [each[0] for each in model.passes] == [
        ([0, 1, 2, 7, 8, 9, 10, 3, 4, 5, 6], 7, 0),
        ([3, 4, 5, 6], 0, 7),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 7, 0),
        ([7, 8, 9, 10], 0, 7),
    ]
    assert end.canvases[0].positions == 11 + 4 + 11 + 4


def test_texts_do_not_depend_on_the_seats() -> None:
    model, prompts = lsp.load("tiny"), [f"Use {a}, 5 and 7 to make {a + 12}.\n" for a in range(1, 7)]
    given = {"max_new_tokens": 32, "scheduler": lsp.Threshold(0.9), "cache": "dual", "block_length": 8}
    together = lsp.generate(model, prompts, batch_size=3, **given)
    alone = [lsp.generate(model, prompt, **given)[0] for prompt in prompts]
    assert [(a.text, a.passes, a.positions) for a in together] == [(a.text, a.passes, a.positions) for a in alone]


def test_what_makes_no_sense_is_refused_by_name() -> None:
    model = lsp.adapt(lambda ids: torch.zeros(1, ids.size(1), 4), vocab_size=4, mask_id=3)
    given = {"max_new_tokens": 4, "cache": "dual", "block_length": 2}
    with pytest.raises(ValueError, match=r"Invalid cache: 'dual' expects a model with a cache \(lsp\.load\), got one"):
        lsp.generate(model, [[1]], scheduler="full", **given)
    for scheduler in ("prophet", "sched"):
        with pytest.raises(ValueError, match=r"Invalid cache: expected every mask in the pass with .*, got 'dual'"):
            lsp.generate(lsp.load("tiny"), [[20]], scheduler=scheduler, **given)
    with pytest.raises(ValueError, match=r"Invalid cfg_scale: expected 0 with cache='dual', got 1\.5"):
        lsp.generate(lsp.load("tiny"), [[20]], scheduler="full", cfg_scale=1.5, **given)

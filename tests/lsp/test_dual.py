"""The dual cache, of Fast-dLLM, AdaBlock and DSB, against a plain model that keeps K/V by position."""

from __future__ import annotations

from collections import deque
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
OPTIONS: dict[str, dict] = {
    "blocks of 4": {"block_length": 4},
    "blocks of 5, the tail too": {"block_length": 5, "stop_early": False},
    "lookahead": {"block_length": 4, "lookahead": 3},
    "nothing ahead": {"block_length": 6, "lookahead": 0},
    "one block": {"block_length": 50},
    "noise": {"block_length": 4, "temperature": 0.7},
    "a window": {"block_length": 4, "recompute": 3},
    "by delimiters": {"block_length": 5, "blocks": "delimiter", "delimiter_confidence": 0.05},
    "by delimiters, lookahead": {
        **{"block_length": 2, "blocks": "delimiter", "delimiter_confidence": 0.02},
        **{"lookahead": 2, "recompute": 2},
    },
    "sliding": {"block_length": 4, "blocks": "sliding", "recompute": 3},
    "sliding, the tail too": {"block_length": 6, "blocks": "sliding", "recompute": 1, "stop_early": False},
    "sliding without a window": {"block_length": 3, "blocks": "sliding"},
    "sliding, lookahead": {"block_length": 3, "blocks": "sliding", "recompute": 2, "lookahead": 2},
    "growing": {"block_length": 4, "blocks": "growing", "recompute": 3},
    "growing, lookahead": {"block_length": 3, "blocks": "growing", "recompute": 20, "lookahead": 0},
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
    """What a pass covers, how much of it is appended, how much is held before, and what it commits.

    `twins` are the positions that it covers of the twin, with guidance.
    """

    positions: list[int]
    append: int
    held: int
    chosen: dict[int, int]
    twins: list[int]


@dataclass
class Half:
    """A sequence, or with guidance its twin: which positions it has K and V of."""

    kept: Kept = field(default_factory=Kept)
    known: set[int] = field(default_factory=set)

    def logits(self, case: Case, tokens: list[int], where: list[int], anew: bool) -> tuple[Tensor, int]:
        """Of a pass over these positions, which sees what is known of all others; and how many these are."""
        held = set() if anew else {p for p in self.known if p not in where and p < len(tokens)}
        self.kept.keep(held)
        self.kept.begin(where)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain, "attention", self.kept)
            out = case.logits(tokens)
        self.known = held | set(where)
        return out, len(held)


def simulate(
    case: Case, prompt: list[int], scheduler: object, seed: int, negative: list[int] | None = None, **options: object
) -> tuple[list[int], list[Pass]]:
    """Decodes one prompt, in which `MASK` is a hole: its tokens from the first mask on, and its passes."""
    temperature, ends = options.get("temperature", 0.0), set(STOPS) if options.get("stop_early", True) else set()
    scale = options.get("cfg_scale", 0.0)
    tokens: list[int | None] = [*(None if token == MASK else token for token in prompt), *[None] * NEW]
    given = [p for p, token in enumerate(tokens) if token is not None]
    origin, masks_at_start, tail = tokens.index(None), tokens.count(None), max(given, default=-1) + 1
    own, twin, passes, earlier, blocks = Half(), Half(), [], [], Blocks(origin, masks_at_start, options)
    while None in tokens:
        ids = [MASK if token is None else token for token in tokens]
        anew = blocks.begins(tokens)
        where = blocks.everything(tokens, given) if anew else blocks.alone(case.shifted)
        logits, held = own.logits(case, ids, where, anew)
        other = [MASK if p in given else token for p, token in enumerate(ids)]
        twins, lead = where if scale else [], 0
        if scale and negative is not None:
            other, lead = [*negative, *ids[len(prompt) :]], len(negative) - len(prompt)
            twins = sorted({p + lead for p in where if p + lead >= 0} | set(range(len(negative) if anew else 0)))
        if scale:
            without = twin.logits(case, other, twins, anew)[0]
            without = torch.cat([torch.full_like(logits, torch.nan), without])[-len(logits) :]  # aligned at the end
            logits = without + (scale + 1) * (logits - without)
        masks = [p for p in where if tokens[p] is None]
        rows = {p: logits[p - case.shifted].float().tolist() for p in masks}
        drawn = {
            p: oracle.Draw(float(np.float32(temperature)), seed, p, len(passes)) if temperature else None for p in masks
        }
        scored = {p: oracle.score_row(rows[p], {MASK}, drawn[p]) for p in masks}
        blocks.settle(scored)
        here = [p for p in masks if p < blocks.end]
        done = (masks_at_start - tokens.count(None)) / masks_at_start
        seen = Seen(scored, here, done, len(tokens), set(DELIMITERS), ends, rows, MASK, earlier)
        chosen = {p: scored[p].token for p in sorted(RULES[type(scheduler)](scheduler, seen))}
        earlier = [rows, *earlier]
        blocks.committed += len(chosen)
        passes.append(Pass(where, len(where) if anew or blocks.slide else 0, held, chosen, twins))
        for p, token in chosen.items():
            tokens[p] = token
        if stop := [p for p, token in chosen.items() if token in ends]:
            tokens = tokens[: max(tail, min(stop) + 1)]
    return tokens[origin:], passes


class Blocks:
    """Where the block of each pass begins and ends, and which pass computes everything."""

    def __init__(self, origin: int, masks: int, options: dict) -> None:
        self.origin, self.masks, self.options = origin, masks, options
        self.kind, self.length = options.get("blocks", "fixed"), options["block_length"]
        self.slide = self.kind in ("sliding", "growing")
        self.begin = self.end = self.before = -1
        self.settled, self.committed = True, 0

    def begins(self, tokens: list[int | None]) -> bool:
        """Moves on to the block of the next pass; whether that computes everything."""
        first, self.before = tokens.index(None), self.begin
        over = self.committed >= self.length if self.slide else not self.begin <= first < self.end
        anew = self.begin < 0 or over
        if anew:
            self.committed = 0
        if self.kind == "fixed":
            self.begin = first - (first - self.origin) % self.length
            self.end = self.begin + self.length
        elif self.kind == "delimiter" and anew:
            self.begin, self.settled = first, False
            self.end = first + max(self.length, self.masks // 4)
        elif self.kind == "sliding":
            self.begin, self.end = first, first + self.length
        elif self.kind == "growing":
            open_ = [p for p, token in enumerate(tokens) if token is None]
            self.begin = first
            self.end = open_[self.length - 1] + 1 if len(open_) >= self.length else len(tokens)
        self.end = min(self.end, len(tokens))
        return anew

    def everything(self, tokens: list[int | None], given: list[int]) -> list[int]:
        ahead = self.options.get("lookahead")
        last = len(tokens) if ahead is None else min(len(tokens), self.end + ahead)
        return [*range(last), *(p for p in given if last <= p < len(tokens))]

    def alone(self, shifted: bool) -> list[int]:
        """The block, and before it the window, or all that was left behind since the last pass if that is more."""
        window = max(self.options.get("recompute", 0), int(shifted), self.begin - self.before if self.slide else 0)
        return [*range(max(0, self.begin - window), self.end)]

    def settle(self, scored: dict[int, oracle.Row]) -> None:
        if self.settled:
            return
        self.settled = True
        found = [p for p in scored if p < self.begin + self.masks // 4 and scored[p].token in DELIMITERS]
        best = max(found, key=lambda p: scored[p].log_odds, default=None)
        sure = best is not None and 1 / (1 + np.exp(-scored[best].log_odds)) >= self.options["delimiter_confidence"]
        self.end = best + 1 if sure else min(self.end, self.begin + self.length)


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
        for layer in (*cache.k, *cache.v):  # so does a slot that is read after it was given up
            for row, length in enumerate(held):
                layer[row, :, length:] = torch.nan
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
    check_decoding(exact, case, with_holes(case), SCHEDULERS[name], OPTIONS[loop])


def with_holes(case: Case) -> list[list[int]]:
    prompts = []
    for n, holes in ((17, [(1, 4), (7, 9)]), (6, [(2, 3)]), (21, [(4, 5), (8, 14), (18, 21)]), (5, [])):
        prompt = ids_of(case, n, seed=n)
        for begin, end in holes:
            prompt[begin:end] = [MASK] * (end - begin)
        prompts.append(prompt)
    return prompts


@pytest.mark.parametrize("loop", ["blocks of 4", "by delimiters", "sliding", "growing, lookahead"])
@pytest.mark.parametrize("kind", ["masks", "holes", "negative"])
def test_guidance_is_that_of_two_such_models(exact: Transformer, case: Case, kind: str, loop: str) -> None:
    """The twin has a cache of its own, in which a negative prompt may be longer or shorter."""
    prompts, negatives = [ids_of(case, n, seed=n) for n in LENGTHS], None
    if kind == "holes":
        prompts = with_holes(case)
    elif kind == "negative":
        negatives = [ids_of(case, 5, seed=9), None, ids_of(case, 1, seed=8), ids_of(case, 11, seed=7)]
    check_decoding(exact, case, prompts, SCHEDULERS["threshold"], {**OPTIONS[loop], "cfg_scale": 1.5}, negatives)


def check_decoding(
    exact: Transformer,
    case: Case,
    prompts: list[list[int]],
    scheduler: lsp.Scheduler,
    options: dict,
    negatives: list | None = None,
) -> None:
    """The loop's tokens and passes are those of the simulation, alone and with seats."""
    seeds = [3, 2**40, -1, 3]
    each = zip(prompts, seeds, negatives or [None] * len(prompts), strict=True)
    expected = [simulate(case, p, scheduler, s, negative, **options) for p, s, negative in each]
    known = Vocabulary(case.vocab_size, DELIMITERS, STOPS)
    for batch_size in (None, 2):
        model = Watched(exact)
        given = lsp.Options(cache="dual", **options)
        run = lsp.decode(model, prompts, NEW, scheduler, known, given, seeds, batch_size, negatives=negatives)
        end = last(run)
        places = seated([len(passes) for _, passes in expected], batch_size or len(prompts))
        for canvas, (tokens, passes), mine in zip(end.canvases, expected, places, strict=True):
            assert canvas.run.tolist() == tokens
            assert commits(canvas) == [len(each.chosen) for each in passes]
            found = [model.passes[at][seat] for at, seat in mine]
            assert [(sorted(where), append, held) for where, append, held in found] == [
                (each.positions, each.append, each.held) for each in passes
            ]
            assert canvas.positions == sum(len(each.positions) + len(each.twins) for each in passes)


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
    """Texts that another cache would not give, stops inside a block, blocks that end at a delimiter and others."""
    different, stopped, lengths = 0, 0, set()
    for case, n in product(CASES.values(), LENGTHS):
        prompt = ids_of(case, n, seed=n)
        for name in ("blocks of 4", "by delimiters", "sliding", "growing"):
            tokens, passes = simulate(case, prompt, SCHEDULERS["threshold"], 0, **OPTIONS[name])
            different += tokens != uncached(case, prompt, SCHEDULERS["threshold"], **OPTIONS[name])
            stopped += len(tokens) < NEW
            if name == "by delimiters":
                lengths |= {len(each.positions) - case.shifted for each in passes if not each.append}
    assert different > 0
    assert stopped > 0
    assert len(lengths) > 2
    assert OPTIONS["by delimiters"]["block_length"] in lengths


def passes_of_dsb(prompt: int, new: int, length: int, window: int, greedy: bool, commits: list[list[int]]) -> list:
    """Which positions each pass of DSB's own code covers, by its bookkeeping, if the passes commit these positions."""
    out, begin, end, total, queue = [], prompt, prompt + length, 0, deque(commits)
    open_ = set(range(prompt, prompt + new))
    while total < new:
        out.append([*range(prompt + new)])
        since = 0  # the last pass over everything
        while True:
            done = queue.popleft()
            assert all(begin <= p < end for p in done)
            open_ -= set(done)
            since, total = since + len(done), total + len(done)
            moved = min((p for p in open_ if p < end), default=end) - begin
            begin += moved
            end = min(prompt + length + total, prompt + new if greedy else begin + length)
            if since >= length or total == new:
                break
            out.append([*range(begin - min(max(moved, window), begin), min(end, prompt + new))])
    assert not queue
    return out


@pytest.mark.parametrize("blocks", ["sliding", "growing"])
@pytest.mark.parametrize(
    ("length", "window", "p"), [(8, 6, 0.9), (8, 2, 0.5), (5, 30, 0.7), (4, 0, 0.3), (40, 24, 0.9)]
)
def test_passes_and_positions_are_those_that_dsbs_code_counts(blocks: str, length: int, window: int, p: float) -> None:
    model = Watched(lsp.load("tiny"))
    prompts = [list(lsp.load_tokenizer("tiny").encode(f"Use {a}, 5 and 7 to make {a + 12}.\n")) for a in (3, 4, 8)]
    options = lsp.Options(length, blocks, cache="dual", recompute=window, stop_early=False)
    for prompt in prompts:
        model.passes = []
        vocabulary = Vocabulary(model.config.vocab_size)
        (canvas,) = last(lsp.decode(model, [prompt], 32, lsp.Threshold(p), vocabulary, options)).canvases
        chosen = [np.flatnonzero(canvas.committed_in == number).tolist() for number in range(canvas.passes)]
        expected = passes_of_dsb(len(prompt), 32, length, window, blocks == "growing", chosen)
        assert [sorted(where) for ((where, _, _),) in model.passes] == expected
        assert (canvas.passes, canvas.positions) == (len(expected), sum(map(len, expected)))


@pytest.mark.parametrize("scheduler", [lsp.AdaBlock(), lsp.SlidingBlock()], ids=lambda each: each.key)
@pytest.mark.parametrize("graph", [False, True])
def test_the_rivals_answer_alike_in_any_batch_and_in_graphs(scheduler: lsp.Scheduler, graph: bool) -> None:
    model, prompts = lsp.load("tiny"), [f"Use {a}, 5 and 7 to make {a + 12}.\n" for a in range(1, 5)]
    given = {"max_new_tokens": 40, "scheduler": scheduler, "cache": "dual", "block_length": 8}
    together = lsp.generate(model, prompts, batch_size=3, graph=graph, **given)
    alone = [lsp.generate(model, prompt, **given)[0] for prompt in prompts]
    assert [(a.text, a.passes, a.positions) for a in together] == [(a.text, a.passes, a.positions) for a in alone]


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
    assert first == ([0, 1, 2, *reversed(range(3, 15))], 15, 0)
    assert others == [([3, 4, 5, 6], 0, 3)] * 3


def test_each_block_computes_everything_once_and_then_itself_alone() -> None:
    model = Watched(lsp.load("tiny"))
    options = lsp.Options(cache="dual", block_length=4, stop_early=False)
    end = last(lsp.decode(model, [[20, 21, 22]], 8, lsp.FixedPrefix(2), Vocabulary(model.config.vocab_size), options))
    assert [each[0] for each in model.passes] == [
        ([0, 1, 2, 10, 9, 8, 7, 6, 5, 4, 3], 11, 0),
        ([3, 4, 5, 6], 0, 7),
        ([0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7], 11, 0),
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

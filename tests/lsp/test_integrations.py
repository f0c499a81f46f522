"""The drop-ins, called as the other codebases call them, against the formulas that they replace.

The formulas are written here once more, from a softmax in float64; nothing of them is shared with the package.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lsp
from lsp.integrations.dinfer import PrefixParallelDecoder, ThresholdParallelDecoder
from lsp.integrations.dream import Finished, generation_hooks
from lsp.integrations.fast_dllm import get_transfer_index
from lsp.integrations.llada import generate
from lsp_kernels import PrefixRule, Vocabulary
from tests import oracle

SIZE, MASK, STOP = 60, 59, 58
CLOSE = 1e-6  # confidences nearer than this may come in either order
GUARDED = PrefixRule.guarded()
REFUSED = {
    "noise": ("temperature", 0.5, "Invalid temperature: expected 0, as decoding is greedy, got 0.5"),
    "random": ("remasking", "random", "Invalid remasking: expected 'low_confidence', got 'random'"),
}


class Masked(nn.Module):
    """Somebody's masked language model: attention in both directions, a config, a device, an output with logits."""

    def __init__(self, seed: int = 0, width: int = 32, sharp: float = 3.0, config: bool = True) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        weights = {"ids": (SIZE, width), "places": (64, width), "q": (width, width), "k": (width, width)}
        for name, shape in {**weights, "v": (width, width), "head": (width, SIZE)}.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=g) * 0.4))
        self.sharp, self.passes, self.device = sharp, 0, torch.device("cpu")
        if config:
            self.config = SimpleNamespace(vocab_size=SIZE, mask_token_id=MASK, eos_token_id=STOP)

    def forward(self, input_ids: Tensor, attention_mask: object = None, tok_idx: object = None) -> SimpleNamespace:
        self.passes += 1
        h = self.ids[input_ids] + 3 * self.places[: input_ids.size(1)]
        mixed = ((h @ self.q) @ (h @ self.k).mT / 8).softmax(-1) @ h @ self.v
        logits = (torch.tanh(h + mixed) @ self.head) * self.sharp
        logits[..., MASK] = -1e4  # a trained model never predicts the mask
        return SimpleNamespace(logits=logits)


def prompt_of(batch: int = 1, length: int = 6, seed: int = 0) -> Tensor:
    return torch.randint(0, STOP, (batch, length), generator=torch.Generator().manual_seed(seed))


def canvas_of(prompt: Tensor, masks: int) -> Tensor:
    return torch.cat([prompt, torch.full((len(prompt), masks), MASK)], dim=1)


def probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best tokens and their float64 confidence."""
    p = torch.softmax(logits.to(torch.float64), dim=-1)
    tokens = torch.argmax(logits, dim=-1)
    return tokens, torch.gather(p, -1, tokens[..., None]).squeeze(-1)


# Fast-dLLM and d3LLM


def original_transfer(
    logits: Tensor, mask_index: Tensor, x: Tensor, counts: Tensor | None, threshold: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """x0, transfer_index, and the confidence behind them."""
    tokens, p = probabilities(logits)
    confidence = torch.where(mask_index, p, -torch.inf)
    chosen = torch.zeros_like(mask_index)
    for j in range(len(x)):
        k = int(mask_index[j].sum()) if counts is None else min(int(counts[j]), int(mask_index[j].sum()))
        values, order = torch.topk(confidence[j], k)
        keep = torch.ones(k, dtype=torch.bool) if threshold is None else values >= threshold
        keep[:1] = True
        chosen[j, order[keep]] = True
    return torch.where(mask_index, tokens, x), chosen, confidence


@st.composite
def transfers(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float | None]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch, length, size = draw(st.integers(1, 3)), draw(st.integers(1, 14)), draw(st.sampled_from([2, 7, 300, 1100]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    scale = draw(st.sampled_from([0.5, 2.0, 6.0, 20.0]))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    whole = torch.from_numpy(rng.normal(size=(batch, before + length + after, size)) * scale).to(dtype)
    mask_index = torch.from_numpy(rng.random((batch, length)) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])))
    x = torch.from_numpy(rng.integers(0, size, (batch, length)))
    if draw(st.booleans()):
        threshold = draw(st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.99, 1.0]))
        return whole[:, before : before + length], mask_index, x, None, threshold
    counts = torch.from_numpy(rng.integers(0, length + 1, (batch, 4)))[:, 1]  # a column, as Fast-dLLM passes it
    return whole[:, before : before + length], mask_index, x, counts, None


@settings(max_examples=400, deadline=None)
@given(transfers())
def test_transfers_are_those_of_the_formula(case) -> None:
    logits, mask_index, x, counts, threshold = case
    kept = x.clone()
    x0, transfer_index = get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, counts, threshold)
    tokens, expected, confidence = original_transfer(logits, mask_index, x, counts, threshold)
    assert torch.equal(x, kept)
    assert (x0.dtype, transfer_index.dtype) == (torch.int64, torch.bool)
    assert torch.equal(x0[~mask_index], x[~mask_index])
    assert not (transfer_index & ~mask_index).any()
    best = logits.float().amax(-1)  # equal logits: either token
    assert torch.equal(logits.float().gather(-1, x0[..., None])[..., 0][mask_index], best[mask_index])
    assert ((x0 == tokens) | (logits == best[..., None]).sum(-1).gt(1)).all()
    for j in range(len(x)):
        differ = transfer_index[j] ^ expected[j]
        if not differ.any():
            continue
        if threshold is None:
            assert transfer_index[j].sum() == expected[j].sum()
            border = confidence[j][expected[j]].min()
            assert ((confidence[j][differ] - border).abs() < CLOSE).all()
        else:
            near = (confidence[j][differ] - threshold).abs() < CLOSE
            assert (near | ((confidence[j].max() - confidence[j][differ]).abs() < CLOSE)).all()


def test_a_confidence_that_equals_the_threshold_reaches_it() -> None:
    logits = torch.tensor([[[3.0, 3.0], [9.0, 0.0], [0.0, 90.0], [70.0, 0.0]]])
    x, masked = torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool)
    for threshold in (0.5, 1.0):
        _, expected, _ = original_transfer(logits, masked, x, None, threshold)
        _, chosen = get_transfer_index(logits, 0.0, "low_confidence", masked, x, None, threshold)
        assert torch.equal(chosen, expected)
        assert chosen.sum() == (4 if threshold == 0.5 else 2)


def fast_dllm_loop(model: nn.Module, prompt: Tensor, transfer: Callable, threshold: float | None) -> tuple[Tensor, int]:
    """Fast-dLLM's loop without a cache: 24 masks in blocks of 8, two tokens a step or a threshold."""
    x, start, length, steps = canvas_of(prompt, 24), prompt.shape[1], 8, 4
    for block in range(3):
        begin, end = start + block * length, start + (block + 1) * length
        num_transfer_tokens = torch.full((len(x), steps), length // steps)
        i = 0
        while (x[:, begin:end] == MASK).any():
            mask_index = x == MASK
            mask_index[:, end:] = 0
            logits = model(x).logits
            count = num_transfer_tokens[:, i] if threshold is None else None
            x0, transfer_index = transfer(logits, 0.0, "low_confidence", mask_index, x, count, threshold)
            x[transfer_index] = x0[transfer_index]
            i += 1
    return x, model.passes


@torch.no_grad()
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_the_loop_of_fast_dllm_writes_the_same_text(threshold: float | None) -> None:
    def formula(logits, temperature, remasking, mask_index, x, count, threshold):
        return original_transfer(logits, mask_index, x, count, threshold)[:2]

    ours = fast_dllm_loop(Masked(), prompt_of(2), get_transfer_index, threshold)
    theirs = fast_dllm_loop(Masked(), prompt_of(2), formula, threshold)
    assert ours[1] == theirs[1]
    assert torch.equal(ours[0], theirs[0])
    assert len(set(ours[0][:, 6:].flatten().tolist())) > 10


@pytest.mark.abuse("prompts and generation")
def test_what_a_step_cannot_do_is_refused() -> None:
    x, logits = canvas_of(prompt_of(2), 4), torch.randn(2, 10, SIZE)
    given = {"logits": logits, "temperature": 0.0, "remasking": "low_confidence", "mask_index": x == MASK, "x": x}
    given |= {"num_transfer_tokens": torch.tensor([1, 1]), "threshold": None}
    nan = logits.clone()
    nan[1, 7, 3] = torch.nan
    for name, value, message in [
        *REFUSED.values(),
        ("logits", logits[0], r"Invalid shape of logits: expected \[B, L, V\], got \[10, 60\]"),
        (
            "logits",
            logits.double(),
            "Invalid dtype of logits: expected float32, bfloat16 or float16, got torch.float64",
        ),
        ("logits", nan, "Invalid logits: expected numbers, got NaN at a masked position"),
        ("x", x[:, 1:], r"Invalid shape of x: expected \[2, 10\] as the logits, got \[2, 9\]"),
        ("x", x.int(), "Invalid dtype of x: expected int64, got torch.int32"),
        ("mask_index", (x == MASK)[:, 1:], r"Invalid shape of mask_index: expected \[2, 10\] as x, got \[2, 9\]"),
        ("mask_index", x, "Invalid dtype of mask_index: expected bool, got torch.int64"),
        ("num_transfer_tokens", None, r"Invalid num_transfer_tokens: expected integers \[B\] without a threshold"),
        ("num_transfer_tokens", torch.tensor([1]), r"Invalid shape of num_transfer_tokens: expected \[2\] or \[2, 1\]"),
        ("num_transfer_tokens", torch.tensor([1.0, 1]), "Invalid dtype of num_transfer_tokens: expected integers"),
        ("num_transfer_tokens", [1, 11], r"Invalid num_transfer_tokens\[1\]: expected 0 to 10, got 11"),
        ("threshold", "0.9", "Invalid threshold: expected a number or None, got '0.9'"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            get_transfer_index(**{**given, name: value})
    nan[1, 7, 3], nan[1, 2, 3] = 0.0, torch.nan  # a row that nobody looks at
    column = given | {"logits": nan, "num_transfer_tokens": torch.tensor([[1], [2]])}
    assert get_transfer_index(**column)[1].sum(1).tolist() == [1, 2]


# LSP, from the definition


def prefix_loop(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    rule: PrefixRule,
    delimiters: set[int] = frozenset(),
    stops: set[int] = frozenset(),
    block: int | None = None,
    start: int = 0,
    steps: int = 10**6,
) -> tuple[Tensor, int]:
    """Decodes one row by the oracle; margins are logarithms of ratios of float64 probabilities."""
    x, passes = x.clone(), 0
    while (masks := torch.nonzero(x == MASK)[:, 0].tolist()) and passes < steps:
        passes += 1
        logits = model(x[None])[0]
        if block is not None:
            masks = [m for m in masks if m < start + ((masks[0] - start) // block + 1) * block]
        top = torch.softmax(logits[masks].double(), -1).topk(2).values.log()
        tokens = logits[masks].argmax(-1).tolist()
        length, finished = oracle.select((top[:, 0] - top[:, 1]).tolist(), tokens, rule, delimiters, stops)
        if passes == steps:
            length = len(masks)
        x[masks[:length]] = torch.tensor(tokens[:length])
        if finished:
            x[x == MASK] = tokens[length - 1]
    return x, passes


# LLaDA


def llada_loop(model: nn.Module, prompt: Tensor, steps: int, gen_length: int, block_length: int) -> Tensor:
    """LLaDA's formula: in each step of a block the most confident masks, as many as the schedule says."""
    x, start, blocks = canvas_of(prompt, gen_length), prompt.shape[1], gen_length // block_length
    for block in range(blocks):
        for _ in range(steps // blocks):
            tokens, confidence = probabilities(model(x, attention_mask=None).logits)
            confidence[:, start + (block + 1) * block_length :] = -torch.inf
            confidence = torch.where(x == MASK, confidence, -torch.inf)
            for j in range(len(x)):
                taken = torch.topk(confidence[j], gen_length // steps).indices
                x[j, taken] = tokens[j, taken]
    return x


@torch.no_grad()
@pytest.mark.parametrize(("k", "block_length"), [(1, 24), (1, 8), (2, 8)])
def test_llada_generates_what_it_did_with_its_own_scheduler(k: int, block_length: int) -> None:
    prompt, model = prompt_of(2, 5), Masked(1)
    expected = llada_loop(model, prompt, 24 // k, 24, block_length)
    x = generate(
        model, prompt, torch.ones_like(prompt), steps=24 // k, gen_length=24, block_length=block_length,
        temperature=0.0, cfg_scale=0.0, remasking="low_confidence", mask_id=MASK, scheduler=lsp.TopK(k),
    )  # fmt: skip
    assert torch.equal(x, expected)
    assert (x.dtype, x.shape) == (torch.int64, (2, 29))
    assert len(set(x[:, 5:].flatten().tolist())) > 10


@torch.no_grad()
@pytest.mark.parametrize("config", [True, False], ids=["config", "no config"])
def test_llada_generates_by_the_longest_stable_prefix(config: bool) -> None:
    model, prompt = Masked(2, sharp=9.0, config=config), prompt_of(3, 5)
    x = generate(model, prompt, steps=7, gen_length=24, block_length=8, mask_id=MASK)
    passes = 0
    for row, ids in zip(x, canvas_of(prompt, 24), strict=True):
        expected, needed = prefix_loop(lambda ids: Masked(2, sharp=9.0)(ids).logits, ids, GUARDED, block=8, start=5)
        assert torch.equal(row, expected)
        passes += needed
    assert model.passes == passes + (not config)
    assert 6 < passes < 3 * 20
    assert len(set(x[:, 5:].flatten().tolist())) > 10


@torch.no_grad()
def test_llada_with_a_vocabulary_snaps_and_stops() -> None:
    model, prompt = Masked(3, sharp=6.0), prompt_of(4, 5)
    rule, delimiters, ended = PrefixRule(floor=2.0, beta=1.0, no_delimiter="keep"), set(range(0, SIZE, 4)), 0
    given = {
        "gen_length": 24,
        "block_length": 24,
        "mask_id": MASK,
        "scheduler": lsp.LongestStablePrefix(rule, islands=None),
    }
    stop = int(generate(model, prompt, vocabulary=Vocabulary(SIZE, delimiters), **given)[0, 14])
    x = generate(model, prompt, vocabulary=Vocabulary(SIZE, delimiters, [stop]), **given)
    for row, ids in zip(x, canvas_of(prompt, 24), strict=True):
        expected, _ = prefix_loop(lambda ids: model(ids).logits, ids, rule, delimiters, {stop})
        assert torch.equal(row, expected)
        ended += int(row[-1] == row[-2] == stop)
    assert ended > 0


def test_llada_decodes_a_loaded_model_on_its_cache() -> None:
    model = lsp.load("tiny")
    ids, mask_id = lsp.load_tokenizer(model)("Use 3, 5 and 7 to make 15.\n")["input_ids"], model.config.mask_id
    vocabulary = lsp.tokens.vocabulary(lsp.load_tokenizer(model), model.config)
    x = generate(model, torch.tensor([ids]), gen_length=32, block_length=32, mask_id=mask_id, vocabulary=vocabulary)
    (expected,) = lsp.generate(model, ids, max_new_tokens=32, block_length=32)
    stop = model.config.stop_ids[0]
    padding = [stop] * (32 - len(expected.tokens))
    assert x[0].tolist() == ids + expected.tokens + padding
    assert len(set(expected.tokens)) > 5
    with pytest.raises(ValueError, match=rf"Invalid mask_id: expected {mask_id} of the model's config, got 126336"):
        generate(model, torch.tensor([ids]))


def test_llada_samples_from_the_global_generator() -> None:
    model, prompt = Masked(4), prompt_of(2, 5)
    texts = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        texts.append(generate(model, prompt, gen_length=8, block_length=8, temperature=1.0, mask_id=MASK))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


@pytest.mark.abuse("prompts and generation")
def test_what_llada_cannot_do_is_refused() -> None:
    model, prompt = Masked(), prompt_of(2, 5)
    padded = torch.ones_like(prompt)
    padded[0, 0] = 0
    given = {"model": model, "prompt": prompt, "gen_length": 8, "block_length": 8, "mask_id": MASK}
    for name, value, message in [
        REFUSED["random"],
        ("temperature", -1.0, "Invalid temperature: expected a .*number >= 0, got -1.0"),
        ("cfg_scale", 1.5, "Invalid cfg_scale: expected 0, as there is no guidance here, got 1.5"),
        ("attention_mask", padded, "Invalid attention_mask: expected no padding, got zeros"),
        ("attention_mask", padded[:, 1:], r"Invalid shape of attention_mask: expected \[2, 5\] as the prompt"),
        ("logits_eos_inf", True, "Invalid logits_eos_inf: expected False, got True; pass a vocabulary"),
        ("confidence_eos_eot_inf", True, "Invalid confidence_eos_eot_inf: expected False, got True"),
        ("block_length", 3, "Invalid block_length: expected a divisor of gen_length = 8, as in LLaDA, got 3"),
        ("gen_length", 0, "Invalid gen_length"),
        ("prompt", prompt[0], r"Invalid shape of prompt: expected \[B, P\], got \[5\]"),
        ("prompt", prompt.float(), "Invalid dtype of prompt: expected integers, got torch.float32"),
        ("prompt", canvas_of(prompt, 1), r"Invalid prompts\[0\]\[5\]: expected no mask in a prompt"),
        ("mask_id", 126336, "Invalid mask_id: expected an id from 0 to 59, got 126336"),
        ("model", 3, "Invalid model: expected a module or a function, got a int"),
        ("vocabulary", Vocabulary(SIZE + 1), r"Invalid logits of the model: expected \[1, 13, 61\], got \[1, 13, 60\]"),
        ("scheduler", "magic", "Invalid scheduler"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            generate(**{**given, name: value})


# Dream


def shifted(logits: Tensor) -> Tensor:
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


def dream_loop(
    model: nn.Module,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    steps: int,
    alg: str,
    generation_tokens_hook_func: Callable = lambda step, x, logits: x,
    generation_logits_hook_func: Callable = lambda step, x, logits: logits,
) -> tuple[Tensor, list[Tensor]]:
    """The calls that Dream's loop makes, in its order, with its own choices in between; also every canvas."""
    x, history = canvas_of(prompt, max_new_tokens), []
    x = generation_tokens_hook_func(None, x, None)
    for i in range(steps):
        mask_index = x == MASK
        logits = generation_logits_hook_func(i, x, shifted(model(x, "full", None).logits))
        p = torch.softmax(logits[mask_index], dim=-1)
        confidence, best = p.max(-1)
        if alg == "topk_margin":
            confidence = torch.sort(p, dim=-1, descending=True).values[:, :2].diff(dim=-1)[:, 0].neg()
        elif alg == "entropy":
            confidence = (p * torch.log(p + 1e-10)).sum(-1)
        count = int(mask_index.sum() / len(x) / (steps - i))
        if alg == "origin":
            x[mask_index] = torch.where(torch.rand(len(best)) < 1 / (steps - i), best, MASK)
        elif count > 0:
            full = torch.full(x.shape, -torch.inf, dtype=logits.dtype)
            full[mask_index] = confidence
            proposed = torch.full_like(x, MASK)
            proposed[mask_index] = best
            where = torch.topk(full, count).indices
            x.scatter_(1, where, proposed.gather(1, where))
        x = generation_tokens_hook_func(i, x, logits)
        history.append(x.clone())
    return x, history


def dream_formula(model: nn.Module, prompt: Tensor, rule: PrefixRule, **options: object) -> tuple[Tensor, list[int]]:
    rows = [prefix_loop(lambda ids: shifted(model(ids).logits), row, rule, **options) for row in canvas_of(prompt, 20)]
    return torch.stack([row for row, _ in rows]), [passes for _, passes in rows]


@torch.no_grad()
@pytest.mark.parametrize("alg", ["origin", "maskgit_plus", "topk_margin", "entropy"])
def test_the_loop_of_dream_commits_prefixes(alg: str) -> None:
    model, prompt = Masked(5, sharp=6.0), prompt_of(3, 5)
    x, history = dream_loop(
        model, prompt, max_new_tokens=20, steps=20, alg=alg, **generation_hooks(steps=20, mask_id=MASK)
    )
    expected, passes = dream_formula(model, prompt, GUARDED)
    assert torch.equal(x, expected)
    assert len(set(x[:, 5:].flatten().tolist())) > 10
    assert 2 < max(passes) < 20  # it was done before Dream was
    for step, canvas in enumerate(history):
        assert [bool((row == MASK).any()) for row in canvas] == [step + 1 < needed for needed in passes]
        for row in canvas:  # what is committed is a prefix
            assert torch.equal(row == MASK, torch.arange(25) >= (row != MASK).sum())


@torch.no_grad()
def test_dream_is_left_when_nothing_is_masked_and_hooks_serve_again() -> None:
    model, prompt = Masked(5, sharp=6.0), prompt_of(2, 5)
    expected, passes = dream_formula(model, prompt, GUARDED)
    hooks = generation_hooks(steps=20, mask_id=MASK, leave_when_finished=True)
    for _ in range(2):
        with pytest.raises(Finished, match=f"no mask is left after {max(passes)} steps") as caught:
            dream_loop(model, prompt, max_new_tokens=20, steps=20, alg="entropy", **hooks)
        assert torch.equal(caught.value.sequences, expected)
        assert caught.value.steps == max(passes)


@torch.no_grad()
def test_the_last_step_of_dream_leaves_no_mask() -> None:
    model, prompt = Masked(6), prompt_of(2, 5)
    x, _ = dream_loop(
        model, prompt, max_new_tokens=20, steps=4, alg="entropy", **generation_hooks(steps=4, mask_id=MASK)
    )
    expected, passes = dream_formula(model, prompt, GUARDED, steps=4)
    assert passes == [4, 4]
    assert torch.equal(x, expected)


@torch.no_grad()
def test_dream_with_a_vocabulary_snaps_and_stops() -> None:
    model, prompt = Masked(7, sharp=6.0), prompt_of(3, 5)
    rule, delimiters = PrefixRule(), set(range(0, SIZE, 4))
    free, _ = dream_formula(model, prompt, rule, delimiters=delimiters)
    stop = int(free[1, 12])
    vocabulary = Vocabulary(SIZE, delimiters, [stop])
    hooks = generation_hooks(steps=20, mask_id=MASK, rule=rule, vocabulary=vocabulary)
    x, _ = dream_loop(model, prompt, max_new_tokens=20, steps=20, alg="entropy", **hooks)
    expected, passes = dream_formula(model, prompt, rule, delimiters=delimiters, stops={stop})
    assert max(passes) < 20
    assert torch.equal(x, expected)
    assert (x[:, -2:] == stop).all(1).any()


def test_dream_fills_masks_that_lie_apart() -> None:
    """An infill: the masks of a row in their order, whatever stands between them."""
    x = torch.randint(0, STOP, (3, 12), generator=torch.Generator().manual_seed(0))
    x[0, [2, 5, 6, 9]] = x[1, 3:7] = MASK
    logits = torch.randn(3, 12, SIZE, generator=torch.Generator().manual_seed(1)) * 3
    logits[..., MASK] = 50.0  # suppressed
    hooks = generation_hooks(steps=9, mask_id=MASK, rule=PrefixRule(snap=False), vocabulary=Vocabulary(SIZE))
    returned = hooks["generation_logits_hook_func"](0, x.clone(), logits)
    assert returned.shape == (3, 12, 2)  # all that Dream's softmax sees
    out = hooks["generation_tokens_hook_func"](0, x, returned)
    hidden = logits.clone()
    hidden[..., MASK] = -torch.inf
    expected = [
        prefix_loop(lambda _, z=z: z[None], row, PrefixRule(snap=False), steps=1)[0]
        for row, z in zip(x, hidden, strict=True)
    ]
    for b in range(3):
        changed = torch.nonzero(out[b] != x[b])[:, 0]
        masks = torch.nonzero(x[b] == MASK)[:, 0]
        assert torch.equal(changed, masks[: len(changed)])
        assert torch.equal(out[b][changed], expected[b][changed])
        assert (len(changed) > 0) == (b < 2)


@pytest.mark.abuse("prompts and generation")
def test_what_the_hooks_cannot_do_is_refused() -> None:
    x, logits = canvas_of(prompt_of(2), 4), torch.randn(2, 10, SIZE)
    hooks = generation_hooks(steps=3, mask_id=MASK)
    on_logits, on_tokens = hooks["generation_logits_hook_func"], hooks["generation_tokens_hook_func"]
    with pytest.raises(ValueError, match="Invalid step: expected 0 to 2, as steps = 3, got 3"):
        on_logits(3, x, logits)
    with pytest.raises(ValueError, match="Invalid step: expected the logits hook to have been called for it, got 0"):
        on_tokens(0, x, logits)
    with pytest.raises(ValueError, match=r"Invalid shape of x: expected \[2, 10\] as the logits, got \[2, 9\]"):
        on_logits(0, x[:, 1:], logits)
    logits[1, 6, 0] = torch.nan
    with pytest.raises(ValueError, match="Invalid logits: expected numbers, got NaN in sequence 1"):
        on_logits(0, x, logits)
    with pytest.raises(ValueError, match="Invalid vocabulary: expected size V = 60, got 61"):
        generation_hooks(steps=3, mask_id=MASK, vocabulary=Vocabulary(61))["generation_logits_hook_func"](0, x, logits)
    with pytest.raises(ValueError, match="Invalid mask_id: expected an id from 0 to 59, got 151666"):
        generation_hooks(steps=3)["generation_logits_hook_func"](0, x, logits)
    with pytest.raises(ValueError, match="Invalid steps"):
        generation_hooks(steps=0)
    with pytest.raises(ValueError, match="Invalid rule: expected a vocabulary with delimiters for snap=True"):
        generation_hooks(steps=3, rule=PrefixRule())


# dInfer


class TokenArray:
    """dInfer's array of ids, as far as a decoder uses it."""

    def __init__(self, prompt: Tensor, gen_length: int) -> None:
        self.data = canvas_of(prompt, gen_length)

    def __getitem__(self, index: object) -> Tensor:
        return self.data[index]

    def __setitem__(self, index: object, values: Tensor) -> None:
        self.data[index] = values


def dinfer_loop(model: nn.Module, prompt: Tensor, decoder: object, *more: float) -> Tensor:
    """dInfer's runner without a cache: 24 masks in blocks of 8."""
    x, start = TokenArray(prompt, 24), prompt.shape[1]
    for block in range(3):
        begin, end = start + 8 * block, start + 8 * (block + 1)
        decoder.block_init(x[:, begin:end], block)
        while (x[:, begin:end] == decoder.mask_id).sum() > 0:
            decoder.decode(model(x.data).logits[:, begin:end], begin, end, x, *more)
    assert not (x.data == decoder.eos_id).any(1).all()
    return x.data


class OriginalThreshold:
    """dInfer's threshold: what reaches it, or comes within 1e-5 of the best; never a mask."""

    mask_id, eos_id = MASK, STOP

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def block_init(self, block_x: Tensor, block_id: int) -> None: ...

    def decode(self, logits: Tensor, begin: int, end: int, x: TokenArray, iter_threshold: float | None = None) -> None:
        ids = x[:, begin:end]
        tokens, p = probabilities(logits)
        open_ = (ids == MASK) & (tokens != MASK)
        confidence = torch.where(open_, p, -torch.inf)
        least = (confidence.max(1).values - 1e-5).clamp(-1000, iter_threshold or self.threshold)
        x[:, begin:end] = torch.where(open_ & (confidence >= least[:, None]), tokens, ids)


@torch.no_grad()
@pytest.mark.parametrize("more", [(), (0.4,)], ids=["threshold", "iter_threshold"])
def test_dinfer_decodes_the_same_by_threshold(more: tuple[float, ...]) -> None:
    models = Masked(8), Masked(8)
    ours = ThresholdParallelDecoder(0, threshold=0.7, mask_id=MASK, eos_id=STOP, use_float64=True)
    x = dinfer_loop(models[0], prompt_of(2, 5), ours, *more)
    assert torch.equal(x, dinfer_loop(models[1], prompt_of(2, 5), OriginalThreshold(0.7), *more))
    assert models[0].passes == models[1].passes < 24
    assert len(set(x[:, 5:].flatten().tolist())) > 10


def test_dinfer_never_writes_a_mask() -> None:
    """Nor does a mask count as the best; and what comes within 1e-5 of the best goes with it."""
    x = canvas_of(prompt_of(3, 5), 4)
    logits = torch.randn(3, 4, SIZE, generator=torch.Generator().manual_seed(0))
    logits[0, 1, MASK] = logits[1, :, MASK] = 99.0
    logits[0, 0, 3] = 6.0
    logits[2, :2] = logits[2, 2]
    logits[2, :2, 3] = torch.tensor([6.0, 6.00005])
    expected = TokenArray(prompt_of(3, 5), 4)
    OriginalThreshold(0.99).decode(logits, 5, 9, expected)
    ThresholdParallelDecoder(0, 0.99, mask_id=MASK, eos_id=STOP).decode(logits, 5, 9, x)
    assert torch.equal(x, expected.data)
    assert (x[:, 5:] != MASK).tolist() == [[True, False, False, False], [False] * 4, [True, True, False, False]]


@torch.no_grad()
def test_dinfer_decodes_by_the_longest_stable_prefix() -> None:
    model, prompt = Masked(9, sharp=6.0), prompt_of(1, 5)
    decoder = PrefixParallelDecoder(temperature=0, mask_id=MASK, eos_id=STOP)
    x = dinfer_loop(model, prompt, decoder)
    passes, canvas = model.passes, canvas_of(prompt, 24)[0]
    expected, needed = prefix_loop(lambda ids: model(ids).logits, canvas, GUARDED, block=8, start=5)
    assert torch.equal(x[0], expected)
    assert passes == needed < 24
    assert len(set(x[0, 5:].tolist())) > 8


def test_dinfer_fills_a_block_after_a_stop() -> None:
    x = canvas_of(prompt_of(2, 5), 16)
    logits = torch.zeros(2, 8, SIZE)
    logits[:, torch.arange(8), torch.arange(10, 18)] = 9.0
    logits[1, 2] = torch.nn.functional.one_hot(torch.tensor(STOP), SIZE) * 9.0
    PrefixParallelDecoder(mask_id=MASK, eos_id=STOP).decode(logits, 5, 13, x)
    assert x[0, 5:13].tolist() == list(range(10, 18))
    assert x[1, 5:13].tolist() == [10, 11] + 6 * [STOP]
    assert (x[:, 13:] == MASK).all()
    other = Vocabulary(SIZE, stops=[12])  # whatever the stop was, dInfer knows its own
    PrefixParallelDecoder(mask_id=MASK, eos_id=STOP, vocabulary=other).decode(logits, 13, 21, x)
    assert x[0, 13:].tolist() == [10, 11, 12] + 5 * [STOP]
    before = copy.deepcopy(x)
    PrefixParallelDecoder(mask_id=MASK, eos_id=STOP).decode(logits, 5, 13, x)  # nothing is masked there
    assert torch.equal(x, before)


@pytest.mark.abuse("prompts and generation")
def test_what_a_decoder_cannot_do_is_refused() -> None:
    for name, value, message in REFUSED.values():
        for make in (PrefixParallelDecoder, ThresholdParallelDecoder):
            required = {"temperature": 0.0} | ({"threshold": 0.9} if make is ThresholdParallelDecoder else {})
            with pytest.raises(ValueError, match=message):
                make(**{**required, name: value})
    x, logits = canvas_of(prompt_of(2), 4), torch.randn(2, 4, SIZE)
    threshold = ThresholdParallelDecoder(0, 0.9, mask_id=MASK, eos_id=STOP)
    prefix = PrefixParallelDecoder(mask_id=MASK, eos_id=STOP)
    with pytest.raises(ValueError, match="Invalid iter_threshold: expected None, as the rule has none"):
        prefix.decode(logits, 6, 10, x, 0.9)
    logits[1, 2, 3] = torch.nan
    for decoder in (threshold, prefix):
        with pytest.raises(
            ValueError, match=r"Invalid shape of logits: expected 3 rows, from 7 to 10 of x, got \[2, 4"
        ):
            decoder.decode(logits, 7, 10, x)
        with pytest.raises(ValueError, match="Invalid logits: expected numbers, got NaN"):
            decoder.decode(logits, 6, 10, x)
    with pytest.raises(ValueError, match="Invalid stops: expected ids from 0 to 59, got 126081"):
        PrefixParallelDecoder(mask_id=MASK).decode(logits, 6, 10, x)
    assert (x == MASK).sum() == 8

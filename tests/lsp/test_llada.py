"""`lsp.integrations.llada`, called as LLaDA calls its own function, against LLaDA's loop and the rule's definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lsp
from lsp.integrations.llada import generate, without
from lsp.schedulers import DreamOrder
from lsp_kernels import PrefixRule, Vocabulary
from tests import oracle
from tests.lsp.foreign import (
    GUARDED,
    MASK,
    REFUSED,
    SIZE,
    Masked,
    canvas_of,
    prefix_loop,
    prompt_of,
)


def llada_loop(
    model: nn.Module,
    prompt: Tensor,
    steps: int,
    gen_length: int,
    block_length: int,
    cfg_scale: float = 0.0,
    never: tuple[int, ...] = (),
    at_last: tuple[int, ...] = (),
) -> Tensor:
    """LLaDA's formula: in each step of a block the most confident masks, as many as the schedule says."""
    x, start, blocks = canvas_of(prompt, gen_length), prompt.shape[1], gen_length // block_length
    for block in range(blocks):
        for _ in range(steps // blocks):
            logits = model(x, attention_mask=None).logits
            if cfg_scale:
                without = x.clone()
                without[:, :start] = MASK
                without = model(without, attention_mask=None).logits
                logits = without + (cfg_scale + 1) * (logits - without)
            logits[..., list(never)] = -torch.inf
            tokens = logits.argmax(-1)
            logits[..., list(at_last)] = -torch.inf  # after the tokens, before the softmax
            confidence = torch.softmax(logits.double(), -1).gather(-1, tokens[..., None])[..., 0]
            confidence[:, start + (block + 1) * block_length :] = -torch.inf
            confidence = torch.where(x == MASK, confidence, -torch.inf)
            for j in range(len(x)):
                ranked = confidence[j].sort(descending=True, stable=True).indices  # of equal ones the leftmost first
                taken = ranked[: gen_length // steps]
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
@pytest.mark.parametrize("cfg_scale", [0.0, 0.75])
@pytest.mark.parametrize("never", [False, True], ids=["", "logits_eos_inf"])
@pytest.mark.parametrize("at_last", [False, True], ids=["", "confidence_eos_eot_inf"])
def test_llada_takes_guidance_and_keeps_the_end_back(cfg_scale: float, never: bool, at_last: bool) -> None:
    prompt, model = prompt_of(2, 5), Masked(1)
    plain = generate(model, prompt, gen_length=24, block_length=12, mask_id=MASK, scheduler="full")
    eos, eot = (int(plain[0, place]) for place in (7, 11))  # what it likes to write
    ids = {"never": (eos,) if never else (), "at_last": (eos, eot) if at_last else ()}
    expected = llada_loop(model, prompt, 24, 24, 12, cfg_scale, **ids)
    flags = {"logits_eos_inf": never, "confidence_eos_eot_inf": at_last, "eos_id": eos, "eot_id": eot}
    given = {"gen_length": 24, "block_length": 12, "mask_id": MASK, "cfg_scale": cfg_scale, **flags}
    assert torch.equal(generate(model, prompt, scheduler="full", **given), expected)
    assert torch.equal(expected, plain) == (not (cfg_scale or never or at_last))
    by_prefix = generate(model, prompt, **given)
    assert (eos in by_prefix[:, 5:]) <= (not never)


def test_the_rule_sees_an_end_that_is_kept_back_as_unsure() -> None:
    z = torch.zeros(SIZE, SIZE)
    z[:, 3] = 9.0  # everywhere the end
    z[1, 3], z[1, 4] = 0.0, 9.0  # but after token 1
    model = nn.Embedding.from_pretrained(z)
    given = {"gen_length": 4, "block_length": 4, "mask_id": MASK, "eos_id": 3, "eot_id": 3}
    passes = []
    count = model.register_forward_hook(lambda *_: passes.append(0))
    generate(model, torch.tensor([[2]]), **given)
    at_once = len(passes)
    generate(model, torch.tensor([[2]]), confidence_eos_eot_inf=True, **given)
    count.remove()
    assert (at_once, len(passes) - at_once) == (2, 5)  # one pass is for the size of the vocabulary


@pytest.mark.parametrize("scheduler", [lsp.EntropyBound(0.0), DreamOrder("entropy", steps=2)], ids=lambda s: s.key)
def test_an_end_that_is_kept_back_comes_last_by_entropy_too(scheduler: lsp.Scheduler) -> None:
    z = torch.zeros(1, 3, SIZE)
    z[0, 1, 3], z[0, 2, 4] = 9.0, 1.0  # the end is much surer than what follows it

    def first(**flags: bool) -> list[int]:
        seen = []

        def choose(step: lsp.decoding.Step) -> list:
            seen.append(scheduler(step)[0][0].tolist())
            return [(canvas.masks, np.full(len(canvas.masks), 5)) for canvas in step.canvases]

        given = {"gen_length": 2, "block_length": 2, "mask_id": MASK, "eos_id": 3, "eot_id": 3}
        generate(lambda ids: z[:, : ids.size(1)], torch.tensor([[2]]), scheduler=lsp.Custom(choose), **given, **flags)
        return seen[0]

    assert first() == [1]
    assert first(confidence_eos_eot_inf=True) == [2]


def test_confidence_and_entropy_are_those_of_a_softmax_without_the_ends() -> None:
    z = torch.randn(40, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4
    log_odds, entropy = without(z.log_softmax(-1).numpy(), tokens := z[:, 2:].argmax(-1).numpy() + 2, (0, 1))
    z[:, :2] = -torch.inf
    p = z.softmax(-1).numpy()
    np.testing.assert_allclose(1 / (1 + np.exp(-log_odds)), p[np.arange(40), tokens], rtol=1e-9)
    np.testing.assert_allclose(entropy, -(p[:, 2:] * np.log(p[:, 2:])).sum(-1), rtol=1e-9)


def test_what_a_scheduler_cannot_do_is_refused_when_an_end_is_kept_back_too() -> None:
    model = lsp.adapt(nn.Embedding(1, 1), vocab_size=20000, mask_id=0)
    given = {"gen_length": 2, "block_length": 2, "mask_id": 0, "eos_id": 3, "eot_id": 3}
    for flag in (False, True):
        with pytest.raises(ValueError, match="expected a vocabulary of at most 16384 ids with Klass"):
            generate(model, torch.tensor([[2]]), scheduler="klass", confidence_eos_eot_inf=flag, **given)


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


@torch.no_grad()
def test_llada_samples_and_ranks_as_its_own_loop_does_with_this_noise() -> None:
    """The largest noisy logit is drawn; the most confident one, by the probability without noise, is committed."""
    model, prompt, temperature, length = Masked(5), prompt_of(2, 5), 4.0, 6
    torch.manual_seed(3)
    x = generate(
        model, prompt, gen_length=length, block_length=length, temperature=temperature, mask_id=MASK,
        scheduler=lsp.TopK(1),
    )  # fmt: skip
    torch.manual_seed(3)
    seeds = torch.randint(2**63 - 1, (2,)).tolist()
    differs = 0
    for row, ids, seed in zip(x, canvas_of(prompt, length), seeds, strict=True):
        for number in range(length):
            logits = model(ids[None]).logits[0].double()
            logits[:, MASK] = -torch.inf
            best: dict[int, tuple[float, int]] = {}
            for p in (ids == MASK).nonzero()[:, 0].tolist():
                draw = oracle.Draw(temperature, seed, p, number)
                noise = torch.tensor([oracle.gumbel(draw, token) for token in range(SIZE)], dtype=torch.float64)
                token = int((logits[p] + temperature * noise).argmax())
                best[p] = float(logits[p].log_softmax(0)[token]), token
                differs += token != int(logits[p].argmax())
            p = max(best, key=lambda p: best[p][0])
            ids[p] = best[p][1]
        assert torch.equal(row, ids)
    assert differs > 5


def test_what_llada_cannot_do_is_refused() -> None:
    model, prompt = Masked(), prompt_of(2, 5)
    padded = torch.ones_like(prompt)
    padded[0, 3] = 0
    given = {"model": model, "prompt": prompt, "gen_length": 8, "block_length": 8, "mask_id": MASK}
    for name, value, message in [
        REFUSED["random"],
        ("temperature", -1.0, "Invalid temperature: expected a number from 0 to 1e30, got -1.0"),
        ("cfg_scale", -1.5, "Invalid cfg_scale: expected a finite number from 0, got -1.5"),
        ("attention_mask", padded, "Invalid attention_mask: expected padding on the left only, got zeros after ones"),
        ("attention_mask", padded[:, 1:], r"Invalid shape of attention_mask: expected \[2, 5\] as the prompt"),
        ("logits_eos_inf", True, "Invalid eos_id: expected an id from 0 to 59 with logits_eos_inf, got 126081"),
        ("confidence_eos_eot_inf", True, "Invalid eos_id: expected an id from 0 to 59 with confidence_eos_eot_inf"),
        ("block_length", 3, "Invalid block_length: expected a divisor of gen_length = 8, as in LLaDA, got 3"),
        ("gen_length", 0, "Invalid gen_length"),
        ("prompt", prompt[0], r"Invalid shape of prompt: expected \[B, P\], got \[5\]"),
        ("prompt", prompt.float(), "Invalid dtype of prompt: expected integers, got torch.float32"),
        ("mask_id", 126336, "Invalid mask_id: expected an id from 0 to 59, got 126336"),
        ("model", 3, "Invalid model: expected a module or a function, got a int"),
        ("vocabulary", Vocabulary(SIZE + 1), r"Invalid logits of the model: expected \[1, 13, 61\], got \[1, 13, 60\]"),
        ("scheduler", "magic", "Invalid scheduler"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            generate(**{**given, name: value})


@torch.no_grad()
def test_llada_takes_a_batch_that_is_padded_on_the_left() -> None:
    model, prompts = Masked(3, sharp=6.0), [prompt_of(1, n)[0] for n in (5, 2, 4)]
    width, pad = 5, 1
    padded = torch.stack([torch.cat([torch.full((width - len(p),), pad), p]) for p in prompts])
    mask = torch.stack([torch.arange(width) >= width - len(p) for p in prompts]).long()
    given = {"gen_length": 16, "block_length": 8, "mask_id": MASK}
    out = generate(model, padded, mask, **given)
    assert torch.equal(out[:, :width], padded)
    for row, prompt in zip(out, prompts, strict=True):
        assert torch.equal(row[width:], generate(model, prompt[None], **given)[0, len(prompt) :])


@torch.no_grad()
def test_llada_fills_masks_in_a_prompt_and_a_stop_there_fills_the_rest() -> None:
    model, prompt = Masked(3, sharp=6.0), prompt_of(1, 6)
    prompt[0, 2:4] = MASK
    given = {"gen_length": 8, "block_length": 8, "mask_id": MASK}
    out = generate(model, prompt, **given)
    assert not (out == MASK).any()
    assert torch.equal(out[0, [0, 1, 4, 5]], prompt[0, [0, 1, 4, 5]])
    stop = int(out[0, 2])  # what it writes into the hole as a stop
    in_order = {"scheduler": "fixed", **given}  # the hole comes first
    stopped = generate(model, prompt, vocabulary=Vocabulary(SIZE, stops=[stop]), **in_order)
    assert torch.equal(stopped[0, [0, 1, 4, 5]], prompt[0, [0, 1, 4, 5]])
    assert int(stopped[0, 2]) == stop
    assert (stopped[0, 6:] == stop).all()

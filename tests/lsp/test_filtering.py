"""top_p, top_k and several samples of a prompt: which tokens may be drawn, how often, and how sure they look."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lsp
from lsp.decoding.filtering import Filter, log_odds_of
from lsp.generation import derived
from lsp_kernels import Noise, Vocabulary, token_stats
from tests.lsp.recorder import last, scripted
from tests.support import examples


def nucleus(z: list[float], temperature: float, top_p: float | None, top_k: int | None) -> set[int]:
    """Which ids stay, one after the other."""
    weights = [math.exp((value - max(z)) / temperature) for value in z]
    ranked = sorted(range(len(z)), key=lambda i: (-z[i], i))
    kept, total = set(), 0.0
    for i in ranked:
        if top_p is not None and total > top_p:
            break
        kept.add(i)
        total += weights[i] / sum(weights)
    if top_k is not None:
        kept &= {i for i in ranked if z[i] >= z[ranked[min(top_k, len(z)) - 1]]}
    return kept


@examples(150)
@given(
    st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=12, unique=True),
    st.sampled_from([0.2, 0.7, 1.0, 3.0]),
    st.sampled_from([None, 0.01, 0.3, 0.8, 0.95, 0.999]),
    st.sampled_from([None, 1, 2, 5, 30]),
)
def test_what_is_kept_is_the_nucleus(z: list[float], temperature: float, top_p: float, top_k: int) -> None:
    kept = Filter(temperature, top_p, top_k).keeps(torch.tensor([z]))[0]
    assert set(kept.nonzero().flatten().tolist()) == nucleus(z, temperature, top_p, top_k)


@pytest.mark.parametrize("temperature", [1.0, 1e-30, 1e-40, 1e-46, 1e30])
@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 1}, {"top_p": 0.5, "top_k": 2}], ids=str)
def test_the_largest_logit_stays_however_large_it_is_and_however_cold(filters: dict, temperature: float) -> None:
    z = torch.tensor([[0.0, 5.0, -torch.inf], [0.0, 3e38, -3e38], [0.0, torch.inf, 1.0]])
    kept = Filter(temperature, **({"top_p": None, "top_k": None} | filters)).keeps(z)
    assert kept[:, 1].all()
    assert not kept[0, 2]
    if temperature < 1:
        assert kept.sum() == 3
    model = scripted(lambda ids: np.tile(np.float32([0, 50, 0, 0, 99]), (len(ids), 1)), 5, 4)
    if temperature <= 1:
        how = lsp.Options(temperature=temperature, **filters)
        assert last(lsp.decode(model, [[0]], 3, lsp.Full(), Vocabulary(5), how)).canvases[0].run.tolist() == [1] * 3


@pytest.mark.parametrize(("top_p", "top_k"), [(0.8, None), (None, 2), (0.95, 3)])
def test_tokens_are_drawn_from_what_is_kept_and_look_no_surer(top_p: float | None, top_k: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, size, mask = 400, 12, 11
    logits = 2 * torch.randn(rows, size, generator=generator)
    noise = Noise(0.9, 5, torch.arange(rows))
    vocabulary = Vocabulary(size, suppress=[mask])
    got = Filter(0.9, top_p, top_k).stats(logits, vocabulary, noise, entropy=True)
    whole = token_stats(logits, vocabulary=vocabulary, noise=noise, entropy=True)
    logits[:, mask] = -torch.inf
    for row in range(rows):
        kept = nucleus(logits[row, :mask].tolist(), 0.9, top_p, top_k)
        assert int(got.tokens[row]) in kept
        if int(whole.tokens[row]) in kept:  # the largest of all is the largest of these
            assert (got.tokens[row], got.margins[row]) == (whole.tokens[row], whole.margins[row])
        else:
            assert got.margins[row] == 0
    p = logits.double().softmax(-1).gather(1, got.tokens[:, None])[:, 0]
    torch.testing.assert_close(got.log_odds.double().sigmoid(), p, rtol=0, atol=1e-6)
    assert torch.equal(got.entropy, whole.entropy)
    assert 0 < int((got.tokens != whole.tokens).sum()) < rows


def test_log_odds_are_those_of_the_kernels() -> None:
    logits = torch.tensor([[300.0, 1.0, -torch.inf], [5.0, -torch.inf, -torch.inf], [0.3, 0.1, 0.2]])
    stats = token_stats(logits)
    torch.testing.assert_close(log_odds_of(stats.tokens, logits), stats.log_odds, rtol=1e-6, atol=1e-6)


def test_frequencies_are_those_of_the_filtered_softmax() -> None:
    z = np.array([2.0, 1.0, 0.0, -1.0, 3.0], dtype=np.float32)
    model, count = scripted(lambda ids: np.tile(z, (len(ids), 1)), 5, 4), 4000
    for filters, kept in ({"top_k": 2}, [0, 1]), ({"top_p": 0.8}, [0, 1, 2]):
        how = lsp.Options(temperature=2.0, **filters)
        state = last(lsp.decode(model, [[0]] * count, 1, lsp.Full(), Vocabulary(5), how, range(count)))
        found = np.bincount([int(canvas.run[0]) for canvas in state.canvases], minlength=5) / count
        weights = np.where(np.isin(np.arange(5), kept), np.exp(z / 2), 0)
        assert np.abs(found - weights / weights.sum()).max() < 4 * (0.25 / count) ** 0.5


@pytest.mark.parametrize("scheduler", ["lsp", "threshold", "full"])
def test_the_likeliest_token_alone_is_greedy(scheduler: str) -> None:
    """With one token left nothing is drawn, and the noisy margin does not become infinite."""
    model, prompts = lsp.load("tiny"), ["Use 3, 5 and 7 to make 15.\n", "Use 2, 9 and 14 to make 21.\n"]
    how = {"max_new_tokens": 32, "scheduler": scheduler, "cache": "none"}
    for greedy, cold in zip(
        lsp.generate(model, prompts, **how), lsp.generate(model, prompts, temperature=1e-6, top_k=1, **how), strict=True
    ):
        assert greedy.tokens == cold.tokens
    sampled = lsp.generate(model, prompts, temperature=0.2, top_p=0.95, **how, batch_size=1)  # Dream's defaults
    again = lsp.generate(model, prompts, temperature=0.2, top_p=0.95, **how)
    assert [answer.tokens for answer in sampled] == [answer.tokens for answer in again]


def test_nan_under_a_filter_is_an_error() -> None:
    model = scripted(lambda ids: np.full((len(ids), 5), np.nan, dtype=np.float32), 5, 4)
    with pytest.raises(lsp.DecodingError, match="NaN in sequence 0"):
        last(lsp.decode(model, [[0]], 2, lsp.Full(), Vocabulary(5), lsp.Options(temperature=1.0, top_p=0.5)))


def test_samples_of_a_prompt_have_seeds_of_their_own() -> None:
    model, prompts = lsp.load("tiny"), ["Use 3, 5 and 7 to make 15.\n", "Use 2, 9 and 14 to make 21.\n"]
    how = {"max_new_tokens": 32, "temperature": 3.0, "scheduler": lsp.FixedPrefix(4), "cache": "none"}
    samples = lsp.generate(model, prompts, n=3, seed=7, **how)
    assert len(samples) == 6
    firsts = lsp.generate(model, prompts, seed=7, **how)
    assert [sample.tokens for sample in samples[::3]] == [first.tokens for first in firsts]
    others = lsp.generate(model, prompts[0], seed=derived(7, 2), **how)
    assert samples[2].tokens == others[0].tokens
    assert len({tuple(sample.tokens) for sample in samples}) == 6
    assert len({derived(s, j) for s in range(50) for j in range(50)}) == 2500
    assert all(-(2**63) <= derived(s, 3) < 2**64 for s in (-(2**63), -1, 2**64 - 1))


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.0, "temperature": 1.0}, "Invalid top_p: expected a number above 0 and at most 1, got 0.0"),
        ({"top_p": float("nan"), "temperature": 1.0}, "Invalid top_p"),
        ({"top_k": 0, "temperature": 1.0}, "Invalid top_k"),
        ({"top_p": 0.9}, "Invalid top_p: expected none without a temperature, got 0.9"),
        ({"top_k": 5}, "Invalid top_k: expected none without a temperature, got 5"),
        ({"top_k": 5, "temperature": 1.0, "graph": True}, "Invalid graph: expected False with top_k"),
    ],
)
def test_filters_that_make_no_sense_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lsp.Options(**options)


@pytest.mark.abuse("prompts and generation")
def test_wrong_numbers_of_samples_are_named() -> None:
    model = lsp.adapt(torch.nn.Embedding(9, 9), vocab_size=9, mask_id=8)
    with pytest.raises(ValueError, match=r"Invalid n: expected 1 without a temperature, .*, got 2"):
        lsp.generate(model, [[1]], n=2)
    with pytest.raises(ValueError, match="Invalid n: expected an integer from 1"):
        lsp.generate(model, [[1]], n=0, temperature=1.0)
    with pytest.raises(ValueError, match="Invalid seed: expected a number or 1 of them, got 2"):
        lsp.generate(model, [[1]], n=2, temperature=1.0, seed=[1, 2])

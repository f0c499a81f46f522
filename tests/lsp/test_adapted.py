"""Any model that gives logits goes through the same protocol as the cached ones, and says the same."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import lsp
from lsp_kernels import PrefixRule, commit_prefix, token_stats
from tests.lsp.checkpoints import Case, dream, ids_of, llada

CASES = {"plain": llada(std=0.3), "shifted": dream()}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def adapted(case: Case, wrap: object = lambda logits: logits) -> lsp.adapt:
    """The plain implementation as somebody's model."""

    def forward(input_ids: Tensor) -> object:
        assert input_ids.dtype == torch.int64
        assert input_ids.shape[0] == 1
        return wrap(case.logits(input_ids[0].tolist())[None].float())

    shifted = case.shifted
    return lsp.adapt(forward, vocab_size=case.vocab_size, mask_id=7, stop_ids=[5], shifted=shifted)


def borders(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def run(model: object, sequences: list[list[int]], cache: object, frozen: list[int], append: list[int]) -> Tensor:
    """A pass as the loop makes it: what is frozen is not given."""
    left = [ids[n:] for ids, n in zip(sequences, frozen, strict=True)]
    positions = [torch.arange(n, len(ids)) for ids, n in zip(sequences, frozen, strict=True)]
    return model(torch.tensor(list(chain(*left))), torch.cat(positions), borders(*map(len, left)), cache, append)


def test_passes_over_a_ragged_batch_see_the_whole_sequences(case: Case) -> None:
    model = adapted(case)
    sequences = [ids_of(case, n, seed=n, masks=n // 2) for n in (12, 7, 20)]
    cache = model.new_cache(3, 32)
    whole = [case.logits(ids).float() for ids in sequences]
    torch.testing.assert_close(run(model, sequences, cache, [0, 0, 0], [6, 0, 3]), torch.cat(whole))
    again = run(model, sequences, cache, [6, 0, 3], [1, 3, 2])
    torch.testing.assert_close(again, torch.cat([w[n:] for w, n in zip(whole, (6, 0, 3), strict=True)]))
    assert cache.lengths.tolist() == [7, 3, 5]
    for b, n in enumerate([7, 3, 5]):
        assert cache.tokens[b, :n].tolist() == sequences[b][:n]
    cache.refresh([2])
    torch.testing.assert_close(run(model, sequences, cache, [7, 3, 0], [0, 0, 0])[-20:], whole[2])


def test_it_scores_as_the_transformer_does(case: Case, tmp_path: Path) -> None:
    """One protocol: the same passes, the same head, the same commits, whichever model is behind it."""
    models = [lsp.load(case.save(tmp_path)), adapted(case)]
    sequences = [ids_of(case, 24, seed=3, masks=10), ids_of(case, 18, seed=4, masks=9)]
    rule, results = PrefixRule(snap=False), []
    for model in models:
        hidden = run(model, sequences, model.new_cache(2, 32), [0, 0], [13, 8])
        masked = torch.tensor([*range(14, 24), *range(24 + 9, 24 + 18)])
        logits = model.lm_head(hidden[masked - int(model.config.shifted)])
        stats, commit = token_stats(logits), commit_prefix(logits, borders(10, 9), rule=rule)
        results.append((stats.tokens, commit.tokens, commit.lengths))
        assert model.config.shifted == case.shifted
        assert (model.config.mask_id, model.config.stop_ids) == (7, (5,))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    assert len(set(results[0][0].tolist())) > 4


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda x: SimpleNamespace(logits=x, loss=None), id="output"),
        pytest.param(lambda x: {"logits": x}, id="mapping"),
        pytest.param(lambda x: (x, None), id="tuple"),
        pytest.param(lambda x: x.bfloat16(), id="bfloat16"),
        pytest.param(lambda x: x.double(), id="float64"),
    ],
)
def test_logits_are_found_in_what_models_return(wrap: object) -> None:
    case = CASES["plain"]
    ids = ids_of(case, 9, masks=4)
    model = adapted(case, wrap)
    tokens = model.lm_head(model(torch.tensor(ids), torch.arange(9), borders(9)))[5:9].argmax(-1)
    assert tokens.tolist() == case.logits(ids)[5:].argmax(-1).tolist()


def test_a_real_hugging_face_model_decodes_a_pass() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, mask_token_id=4
    )
    bert = transformers.BertForMaskedLM(config).eval()
    model = lsp.adapt(bert, stop_ids=[1])
    assert (model.config.vocab_size, model.config.mask_id, model.config.max_length) == (60, 4, 512)
    ids = torch.tensor([5, 6, 7, 4, 4])
    with torch.no_grad():
        expected = bert(ids[None]).logits[0]
    torch.testing.assert_close(model(ids, torch.arange(5), borders(5)), expected)


def test_empty_segments_cost_nothing() -> None:
    model = adapted(CASES["plain"])
    ids = ids_of(CASES["plain"], 5)
    tokens, positions = torch.tensor(ids), torch.arange(5)
    assert model(tokens, positions, borders(0, 5, 0)).shape == (5, 211)
    assert model(tokens[:0], positions[:0], borders(0, 0)).shape == (0, 211)


def test_nothing_requires_a_gradient() -> None:
    model = lsp.adapt(torch.nn.Embedding(20, 20), vocab_size=20)
    assert not model(torch.arange(5), torch.arange(5), borders(5)).requires_grad


@pytest.mark.abuse("models and checkpoints")
def test_what_is_wrong_is_named() -> None:
    with pytest.raises(TypeError, match="Invalid model: expected a module or a function, got a int"):
        lsp.adapt(3)
    with pytest.raises(ValueError, match="Invalid vocab_size"):
        lsp.adapt(torch.nn.Embedding(20, 20))
    ids = torch.arange(5)
    with pytest.raises(ValueError, match=r"Invalid logits of the model: expected \[1, 5, 20\], got \[1, 5, 21\]"):
        lsp.adapt(torch.nn.Embedding(20, 21), vocab_size=20)(ids, ids, borders(5))
    with pytest.raises(TypeError, match="Invalid output of the model: expected logits, got a str"):
        lsp.adapt(lambda _: "logits", vocab_size=20)(ids, ids, borders(5))
    model = lsp.adapt(torch.nn.Embedding(20, 20), vocab_size=20)
    with pytest.raises(TypeError, match="Invalid cache: expected one from new_cache, got a PrefixCache"):
        model(ids, ids, borders(5), lsp.load("tiny").new_cache(1, 4), [0])
    with pytest.raises(ValueError, match="Invalid cu_seqlens"):
        model(ids, ids, borders(6))
    with pytest.raises(ValueError, match=r"Invalid append\[0\]"):
        model(ids, ids, borders(5), model.new_cache(1, 2), [3])
    with pytest.raises(ValueError, match=r"Invalid append\[0\]: expected at most 5 \(tokens in the pass\), got 6"):
        model(ids, ids, borders(5), model.new_cache(1, 9), [6])


def test_logits_under_another_name_are_found(case: Case) -> None:
    ids, border = torch.tensor(ids_of(case, 6)), borders(6)
    plain = adapted(case)(ids, torch.arange(6), border)

    def logits(wrap: object, output: object) -> Tensor:
        forward = lambda ids: wrap(case.logits(ids[0].tolist())[None].float())  # noqa: E731
        model = lsp.adapt(forward, vocab_size=case.vocab_size, mask_id=7, output=output)
        return model(ids, torch.arange(6), border)

    for wrap, output in [
        (lambda z: {"loss": 0, "prediction_logits": z}, "prediction_logits"),
        (lambda z: SimpleNamespace(scores=z), "scores"),
        (lambda z: (0.5, z), 1),
        (lambda z: [z], -1),
        (lambda z: {"heads": [{"z": z}]}, lambda out: out["heads"][0]["z"]),
    ]:
        torch.testing.assert_close(logits(wrap, output), plain)
    for wrap, output, message in [
        (lambda z: {"loss": 0, "scores": z}, "logits", "expected logits, got a dict with loss, scores; say which by"),
        (lambda z: (0.5, z), 2, "expected 2, got a tuple"),
        (lambda z: (0.5, z), 0, "expected 0, got a float"),
        (lambda z: SimpleNamespace(scores=z), "score", "expected score, got a SimpleNamespace"),
    ]:
        with pytest.raises(TypeError, match=f"Invalid output of the model: {message}"):
            logits(wrap, output)


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_masked_models_of_transformers_fill_holes_as_their_own_logits_say(kind: str) -> None:
    """One mask a pass, the leftmost: what the model itself predicts there, special tokens at both ends in place."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
    names = {"bert": "Bert", "roberta": "Roberta", "modernbert": "ModernBert"}[kind]
    config = getattr(transformers, f"{names}Config")(vocab_size=40, initializer_range=0.5, **size, **special)
    network = getattr(transformers, f"{names}ForMaskedLM")(config).eval()
    prompt, mask = [0, 11, 4, 4, 12, 13, 4, 2], 4
    model = lsp.adapt(network, mask_id=mask)
    (answer,) = lsp.generate(model, [prompt], scheduler="fixed", lookahead=1)
    expected = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(3):
            first = expected[0].tolist().index(mask)
            logits = network(expected).logits[0, first]
            logits[mask] = -torch.inf
            expected[0, first] = logits.argmax()
    assert answer.tokens == expected[0, 2:].tolist()
    assert answer.committed_in == [0, 1, -1, -1, 2, -1]
    assert len(set(answer.tokens)) > 3

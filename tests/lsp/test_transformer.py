"""Logits are those of plain implementations, whatever is cached, batched or split over files."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lsp
from lsp.models import Transformer
from lsp.tiny import CHECKPOINT
from lsp.tiny.training.model import TinyModel
from lsp_kernels import PrefixCache, PrefixRule, commit_prefix
from tests.lsp.checkpoints import FAMILIES, Case, dream, ids_of, llada, llama, qwen3

CASES = {
    **{name: make() for name, make in FAMILIES.items()},
    "llada-sharp": llada(std=0.3),
    "llada-deep": llada(1, d_model=96, n_heads=3, n_kv_heads=3, n_layers=5, mlp_hidden_size=70, rope_theta=10000.0),
    "llada-wide-heads": llada(2, std=0.15, d_model=256, n_heads=2, n_kv_heads=2, embedding_size=320, vocab_size=300),
    "llada-grouped-tied": llada(3, d_model=128, n_heads=4, n_kv_heads=1, weight_tying=True, include_qkv_bias=True),
    "dream-one-kv-head": dream(1, hidden_size=336, num_attention_heads=7, num_key_value_heads=1, std=0.12),
    "qwen3-untied": qwen3(1, num_key_value_heads=4, head_dim=32, tie_word_embeddings=False),
    "llama-unscaled": llama(1, rope_scaling=None, tie_word_embeddings=False, hidden_size=80),
    "dream-tied": dream(2, num_hidden_layers=4, tie_word_embeddings=True, num_key_value_heads=4),
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def borders(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def packed(*sequences: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and borders of whole sequences."""
    tokens = torch.tensor(list(chain(*sequences)), dtype=torch.int64)
    positions = torch.cat([torch.arange(len(ids)) for ids in sequences])
    return tokens, positions, borders(*map(len, sequences))


def logits_of(model: Transformer, hidden: Tensor) -> Tensor:
    return model.lm_head(hidden)


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Equal to a fraction of the spread of the logits, which has to be there."""
    assert len(set(expected.argmax(-1).tolist())) > min(len(expected) // 4, 10)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance * float(expected.std()))


def poisoned(model: Transformer, batch: int, capacity: int) -> PrefixCache:
    """A cache whose unwritten slots hold NaN."""
    cache = model.new_cache(batch, capacity)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(torch.nan)
    return cache


@pytest.mark.parametrize("length", [1, 37])
def test_float64_logits_are_the_plain_ones(case: Case, exact: Transformer, length: int) -> None:
    ids = ids_of(case, length, masks=length // 3)
    close(logits_of(exact, exact(*packed(ids))), case.logits(ids))


def test_shards_load_as_one_file_does(case: Case, exact: Transformer, tmp_path: Path) -> None:
    sharded = lsp.load(case.save(tmp_path, shards=3), dtype=torch.float64)
    for name, tensor in exact.state_dict().items():
        assert torch.equal(tensor, sharded.state_dict()[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_lower_precision_errs_no_more_than_plain_code_does(case: Case, folder: Path, dtype: torch.dtype) -> None:
    model = lsp.load(folder, dtype=dtype)
    ids = ids_of(case, 40, masks=15)
    expected = case.logits(ids)
    allowed = (case.logits(ids, dtype).double() - expected).square().mean().sqrt()
    error = (logits_of(model, model(*packed(ids))).double() - expected).square().mean().sqrt()
    assert model.dtype == dtype
    assert error <= 2 * allowed + 1e-5


def test_positions_far_out_turn_as_float32_angles_do(case: Case, exact: Transformer) -> None:
    """Attention sees distances: far out it is the same but for the rounding of the angles."""
    tokens, positions, border = packed(ids_of(case, 20))
    near, far = (logits_of(exact, exact(tokens, positions + shift, border)) for shift in (0, 3000))
    close(far, near, tolerance=2e-2)
    assert not torch.allclose(logits_of(exact, exact(tokens, positions * 3, border)), near, atol=1e-2)


def test_a_front_of_everything_equals_no_cache(case: Case, exact: Transformer) -> None:
    ids = ids_of(case, 30, masks=9)
    cache = poisoned(exact, 1, 32)
    hidden = exact(*packed(ids), cache, append=[30])
    close(logits_of(exact, hidden), case.logits(ids))
    assert cache.lengths.tolist() == [30]
    cache.refresh()
    close(logits_of(exact, exact(*packed(ids), cache, append=[21])), case.logits(ids))


def test_a_frozen_prefix_serves_a_pass_in_the_same_context(case: Case, exact: Transformer) -> None:
    """K/V frozen in one pass are right for a later pass over the same tokens, of which only the suffix is given."""
    ids = ids_of(case, 30, masks=9)
    cache = poisoned(exact, 1, 32)
    exact(*packed(ids), cache, append=[17])
    suffix = torch.tensor(ids[17:]), torch.arange(17, 30), borders(13)
    close(logits_of(exact, exact(*suffix, cache, append=[4])), case.logits(ids)[17:])
    rest = torch.tensor(ids[21:]), torch.arange(21, 30), borders(9)
    close(logits_of(exact, exact(*rest, cache)), case.logits(ids)[21:])
    assert cache.lengths.tolist() == [21]


def test_a_ragged_batch_equals_each_sequence_alone(case: Case, exact: Transformer) -> None:
    sequences = [ids_of(case, n, seed=n, masks=n // 2) for n in (23, 1, 40, 8)]
    sequences.insert(2, [])
    cache = poisoned(exact, 5, 48)
    hidden = exact(*packed(*sequences), cache, append=[5, 0, 0, 33, 8])
    for ids, rows in zip(sequences, hidden.split([len(ids) for ids in sequences]), strict=True):
        torch.testing.assert_close(rows, exact(*packed(ids)) if ids else rows[:0], rtol=1e-9, atol=1e-9)
    frozen = [5, 0, 0, 33, 8]
    assert cache.lengths.tolist() == frozen
    left = [ids[n:] for ids, n in zip(sequences, frozen, strict=True)]
    positions = torch.cat([torch.arange(n, n + len(ids)) for n, ids in zip(frozen, left, strict=True)])
    again = exact(torch.tensor(list(chain(*left))), positions, borders(*map(len, left)), cache)
    expected = [rows[n:] for n, rows in zip(frozen, hidden.split([len(ids) for ids in sequences]), strict=True)]
    torch.testing.assert_close(again, torch.cat(expected), rtol=1e-9, atol=1e-9)


def test_the_deprecated_head_scores_the_rows_that_are_asked_for(case: Case, folder: Path) -> None:
    """Position p is predicted by its own row, or by the one before where the logits are shifted."""
    model = lsp.load(folder, dtype=torch.float32)
    hidden = model(*packed(ids_of(case, 26, seed=1, masks=12)))
    masked, shift = torch.arange(14, 26), int(case.shifted)
    expected = model.lm_head(hidden[masked - shift])
    with pytest.warns(DeprecationWarning, match=r"model\.head\(hidden\) is deprecated; use model\.lm_head"):
        head = model.head(hidden)
    assert torch.equal(head.logits(masked), expected)
    assert torch.equal(head.logits(slice(14, 26)), expected)
    assert torch.equal(head.stats(masked).tokens, expected.argmax(-1))
    rule = PrefixRule(snap=False)
    assert torch.equal(head.commit(masked, rule=rule).lengths, commit_prefix(expected, rule=rule).lengths)
    if shift:
        with pytest.raises(ValueError, match="Invalid rows: expected 1 or more"):
            head.logits(slice(0, 2))


def test_nothing_requires_a_gradient(exact: Transformer, case: Case) -> None:
    assert not any(p.requires_grad for p in exact.parameters())
    assert not exact.requires_grad_(True)(*packed(ids_of(case, 4))).requires_grad
    exact.requires_grad_(False)


def test_embedded_model_loads_by_the_same_code() -> None:
    model, tiny = lsp.load("tiny"), TinyModel.load(CHECKPOINT)
    ids = torch.randint(3, 190, (60,), generator=torch.Generator().manual_seed(0))
    ids[35:] = model.config.mask_id
    with torch.no_grad():
        expected = tiny(ids[None])[0].double()
    close(logits_of(model, model(*packed(ids.tolist()))), expected, tolerance=1e-4)
    assert (model.config.mask_id, model.config.stop_ids) == (tiny.config.mask_token_id, (tiny.config.eos_token_id,))


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(2, 3, dtype=torch.int64)}, r"Invalid shape of tokens: expected \[T\].*got \[2, 3\]"),
        ({"tokens": torch.zeros(3, dtype=torch.int32)}, "Invalid dtype of tokens: expected int64"),
        ({"tokens": torch.tensor([1, 211, 3])}, "Invalid tokens: expected ids from 0 to 210, got 211"),
        ({"tokens": torch.tensor([1, -1, 3])}, "Invalid tokens: expected ids from 0 to 210, got -1"),
        ({"positions": torch.arange(4)}, r"Invalid shape of positions: expected \[3\]"),
        ({"positions": torch.tensor([-1, 0, 1])}, "Invalid positions: expected 0 or more, got -1"),
        ({"cu_seqlens": torch.tensor([0, 4], dtype=torch.int32)}, "Invalid cu_seqlens"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "Invalid dtype of cu_seqlens: expected int32"),
        ({"append": [4]}, "Invalid append"),
    ],
)
def test_a_wrong_pass_is_named(change: dict, message: str, tmp_path: Path) -> None:
    model = lsp.load(CASES["llada"].save(tmp_path))
    given = {"tokens": torch.tensor([1, 2, 3]), "positions": torch.arange(3), "cu_seqlens": borders(3)}
    with pytest.raises((ValueError, TypeError), match=message):
        model(**given | change)

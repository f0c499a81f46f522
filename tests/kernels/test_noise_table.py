"""What a `Noise` holds, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from lsp_kernels import Noise


def test_numbers_and_tensors_are_broadcast_to_the_rows() -> None:
    noise = Noise(torch.tensor([[0.5], [2.0]]), torch.tensor([[3], [-4]]), torch.arange(3), passes=7)
    assert noise.table.shape == (2, 3, 3)
    assert noise.table[..., 0].tolist() == [[3] * 3, [-4] * 3]
    assert noise.table[..., 1].tolist() == [[7 << 32, 7 << 32 | 1, 7 << 32 | 2]] * 2
    assert noise.table[..., 2].int().view(torch.float32).tolist() == [[0.5] * 3, [2.0] * 3]
    assert noise.table.is_contiguous()


def test_a_seed_is_64_bits_with_or_without_a_sign() -> None:
    (unsigned,), (signed,) = (Noise(1.0, seed, torch.tensor([0])).table for seed in (2**64 - 5, -5))
    assert unsigned.tolist() == signed.tolist()


def test_largest_position_and_pass_keep_their_bits() -> None:
    (row,) = Noise(1.0, 0, torch.tensor([2**31 - 1]), 2**31 - 1).table.tolist()
    assert (row[1] & 0xFFFFFFFF, row[1] >> 32) == (2**31 - 1, 2**31 - 1)


PLACES = torch.arange(4)
BAD = [
    ({"temperature": -0.5}, ValueError, "temperature: expected 0 to 1e30, got -0.5"),
    ({"temperature": math.nan}, ValueError, "temperature: expected 0 to 1e30, got nan"),
    ({"temperature": torch.tensor([1.0, 1, 1, math.inf])}, ValueError, "temperature: expected 0 to 1e30, got inf"),
    ({"temperature": "hot"}, TypeError, "temperature: expected a number or a Tensor, got str"),
    ({"temperature": True}, TypeError, "temperature: expected a number or a Tensor, got bool"),
    ({"temperature": torch.tensor(1)}, TypeError, "dtype of temperature: expected floats, got torch.int64"),
    ({"seeds": 2**64}, ValueError, f"seeds: expected 64 bits, got {2**64}"),
    ({"seeds": 0.5}, TypeError, "seeds: expected an integer or a Tensor, got float"),
    ({"seeds": torch.zeros(4)}, TypeError, "dtype of seeds: expected integers, got torch.float32"),
    ({"positions": torch.tensor([0, 1, 2, -1])}, ValueError, r"positions: expected 0 to 2\^31 - 1, got -1"),
    ({"positions": torch.tensor([2**31])}, ValueError, r"positions: expected 0 to 2\^31 - 1, got 2147483648"),
    ({"positions": torch.tensor([True])}, TypeError, "dtype of positions: expected integers, got torch.bool"),
    ({"passes": -1}, ValueError, r"passes: expected 0 to 2\^31 - 1, got -1"),
    ({"passes": None}, TypeError, "passes: expected an integer or a Tensor, got NoneType"),
    ({"seeds": torch.arange(3)}, ValueError, r"noise: expected shapes that broadcast together, got seeds \[3\], pos"),
    ({"seeds": torch.zeros(4, device="meta").long()}, ValueError, "device of positions: expected meta, got cpu"),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(
    ("wrong", "error", "message"), BAD, ids=[f"{next(iter(w))} {i}" for i, (w, *_) in enumerate(BAD)]
)
def test_what_cannot_be_noise_is_refused_by_name(wrong: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"Invalid {message}"):
        Noise(**{"temperature": 1.0, "seeds": 0, "positions": PLACES} | wrong)


def test_a_table_that_is_there_serves_as_it_is() -> None:
    noise = Noise(1.0, 3, torch.arange(4))
    assert Noise.of(noise.table).table is noise.table

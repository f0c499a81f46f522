"""Sampling without stored noise: which random numbers a row gets, as a table that the operations read."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ._checks import HIGHEST_TEMPERATURE, MOST_ROWS
from .errors import check_device, check_kind, values_are_free


class Noise:
    """Gumbel noise for the logits of some rows. It is made inside the operations and never stored.

    A token is then a sample from softmax(logits / temperature). The noise of an id is a function of the row's seed,
    position and pass and of the id: Philox 4x32-10 with the seed as key and (id // 4, position, pass, 0) as counter, of
    whose four words the id takes number id % 4. So a sample does not depend on the batch, the device, the number of
    threads, or on how a vocabulary is sharded.

    Parameters
    ----------
    temperature : float or Tensor
        Scale of the noise, 0 to 1e30. Rows with 0 are greedy.
    seeds : int or Tensor, int64
        64 bits; one seed per prompt is usual.
    positions : int or Tensor, integers from 0 to 2^31 - 1
        Where the row's token stands in its own sequence.
    passes : int or Tensor, integers from 0 to 2^31 - 1
        The number of the pass of that sequence.

    The four are broadcast together to the shape of the rows: [R] for packed rows, [B, L] for a batch.

    Attributes
    ----------
    table : Tensor, int64 [..., 3]
        Per row: the seed, position + 2^32 pass, and the bits of the temperature as float32.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import Noise, token_stats
    >>> noise = Noise(0.7, seeds=torch.tensor([[1], [2]]), positions=torch.arange(5, 9), passes=3)  # two prompts
    >>> noise
    Noise(rows=[2, 4], device='cpu')
    >>> token_stats(torch.zeros(2, 4, 100), noise=noise).tokens.shape
    torch.Size([2, 4])
    """

    def __init__(
        self, temperature: float | Tensor, seeds: int | Tensor, positions: int | Tensor, passes: int | Tensor = 0
    ) -> None:
        given = {"temperature": temperature, "seeds": seeds, "positions": positions, "passes": passes}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        device = next(iter(tensors.values())).device if tensors else torch.device("cpu")
        columns = [_column(name, value, device) for name, value in given.items()]
        try:
            scale, key, place, number = torch.broadcast_tensors(*columns)
        except RuntimeError:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
            raise ValueError(f"Invalid noise: expected shapes that broadcast together, got {shapes}") from None
        self.table = torch.stack([key, place | number << 32, scale.contiguous().view(torch.int32).long()], -1)

    @classmethod
    def of(cls, table: Tensor) -> Noise:
        """Noise whose table is there already, for example in memory that a CUDA graph reads."""
        out = cls.__new__(cls)
        out.table = table
        return out

    def __repr__(self) -> str:
        return f"Noise(rows={list(self.table.shape[:-1])}, device='{self.table.device}')"


def _column(name: str, value: Any, device: torch.device) -> Tensor:
    """A number or tensor as float32 (the temperature) or int64, its values checked where that is free."""
    floats = name == "temperature"
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, (int, float) if floats else int):
            kind = "a number" if floats else "an integer"
            raise TypeError(f"Invalid {name}: expected {kind} or a Tensor, got {type(value).__name__}")
        if name == "seeds":
            if not -(2**63) <= value < 2**64:
                raise ValueError(f"Invalid seeds: expected 64 bits, got {value}")
            value = value - 2**64 if value >= 2**63 else value
        else:
            _check_value(name, value)
        return torch.tensor(value, dtype=torch.float32 if floats else torch.int64, device=device)
    check_device(name, value, torch.empty(0, device=device))
    if floats != value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"Invalid dtype of {name}: expected {'floats' if floats else 'integers'}, got {value.dtype}")
    if values_are_free(value) and name != "seeds" and value.numel():
        for extreme in value.aminmax():
            _check_value(name, extreme.item())
    return value.detach().to(torch.float32 if floats else torch.int64)


def _check_value(name: str, value: float) -> None:
    most, words = (HIGHEST_TEMPERATURE, "1e30") if name == "temperature" else (MOST_ROWS, "2^31 - 1")
    if not 0 <= value <= most or math.isnan(value):
        raise ValueError(f"Invalid {name}: expected 0 to {words}, got {value}")


def table_of(noise: Noise | None) -> Tensor | None:
    """The table that an operator takes."""
    return None if noise is None else noise.table


def check_noise_kind(noise: Noise | None) -> None:
    if noise is not None:
        check_kind("noise", noise, Noise)

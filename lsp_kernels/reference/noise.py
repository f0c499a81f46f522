"""The definition of the noise: Philox 4x32-10, and the Gumbel noise that is made of its integers, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .._widest import widest

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # added to the key after every round
WORD = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """The four words of Philox 4x32-10; words are int64 tensors with values below 2^32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # modulo 2^64, which keeps the bits of both halves
        c0, c1, c2, c3 = (p1 >> 32 & WORD) ^ c1 ^ k0, p1 & WORD, (p0 >> 32 & WORD) ^ c3 ^ k1, p0 & WORD
        k0, k1 = k0 + WEYL[0] & WORD, k1 + WEYL[1] & WORD
    return c0, c1, c2, c3


def random_words(table: Tensor, begin: int, count: int) -> Tensor:
    """The 32-bit integers of the ids from `begin` on in every row of `Noise.table` [..., 3], int64 [..., count]."""
    seed, place = table[..., 0, None], table[..., 1, None]
    groups = torch.arange(begin // 4, (begin + count + 3) // 4, device=table.device)
    zero = torch.zeros_like(seed + groups)
    counter = (groups + zero, (place & WORD) + zero, (place >> 32 & WORD) + zero, zero)
    words = torch.stack(philox(counter, ((seed & WORD) + zero, (seed >> 32 & WORD) + zero)), -1)
    return words.flatten(-2)[..., begin % 4 : begin % 4 + count]


def gumbel(words: Tensor) -> Tensor:
    """-log E, E exponential, in float64: E = -log v with v = (x + 1/2) / 2^32, in the upper half by 1 - v."""
    lower = words < 2**31
    part = (widest(torch.where(lower, words, WORD - words)) + 0.5) * 2.0**-32
    return -torch.where(lower, -part.log(), -torch.log1p(-part)).log()


def add_noise(z: Tensor, table: Tensor, id_offset: int) -> Tensor:
    """Float32 logits [..., V] plus temperature times noise, rounded once."""
    temperature = table[..., 2, None].int().view(torch.float32)
    return (widest(z) + widest(temperature) * gumbel(random_words(table, id_offset, z.size(-1)))).float()

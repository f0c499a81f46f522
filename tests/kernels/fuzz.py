"""Calls the raw operators with operands of every kind, between pages that may not be touched.

``python -m tests.kernels.fuzz SEED COUNT`` makes COUNT calls and prints how many were served and how many refused. An
access outside of a tensor kills the process by a signal; the last line then names the call. Run by test_fuzz.py.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lsp_kernels import PrefixRule
from lsp_kernels._ops import SCHEMAS

PAGE = mmap.PAGESIZE
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.complex64]
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept: list[Any] = []  # the memory of the tensors of one call


def between_guards(size: int, at_end: bool) -> Any:
    """`size` bytes that end right before a page which may not be touched, or begin right after one."""
    inside = max(-(-size // PAGE), 1) * PAGE
    region = mmap.mmap(-1, inside + 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for page in (start, start + PAGE + inside):
        if libc.mprotect(page, PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    address = start + PAGE + (inside - size if at_end else 0)
    memory = (ctypes.c_char * size).from_address(address)
    kept.append((region, memory))
    return memory


class Fuzz:
    """Random operands. Most are right, so that calls get past the first checks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.wrong = 0.0  # the probability that something about an operand is wrong

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, values: Sequence[int] | None = None) -> Tensor:
        """A tensor of about this shape and dtype, in memory between guards, with odd strides now and then."""
        shape = list(shape)
        if self.chance(self.wrong):
            shape = self.another_shape(shape)
        if self.chance(self.wrong):
            dtype = self.random.choice(DTYPES)
        strides = self.strides(shape)
        size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        memory = between_guards(size * dtype.itemsize, self.chance(0.7))
        flat = torch.frombuffer(memory, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        if dtype.is_floating_point:
            flat.copy_(torch.randn(size))
            if size and self.chance(0.2):
                flat[self.random.randrange(size)] = self.random.choice([math.nan, math.inf, -math.inf, 3e38])
        else:
            flat.zero_()
        out = flat.as_strided(shape, strides)
        if values is not None and shape == [len(values)] and not dtype.is_complex:
            for i, value in enumerate(torch.tensor(values, dtype=torch.int64).to(dtype)):
                out[i] = value  # one by one: torch refuses to copy into repeated elements
        return out

    def another_shape(self, shape: list[int]) -> list[int]:
        kind = self.random.randrange(6)
        if kind == 0 or not shape:
            return [self.random.choice([0, 1, 2, 3]) for _ in range(self.random.randrange(10))]
        d = self.random.randrange(len(shape))
        if kind == 1:
            return shape[:d] + shape[d + 1 :]
        if kind == 2:
            return [*shape[:d], 1, *shape[d:]]
        new = self.random.choice([0, 1, shape[d] + 1, max(shape[d] - 1, 0), 2 * shape[d], 16, 512])
        return [*shape[:d], new, *shape[d + 1 :]]

    def strides(self, shape: list[int]) -> list[int]:
        """Contiguous, transposed, with gaps, or repeated (0)."""
        order = list(range(len(shape)))[::-1]
        if self.chance(0.2):  # the last dimension stays contiguous
            order = order[:1] + self.random.sample(order[1:], len(order[1:]))
        if self.chance(self.wrong):
            self.random.shuffle(order)
        strides, stride = [0] * len(shape), 1
        for d in order:
            strides[d] = stride
            stride = stride * max(shape[d], 1) + (self.random.randrange(4) if self.chance(0.2) else 0)
        if shape and self.chance(self.wrong):
            strides[self.random.randrange(len(shape))] = self.random.choice([0, 2, 3])
        return strides

    def integers(self, values: list[int]) -> Tensor:
        """Lengths or borders, int32."""
        values = values.copy()
        if values and self.chance(self.wrong):
            extreme = [-1, -(2**31), 2**31 - 1, values[0] + 1, values[-1] - 1, 1000]
            values[self.random.randrange(len(values))] = self.random.choice(extreme)
        return self.tensor([len(values)], torch.int32, values)

    def maybe(self, operand: Tensor) -> Tensor | None:
        return operand if self.chance(0.6) else None

    def borders(self, total: int) -> list[int]:
        inner = sorted(self.random.randint(0, total) for _ in range(self.random.randrange(4)))
        return [0, *inner, total]

    def slots(self, batch: int) -> tuple[int, Tensor | None]:
        """How many rows a cache has, and which of them the sequences have."""
        if self.chance(0.5):
            return batch, None
        rows = batch + self.random.randrange(3)
        return rows, self.integers(self.random.sample(range(rows), batch))

    def number(self, good: Any) -> Any:
        return self.random.choice([-1, 0, -(2**63), 2**63 - 1, 2**40]) if self.chance(self.wrong / 3) else good

    def rule(self) -> list[Any]:
        r = self.random
        floor = r.choice([None, 0.0, 4.0, math.inf])
        rule = PrefixRule(0.25, r.choice([0.5, 1.0]), r.randint(1, 9), r.randrange(20), floor, False).arguments
        alpha, beta, least, window, floor, _, _ = rule
        if self.chance(self.wrong / 3):
            floor = r.choice([math.nan, -1.0])
        return [*map(self.number, (alpha, beta, least, window)), floor, self.chance(0.5), self.chance(0.5)]

    def rows(self) -> tuple[list[int], list[Any]]:
        """The shape of rows, [B, L] or [R], with borders, counts and starts."""
        r = self.random
        if self.chance(0.3):
            batch, length = r.randrange(4), r.randrange(12)
            counts = [length] * batch
            return [batch, length], [None, self.maybe(self.integers(counts)), self.maybe(self.integers([0] * batch))]
        borders = self.borders(r.randrange(20))
        lengths = [b - a for a, b in pairwise(borders)]
        starts = [r.randint(0, n) for n in lengths]
        counts = [n - s for n, s in zip(lengths, starts, strict=True)]
        return [borders[-1]], [self.integers(borders), self.maybe(self.integers(counts)), self.integers(starts)]

    def tables(self, vocabulary: int) -> list[Any]:
        ids = sorted(self.random.sample(range(vocabulary), self.random.randrange(min(vocabulary, 9))))
        lowest = self.number(self.random.randrange(vocabulary))
        return [self.maybe(self.tensor([vocabulary], torch.uint8)), self.maybe(self.integers(ids)), lowest]

    def room(self) -> list[Tensor | None]:
        return [self.maybe(self.tensor([3], torch.int32)), self.maybe(self.tensor([3], torch.int32))]

    def noise(self, rows: list[int]) -> Tensor | None:
        """Seeds, positions and passes of these rows, and the bits of a temperature, which may be absurd."""
        r = self.random
        values = []
        for _ in range(math.prod(rows)):
            place = self.number(r.choice([0, 7, (2**31 - 1) << 32 | 2**31 - 1]))
            values += [r.choice([0, -1, 2**63 - 1]), place, r.choice([0, 0x3F800000, 0x70000000])]
        if values and self.chance(self.wrong / 3):
            values[-1] = r.choice([0x7FC00000, 0x7F800000, -1, 2**62])
        if self.chance(self.wrong):
            return self.maybe(self.tensor([*rows, 3], torch.int64))
        table = torch.frombuffer(between_guards(8 * max(len(values), 1), True), dtype=torch.int64)[: len(values)]
        for i, value in enumerate(values):
            table[i] = value
        return self.maybe(table.view(*rows, 3))

    def token_stats(self) -> list[Any]:
        vocabulary = self.random.choice([1, 2, 63, 64, 511, 512, 513, 2000])
        rows = self.rows()[0]
        logits = self.tensor([*rows, vocabulary], self.random.choice(FLOATS))
        return [logits, *self.tables(vocabulary), self.number(5), self.noise(rows), self.chance(0.5), *self.room()]

    def commit_prefix(self) -> list[Any]:
        vocabulary = self.random.choice([1, 2, 63, 64, 511, 512, 513, 2000])
        shape, sequences = self.rows()
        logits = self.tensor([*shape, vocabulary], self.random.choice(FLOATS))
        options = [self.noise(shape), self.chance(0.5)]
        return [logits, *sequences, *self.tables(vocabulary), *self.rule(), *options, *self.room()]

    def factors(self, rows: list[int]) -> tuple[int, list[Tensor | None]]:
        """The size of a vocabulary; hidden states of these rows, a weight and perhaps a bias."""
        size, vocabulary = self.random.choice([1, 2, 3, 16, 33, 256, 300]), self.random.choice([1, 2, 11, 12, 25, 600])
        dtype = self.random.choice(FLOATS)
        hidden, weight = self.tensor([*rows, size], dtype), self.tensor([vocabulary, size], dtype)
        return vocabulary, [hidden, weight, self.maybe(self.tensor([vocabulary], dtype))]

    def linear_token_stats(self) -> list[Any]:
        rows = self.rows()[0]
        vocabulary, factors = self.factors(rows)
        return [*factors, *self.tables(vocabulary), self.number(5), self.noise(rows), self.chance(0.5), *self.room()]

    def linear_commit_prefix(self) -> list[Any]:
        shape, sequences = self.rows()
        vocabulary, factors = self.factors(shape)
        options = [self.noise(shape), self.chance(0.5)]
        return [*factors, *sequences, *self.tables(vocabulary), *self.rule(), *options, *self.room()]

    def select_prefix(self) -> list[Any]:
        shape, sequences = self.rows()
        tokens = self.tensor(shape, torch.int64, [self.random.choice([-1, 5, 2**62, -(2**62)])] * sum(shape))
        flags = self.maybe(self.tensor([self.random.choice([0, 1, 10])], torch.uint8))
        return [self.tensor(shape, torch.float32), tokens, *sequences, flags, *self.rule()]

    def suffix_attention(self) -> list[Any]:
        r = self.random
        size, heads, group, capacity = r.choice([32, 48, 64, 256]), r.randint(1, 3), r.randint(1, 4), r.randrange(300)
        dtype = r.choice(FLOATS)
        if self.chance(0.3):
            batch, length = r.randint(0, 3), r.randrange(8)
            tokens, borders, lengths = [batch, length], None, [length] * batch
        else:
            cu = self.borders(r.randrange(20))
            tokens, borders, batch = [cu[-1] + r.choice([0, 0, 1, 9])], self.integers(cu), len(cu) - 1
            lengths = [b - a for a, b in pairwise(cu)]
        prefixes = [r.randint(0, capacity) for _ in range(batch)]
        appends = [r.randint(0, min(n, capacity - p)) for n, p in zip(lengths, prefixes, strict=True)]
        q, k, v = (self.tensor([*tokens, n, size], dtype) for n in (heads * group, heads, heads))
        rows, slots = self.slots(batch)
        k_cache, v_cache = (self.tensor([rows, heads, capacity, size], dtype) for _ in range(2))
        if self.chance(self.wrong):
            v_cache = k_cache
        scale = r.choice([1.0, 0.0, -0.5, 1e300]) if not self.chance(self.wrong) else r.choice([math.nan, math.inf])
        lens = [self.integers(prefixes), self.maybe(self.integers(appends))]
        return [q, k, v, k_cache, v_cache, borders, *lens, slots, scale, *self.room()]

    def suffix_attention_into(self) -> list[Any]:
        operands = self.suffix_attention()
        q = operands[0]
        out, lse = self.result(q, list(q.shape), q.dtype), self.result(q, list(q.shape[:-1]), torch.float32)
        return [*operands, out, self.maybe(lse)]

    def add_norm(self) -> list[Any]:
        r = self.random
        dtype, size = r.choice(FLOATS), r.choice([1, 2, 7, 8, 9, 16, 33, 300])
        shape = [r.randrange(9), *([r.randrange(4)] if self.chance(0.4) else []), size]
        x, residual, weight = self.tensor(shape, dtype), self.tensor(shape, dtype), self.tensor([size], dtype)
        eps = r.choice([math.nan, math.inf, -1.0]) if self.chance(self.wrong) else 1e-6
        return [x, self.maybe(r.choice([x, residual]) if self.chance(self.wrong) else residual), weight, eps]

    def rotate_(self) -> list[Any]:
        r = self.random
        dtype, tokens, size = r.choice(FLOATS), r.randrange(9), 2 * r.choice([1, 4, 7, 8, 9, 16, 33, 128])
        q, k = (self.tensor([tokens, r.randrange(4), size], dtype) for _ in range(2))
        if self.chance(0.4):  # side by side in one tensor
            fused = self.tensor([tokens, 5, size], dtype)
            q, k = (fused[:, :3], fused[:, 3:]) if fused.dim() > 1 else (fused, fused)
        cos, sin = (self.result(q, [tokens, size // 2], torch.float32) for _ in range(2))
        norms = [self.tensor([size], dtype) for _ in range(2)] if self.chance(0.5) else [None, None]
        if self.chance(self.wrong):
            norms[r.randrange(2)] = None
        eps = r.choice([math.nan, math.inf, -1.0]) if self.chance(self.wrong) else 1e-6
        return [q, q if self.chance(self.wrong) else k, cos, sin, *norms, eps]

    def silu_mul(self) -> list[Any]:
        size = 2 * self.random.choice([1, 2, 7, 8, 9, 16, 33, 300])
        return [self.tensor([self.random.randrange(9), size], self.random.choice(FLOATS))]

    def linear(self) -> list[Any]:
        r = self.random
        dtype, size, outputs = r.choice(FLOATS), r.choice([1, 7, 16, 33, 64, 130]), r.choice([1, 8, 30, 50])
        x = self.tensor([*([r.randrange(3)] if self.chance(0.3) else []), r.randrange(20), size], dtype)
        held = self.chance(0.4)
        weight = self.tensor([outputs, size], torch.int8 if held else dtype)
        scales = self.tensor([outputs], torch.float32) if held != self.chance(self.wrong) else None
        return [x, weight, self.maybe(self.tensor([outputs], dtype)), scales]

    def result(self, q: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
        """Contiguous, unless something is to be wrong."""
        if self.chance(self.wrong):
            return self.random.choice([q, self.tensor(shape, dtype)])
        out = torch.frombuffer(between_guards(max(math.prod(shape), 1) * dtype.itemsize, True), dtype=dtype)
        return out[: math.prod(shape)].view(shape)


def describe(name: str, operands: list[Any]) -> str:
    def one(x: Any) -> str:
        return f"{list(x.shape)}/{x.stride()}/{x.dtype}" if torch.is_tensor(x) else repr(x)

    return f"{name}({', '.join(map(one, operands))})"


def main(seed: int, count: int) -> None:
    fuzz, served, refused = Fuzz(seed), 0, 0
    names = [*SCHEMAS]
    for i in range(count):
        kept.clear()
        name = names[i % len(names)]
        fuzz.wrong = fuzz.random.choice([0.0, 0.03, 0.1, 0.3])
        operands = getattr(fuzz, name)()
        sys.stderr.write(f"{i}: {describe(name, operands)}\n")
        sys.stderr.flush()
        try:
            result = getattr(torch.ops.lsp, name)(*operands)
        except Exception as error:
            if fuzz.wrong == 0.0:
                raise AssertionError("good operands were refused") from error
            refused += 1
        else:
            for out in result if isinstance(result, tuple) else (result,) if result is not None else ():
                out.clone()
            served += 1
    print(served, refused)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

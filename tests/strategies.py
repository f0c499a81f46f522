"""Random ragged batches of logits in every layout, awkward values among them, and what the oracle says of each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from lsp_kernels import Noise, PrefixRule, Vocabulary
from tests import oracle
from tests.support import ints

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NANS = {  # quiet and signalling, of both signs
    torch.float32: (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001),
    torch.bfloat16: (0x7FC0, 0xFFC0, 0x7F81, 0xFF81),
    torch.float16: (0x7E00, 0xFE00, 0x7C01, 0xFC01),
}
KINDS = ("smooth", "ties", "extreme", "falling", "nan")
LAYOUTS = ("batch", "slice", "transposed", "wide rows", "packed", "packed wide rows", "single")


@dataclass
class CommitCase:
    """A batch as a user would pass it, and all rows of each sequence, as the oracle needs them."""

    logits: Tensor
    cu_rows: Tensor | None
    n_active: Tensor | None
    starts: Tensor | None
    rule: PrefixRule
    vocabulary: Vocabulary
    sequences: list[list[oracle.Row]]  # all N rows of each sequence, given or not
    first_rows: list[int]  # where each sequence's first active row is, among all rows
    delimiters: set[int]
    stops: set[int]

    def arguments(self) -> dict[str, object]:
        return {
            "cu_rows": self.cu_rows,
            "n_active": self.n_active,
            "starts": self.starts,
            "rule": self.rule,
            "vocabulary": self.vocabulary,
        }

    def expected(self) -> tuple[list[tuple[int, bool]], list[int], list[float]]:
        """Per sequence length and finished; per row token and margin."""
        rows = math.prod(self.logits.shape[:-1])
        chosen, tokens, margins = [], [-1] * rows, [-math.inf] * rows
        for first, sequence in zip(self.first_rows, self.sequences, strict=True):
            chosen.append(
                oracle.select(
                    [r.margin for r in sequence],
                    [r.token for r in sequence],
                    self.rule,
                    self.delimiters,
                    self.stops,
                )
            )
            for i in range(oracle.scored_rows(len(sequence), self.rule)):
                tokens[first + i], margins[first + i] = sequence[i].token, sequence[i].margin
        return chosen, tokens, margins

    def expected_top1(self) -> list[float]:
        """The largest logit of every scored row, -inf for the others."""
        out = [-math.inf] * math.prod(self.logits.shape[:-1])
        for first, sequence in zip(self.first_rows, self.sequences, strict=True):
            for i in range(oracle.scored_rows(len(sequence), self.rule)):
                out[first + i] = sequence[i].top1
        return out

    def draws(self, seed: int) -> tuple[Noise, list[oracle.Draw]]:
        """Noise of several temperatures, 0 among them, for all rows; and what it is made of."""
        rng, shape = np.random.default_rng(seed), self.logits.shape[:-1]
        count = math.prod(shape)
        temperatures = rng.choice(np.float32([0.0, 0.2, 0.7, 1.0, 5.0]), count).tolist()
        keys = rng.integers(-(2**63), 2**63, count).tolist()
        positions, numbers = (rng.choice([0, 1, 5, 1000, 2**31 - 1], count).tolist() for _ in range(2))
        draws = [oracle.Draw(*each) for each in zip(temperatures, keys, positions, numbers, strict=True)]
        columns = (torch.tensor(column).view(shape) for column in (temperatures, keys, positions, numbers))
        scale, key, place, number = columns
        return Noise(scale.float(), key.long(), place.long(), number.long()), draws


rules = st.builds(
    lambda alpha, beta, **kw: PrefixRule(min(alpha, beta), max(alpha, beta), **kw),
    alpha=st.sampled_from([0.000001, 0.07, 0.25, 0.3, 0.5, 1.0]),
    beta=st.sampled_from([0.1, 0.29, 0.5, 0.75, 1.0]),
    min_length=st.sampled_from([1, 1, 2, 5, 30]),
    window=st.sampled_from([0, 1, 3, 16]),
    floor=st.sampled_from([None, None, None, 0.0, 0.1, 1.0, 2.0, math.inf]),
    snap=st.booleans(),
    no_delimiter=st.sampled_from(["minimum", "keep"]),
)


def random_logits(rng: np.random.Generator, rows: int, size: int, kind: str, dtype: torch.dtype) -> Tensor:
    """Rows of values that the dtype holds exactly. `kind` says how awkward they are."""
    z = rng.normal(size=(rows, size)) * 3
    if kind != "smooth":
        z = np.round(z)  # ties
    if kind == "extreme":
        odd = rng.choice([np.inf, -np.inf, -0.0, 0.0, 0.1, 60000.0, 1e-40, -1e-40, 6e-8], size=z.shape)
        z = np.where(rng.random(z.shape) < 0.3, odd, z)
        z[rng.random(rows) < 0.2] = -np.inf
    if kind == "falling":  # long stable runs: margins that fall slowly
        z = -np.abs(z) - 1
        z[np.arange(rows), rng.integers(size, size=rows)] = np.linspace(8, 0, rows).round(1)
    out = torch.from_numpy(z.astype(np.float32)).to(dtype)
    if kind == "nan":
        bits = out.view(torch.int32 if dtype == torch.float32 else torch.int16)
        places = torch.from_numpy(rng.random(z.shape) < 0.3 / size)
        bits[places] = torch.tensor(int(rng.choice(NANS[dtype])), dtype=torch.int64).to(bits.dtype)
    return out


@st.composite
def cases(
    draw: st.DrawFn,
    sizes: tuple[int, ...] = (1, 2, 3, 17, 64, 65, 130, 520, 1100),
    most: int = 24,
    finite: bool = False,
) -> CommitCase:
    """`finite`: logits of sequences are finite; rows that nobody may look at hold NaN in any case."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layout = draw(st.sampled_from(LAYOUTS))
    rule = draw(rules)
    dtype = draw(st.sampled_from(DTYPES))
    size = draw(st.sampled_from(sizes))
    kind = draw(st.sampled_from(["smooth", "ties", "falling"] if finite else [*KINDS]))
    batch = 1 if layout == "single" else draw(st.integers(0, 5))
    counts = [int(rng.integers(0, most)) if rng.random() < 0.8 else int(rng.integers(0, 3)) for _ in range(batch)]
    vocabulary, delimiters, stops, suppressed = random_vocabulary(draw, rng, size, rule)

    # Every sequence has N rows. The kernel gets the scored ones and perhaps more; unrelated rows may precede them.
    full = [random_logits(rng, n, size, kind, dtype) for n in counts]
    sequences = [[oracle.score_row(row, suppressed) for row in z.float().tolist()] for z in full]
    whole = draw(st.booleans())
    given = [n if whole else int(rng.integers(oracle.scored_rows(n, rule), n + 1)) for n in counts]
    starts = [int(rng.integers(0, 4)) if draw(st.booleans()) else 0 for _ in counts]
    windows = []
    for z, n, rows, start in zip(full, counts, given, starts, strict=True):
        window = torch.full((start + rows, size), math.nan, dtype=dtype)
        scored = oracle.scored_rows(n, rule)
        window[start : start + scored] = z[:scored]
        windows.append(window)
    logits, cu_rows, first_rows = lay_out(layout, windows, size, dtype)
    explicit = not whole or cu_rows is None or draw(st.booleans())
    return CommitCase(
        logits,
        cu_rows,
        ints(*counts) if explicit else None,
        ints(*starts) if any(starts) else None,
        rule,
        vocabulary,
        sequences,
        [first + start for first, start in zip(first_rows, starts, strict=True)],
        delimiters,
        stops,
    )


def random_vocabulary(
    draw: st.DrawFn, rng: np.random.Generator, size: int, rule: PrefixRule
) -> tuple[Vocabulary, set[int], set[int], set[int]]:
    def some(share: float) -> set[int]:
        return set(np.flatnonzero(rng.random(size) < share).tolist())

    delimiters = some(draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])))
    if rule.snap and not delimiters:
        delimiters = {int(rng.integers(size))}
    stops = some(draw(st.sampled_from([0.0, 0.0, 0.02, 0.3])))
    suppressed = some(draw(st.sampled_from([0.0, 0.02, 0.5, 0.99])))
    if len(suppressed) == size:
        suppressed.remove(int(rng.integers(size)))
    return Vocabulary(size, delimiters, stops, suppressed), delimiters, stops, suppressed


def lay_out(
    layout: str, windows: list[Tensor], size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, list[int]]:
    """Logits in a layout, filled up with NaN; borders if packed; the index of each sequence's first row."""
    lengths = [len(w) for w in windows]
    if layout == "single":
        return windows[0], None, [0]
    if layout.startswith("packed"):
        borders = np.cumsum([0, *lengths])
        packed = torch.cat([torch.empty(0, size, dtype=dtype), *windows])
        if layout == "packed wide rows":
            wide = torch.full((len(packed), size + 5), math.nan, dtype=dtype)
            wide[:, 2 : size + 2] = packed
            packed = wide[:, 2 : size + 2]
        return packed, torch.tensor(borders, dtype=torch.int32), borders[:-1].tolist()
    length = max(lengths, default=0)
    batch = torch.full((len(windows), length + 4, size + 3), math.nan, dtype=dtype)
    view = {
        "batch": batch[:, :length, :size].contiguous(),
        "slice": batch[:, 2 : 2 + length, :size],
        "wide rows": batch[:, :length, 1 : 1 + size],
        "transposed": batch.transpose(0, 1).contiguous().transpose(0, 1)[:, :length, :size],
    }[layout]
    for b, window in enumerate(windows):
        view[b, : len(window)] = window
    return view, None, [b * length for b in range(len(windows))]

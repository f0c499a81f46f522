"""Masks of whole lines, and cuts that are trained side by side.

A suffix mask teaches one next token for a whole row, which is too little where rows are long. With
*parallel cuts* a row holds the answer twice: as it is, and once more all masked. The cuts divide both
into segments; a masked segment sees the prompt, the answer before its cut and itself, the answer sees
its own past. So every segment is predicted as after a suffix mask, in one pass. Of a long answer a row
holds a few lines only, where they stand: attention to all of it would cost more than it teaches.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

LINE_CUT, RESULT_CUT, OTHER_CUT = 0.7, 0.25, 0.02
"""Chances of a cut before a line, before a value or a verdict, and before any other token."""

ISLANDS = 20
"""How far behind a cut tokens are shown, if some are."""

BLOCK = 16
"""Tokens of a block of which the model itself shows the surest."""

CACHED_BLOCK = 6, 25
"""Tokens that a cache takes in at a time: from, below."""

WEIGHT_CAP = 8.0
"""The most that a masked token weighs."""

FIRST_WEIGHT = 3.0
"""Of the first token of a segment, the next that a decoder commits."""


@dataclass
class Batch:
    """Inputs with masks, targets, and the weight of each masked position's loss."""

    inputs: Tensor  # [B, T]
    targets: Tensor  # [B, T]
    masked: Tensor  # [B, T] bool
    weights: Tensor  # [B, T]
    answer_tokens: int
    visible: Tensor | None = None  # [B, 1, T, T] bool, what each position may attend to
    positions: Tensor | None = None  # [B, T], where each token stands if not in its order
    blocks: Tensor | None = None  # [B, T], the number of the block whose surest tokens are to be shown, -1: of none
    shares: Tensor | None = None  # [blocks], how much of each


def fade(distance: Tensor, horizon: int) -> Tensor:
    """The weight of a token so far behind the cut: half of it after `horizon` tokens, never less than 0.1."""
    return torch.exp2(-distance.clamp(min=0) / horizon).clamp(min=0.1)


def hide_line(targets: Tensor, prompts: Tensor, ends: Tensor, eos_id: int, generator: torch.Generator) -> Tensor:
    """One line or sentence of every answer, without what ends it, [B, T] bool."""
    answer = (torch.arange(targets.shape[1]) >= prompts[:, None]) & (targets != eos_id)
    end = torch.isin(targets, ends) & answer
    index = end.cumsum(1)
    lines = (answer & ~end) * (index + 1)  # 0 where there is nothing to hide
    chosen = (torch.rand(len(targets), generator=generator) * lines.amax(1)).long() + 1
    return lines == chosen[:, None]


def islands(groups: int, share: float, generator: torch.Generator) -> Tensor:
    """For each cut how likely a token behind it is shown all the same: any density in a share of the groups, else 0."""
    density, chosen = torch.rand(2, groups, generator=generator)
    return torch.where(chosen < share, density, 0.0)


def shown(behind: Tensor, density: Tensor, generator: torch.Generator) -> Tensor:
    """Which tokens, so far behind a cut, are shown as if a decoder had committed them there; never the first, bool."""
    near = (behind > 0) & (behind < ISLANDS)
    return near & (torch.rand(behind.shape, generator=generator) < density)


def seen_from_cache(prompts: Tensor, cuts: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
    """Who sees whom where a cache holds the prefix of a cut, [B, T, T] bool; rows whose cut is the end see everything.

    The prompt and every whole block of the answer before the cut were computed when all behind them was masked: they
    see no later block, but the masks.
    """
    rows, width = masked.shape
    length = torch.randint(*CACHED_BLOCK, (rows,), generator=generator)
    phase = (torch.rand(rows, generator=generator) * length).long()
    behind = torch.arange(width) - prompts[:, None]
    block = torch.where(behind < 0, -1, (behind + phase[:, None]) // length[:, None])
    held = block < block.gather(1, cuts.clamp(max=width - 1)[:, None])
    held &= (cuts < width)[:, None]
    earlier = block[:, None, :] <= block[:, :, None]
    return ~held[:, :, None] | earlier | masked[:, None, :]


def choose_cuts(row: Tensor, prompt: int, lines: Tensor, results: Tensor, generator: torch.Generator) -> Tensor:
    """Which tokens begin a segment, [T] bool; the answer's first does."""
    begins = torch.isin(row.roll(1), lines)
    chance = torch.where(begins, LINE_CUT, torch.where(results, RESULT_CUT, OTHER_CUT))
    cuts = torch.rand(len(row), generator=generator) < chance
    cuts[:prompt] = False
    cuts[prompt] = True
    return cuts


def block_cuts(places: Tensor, prompt: int, given: int) -> Tensor:
    """The same where the segments are the blocks of a decoder, which begin behind the prompt, [T] bool."""
    begins = (places - prompt) % BLOCK == 0
    begins[:given] = False
    begins[given] = True
    return begins


@dataclass
class Row:
    """Tokens, how many of them are given, where each stands, which begin a segment, and which are islands."""

    tokens: Tensor
    given: int
    places: Tensor
    cuts: Tensor
    islands: Tensor | None = None
    in_blocks: bool = False  # whether the model shows what is surest of each segment

    @property
    def behind(self) -> Tensor:
        """How far each token is behind the cut before it."""
        order = torch.arange(len(self.tokens))
        return order - torch.where(self.cuts, order, 0).cummax(0).values

    def with_islands(self, share: float, generator: torch.Generator) -> "Row":
        """The same with islands in a share of the segments."""
        segment = self.cuts.cumsum(0)
        density = islands(int(segment[-1]) + 1, share, generator)[segment]
        return replace(self, islands=shown(self.behind, density, generator))


def window(row: Tensor, prompt: int, lines: Tensor, most: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """The places of the prompt and of `most` lines of the answer, and how many are given.

    The first of the lines is given too, unless it is the answer's first: nothing tells what it follows.
    """
    begins = [prompt, *(torch.isin(row[prompt:], lines).nonzero()[:, 0] + prompt + 1).tolist()]
    places = torch.arange(len(row))
    if len(begins) <= most:
        return places, prompt
    first = int(torch.randint(len(begins) - most + 1, (), generator=generator))
    end = [*begins, len(row)][first + most]
    kept = torch.cat([places[:prompt], places[begins[first] : end]])
    return kept, prompt + (begins[first + 1] - begins[first] if first else 0)


def lay_out(batch: list[Row], mask_id: int, eos_id: int) -> tuple[Batch, Tensor]:
    """The batch of these rows, with the answers twice, and the blocks of which the model shows the surest."""
    clean = max(len(row.tokens) for row in batch)
    shape = len(batch), clean + max(len(row.tokens) - row.given for row in batch)
    targets, inputs = torch.full(shape, eos_id), torch.full(shape, eos_id)
    positions, segments = torch.zeros(shape, dtype=torch.long), torch.full(shape, -1)
    masked, weights = torch.zeros(shape, dtype=torch.bool), torch.ones(shape)
    blocks = torch.full(shape, -1)
    for i, row in enumerate(batch):
        length = len(row.tokens)
        copy = slice(clean, clean + length - row.given)
        for part, source in ((slice(length), slice(None)), (copy, slice(row.given, None))):
            targets[i, part], positions[i, part] = row.tokens[source], row.places[source]
            segments[i, part] = row.cuts.cumsum(0)[source]
            inputs[i, part] = row.tokens[source]
        masked[i, copy] = True if row.islands is None else ~row.islands[row.given :]
        weights[i, copy] = torch.where(row.behind == 0, FIRST_WEIGHT, fade(row.behind, 12))[row.given :]
        if row.in_blocks:
            blocks[i, copy] = segments[i, copy] + blocks.max()
    inputs[masked] = mask_id
    visible = _visible(segments, clean)
    return Batch(inputs, targets, masked, weights, int(masked.sum()), visible[:, None], positions), blocks


def _visible(segments: Tensor, clean: int) -> Tensor:
    """Who sees whom, [B, T, T] bool, from the segments (-1 is padding, which sees itself)."""
    query, key = segments[:, :, None], segments[:, None, :]
    is_copy = torch.arange(segments.shape[1]) >= clean
    past = torch.where(is_copy[:, None], key < query, key <= query) & ~is_copy
    same = is_copy[:, None] & is_copy & (key == query)
    present = (query >= 0) & (key >= 0)
    return (past | same) & present | torch.eye(segments.shape[1], dtype=torch.bool)

"""Training batches: problems of similar length, and the masks a decoder will meet.

Everything is a function of (seed, rank, step), so a resumed run needs no generator state. The
ranks of a step get batches of like shape, so that none waits long for the others.

Some masks are the usual random ones, but with these alone the model learns to copy a result from
its later mention and never to compute it. *Suffix masks* hide all that follows a cut, as a decoder
that works from left to right sees it; many cuts stand right after a token that announces a
computed result ("=", "#"). *Result masks* hide some of the results together with their later
mentions and nothing else. *Choice masks* hide most or all of the numbers and operators of a
Countdown answer and show its words, which leaves the search alone. `drills` are the cheapest way to
learn the number facts. `curriculum` says how much of each.
"""

import random
from dataclasses import replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from lsp.tiny.tasks import MAX_NUMBER, draw, region
from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training.curriculum import ANNOUNCES, CURRICULA, Curriculum, Recipe
from lsp.tiny.training.cuts import (
    BLOCK,
    WEIGHT_CAP,
    Batch,
    Row,
    block_cuts,
    choose_cuts,
    fade,
    hide_line,
    islands,
    lay_out,
    seen_from_cache,
    shown,
    window,
)
from lsp.tiny.training.drills import DRILLS

POOL = 8
"""Steps that share one pool of examples, which is sorted by length before it is cut."""

VERDICTS = (" yes", " no")
WINDOW = 10
"""Lines of a trace in a row with parallel cuts."""

LINE_ENDS = {
    "arithmetic": (".",),
    "countdown": (",",),
    "sudoku": ("\n",),
    "code": ("\n    ", "\n        ", "\n            "),
    "traces": ("\n",),
}
"""What stands between two lines or sentences of an answer."""

CHOICE_WORDS = ("First", " =", ",", " then", ".")
"""What a choice mask shows of a Countdown answer."""


class Batches:
    """The batches of one rank."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int,
        rank: int,
        scale: float = 1.0,
        curriculum: Curriculum = CURRICULA["first"],
    ):
        self.tokenizer, self.seed, self.rank, self.scale = tokenizer, seed, rank, scale
        self.curriculum = curriculum
        first = curriculum.stages[0]
        self.parts = (*first.recipes, *(f"parallel {task}" for task in first.parallel), "drill")
        self.mask_id = tokens.token_id(tokenizer, tokens.MASK)
        self.eos_id = tokens.token_id(tokenizer, tokens.EOS)
        self._pools: dict[str, tuple[int, list[list[tuple[list[int], int]]]]] = {}

    def part(self, part: str, step: int) -> tuple[Batch, float]:
        """The batch of one of `parts`, and the weight of its loss."""
        stage = self.curriculum.at(step)
        if part == "drill":
            return self.drill(step), 1.0
        kind, _, task = part.partition(" ")
        if task:
            return self.parallel(task, step), stage.parallel[task].weight
        return self.batch(kind, step), stage.recipes[kind].weight

    def batch(self, task: str, step: int) -> Batch:
        recipe = self.curriculum.at(step).recipes[task]
        rng = random.Random(f"{self.seed} {self.rank} {task} {step}")
        generator = torch.Generator().manual_seed(rng.getrandbits(60))
        examples = self._examples(task, step, recipe)
        shape = random.Random(f"{self.seed} {task} {step} shape")
        if full := shape.random() < recipe.full:
            examples = examples[: max(1, round(recipe.full_batch * self.scale))]
        prompts = torch.tensor([prompt for _, prompt in examples])
        longest = max(len(ids) for ids, _ in examples)
        width = int(prompts.max()) + region(task) if full else longest + 1 + shape.randint(0, recipe.tail)
        targets = torch.full((len(examples), width), self.eos_id)
        for row, (ids, _) in zip(targets, examples, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        masked, weights, cuts, in_blocks = self._mask(targets, prompts, task, recipe, generator)
        draws = torch.rand(len(examples), generator=generator)
        if recipe.results:
            hidden = self._hide_results(targets, prompts, ANNOUNCES[task], generator)
            self._replace(targets, prompts, masked, weights, cuts, draws < recipe.results, hidden)
        if recipe.choices:
            hidden = self._hide_choices(targets, prompts, generator)
            self._replace(targets, prompts, masked, weights, cuts, draws > 1 - recipe.choices, hidden)
        if recipe.infill:
            hidden = hide_line(targets, prompts, self._signs(LINE_ENDS[task]), self.eos_id, generator)
            self._replace(targets, prompts, masked, weights, cuts, (draws - 0.5).abs() < recipe.infill / 2, hidden)
        blocks, visible = torch.full(targets.shape, -1), None
        if recipe.blocks:
            behind = torch.arange(width) - cuts[:, None]
            here = in_blocks[:, None] & (behind >= 0) & (behind < BLOCK)
            blocks[here] = torch.arange(len(examples))[:, None].expand(blocks.shape)[here]
        if recipe.stale:
            cuts[torch.rand(len(examples), generator=generator) >= recipe.stale] = width
            visible = seen_from_cache(prompts, cuts, masked, generator)[:, None]
        inputs = targets.masked_fill(masked, self.mask_id)
        batch = Batch(inputs, targets, masked, weights, sum(len(i) + 1 - p for i, p in examples), visible)
        return self._shares(batch, blocks, generator)

    def _shares(self, batch: Batch, blocks: Tensor, generator: torch.Generator) -> Batch:
        """The batch with these blocks, if there are any, and how much of each the model is to show."""
        if (blocks < 0).all():
            return batch
        return replace(batch, blocks=blocks, shares=torch.rand(int(blocks.max()) + 1, generator=generator).sqrt())

    def parallel(self, task: str, step: int) -> Batch:
        """Answers with parallel cuts."""
        part = f"parallel {task}"
        rng = random.Random(f"{self.seed} {self.rank} {part} {step}")
        generator = torch.Generator().manual_seed(rng.getrandbits(60))
        recipe = self.curriculum.at(step).parallel[task]
        examples = self._examples(task, step, recipe, part)
        lines, rows = self._signs(LINE_ENDS[task]), []
        for ids, prompt in examples:
            row = torch.tensor([*ids, self.eos_id])
            places, given = window(row, prompt, lines, WINDOW, generator)
            row = row[places]
            in_blocks = recipe.blocks > 0 and float(torch.rand(1, generator=generator)) < recipe.blocks
            if in_blocks:
                cuts = block_cuts(places, prompt, given)
            else:
                cuts = choose_cuts(row, given, lines, self._results(row[None], task)[0], generator)
            one = Row(row, given, places, cuts, in_blocks=in_blocks)
            rows.append(one.with_islands(recipe.islands, generator) if recipe.islands and not in_blocks else one)
        batch, blocks = lay_out(rows, self.mask_id, self.eos_id)
        return self._shares(batch, blocks, generator)

    def drill(self, step: int) -> Batch:
        """Rows of unrelated equations or statements, a part of each hidden."""
        rng = random.Random(f"{self.seed} {self.rank} drill {step}")
        rows: list[tuple[list[int], list[int]]] = []
        for kind, count in self.curriculum.at(step).drills.items():
            drill = DRILLS[kind]
            signs = {tokens.token_id(self.tokenizer, sign) for sign in drill.signs}
            for text in drill.texts(rng, count):
                ids = self.tokenizer.encode(text).ids
                hidden = drill.hidden(rng, [i for i, token in enumerate(ids) if token in signs])
                rows.append((ids, [i for i in hidden if i < len(ids)]))
        targets = torch.full((len(rows), max(len(ids) for ids, _ in rows)), self.eos_id)
        masked = torch.zeros(targets.shape, dtype=torch.bool)
        for i, (ids, hidden) in enumerate(rows):
            targets[i, : len(ids)] = torch.tensor(ids)
            masked[i, hidden] = True
        inputs = targets.masked_fill(masked, self.mask_id)
        return Batch(inputs, targets, masked, torch.ones(targets.shape), int(masked.sum()))

    def _hide_results(self, targets: Tensor, prompts: Tensor, announces: str, generator: torch.Generator) -> Tensor:
        """Some results and their mentions up to the next announcement, [B, T] bool."""
        region = torch.arange(targets.shape[1]) >= prompts[:, None]
        announced = (targets == tokens.token_id(self.tokenizer, announces)) & region
        index = announced.cumsum(1) - announced.int()  # announcements before each position
        width = int(index.max()) + 1
        results = torch.full((len(targets), width), self.eos_id)
        row, position = announced.nonzero(as_tuple=True)
        results[row, index[row, position] + 1] = targets[row, position + 1]
        hidden = torch.rand(len(targets), width, generator=generator) < 0.4
        mentions = targets == results.gather(1, index)
        return mentions & hidden.gather(1, index) & (index > 0)

    def _hide_choices(self, targets: Tensor, prompts: Tensor, generator: torch.Generator) -> Tensor:
        """Most or all of the numbers and operators, [B, T] bool."""
        shown = torch.tensor([self.eos_id, *(tokens.token_id(self.tokenizer, word) for word in CHOICE_WORDS)])
        choices = (torch.arange(targets.shape[1]) >= prompts[:, None]) & ~torch.isin(targets, shown)
        ratio = 0.5 + 0.7 * torch.rand(len(targets), 1, generator=generator)
        return choices & (torch.rand(targets.shape, generator=generator) < ratio)

    def _replace(
        self,
        targets: Tensor,
        prompts: Tensor,
        masked: Tensor,
        weights: Tensor,
        cuts: Tensor,
        chosen: Tensor,
        hidden: Tensor,
    ) -> None:
        """Give the chosen rows these masks instead, if they hide anything, at the weight of the whole answer."""
        chosen = chosen & hidden.any(1)
        lengths = (targets != self.eos_id).sum(1) - prompts + 1
        masked[chosen], cuts[chosen] = hidden[chosen], targets.shape[1]
        weights[chosen] = (lengths / hidden.sum(1)).clamp(max=WEIGHT_CAP)[chosen, None]

    def _examples(self, task: str, step: int, recipe: Recipe, part: str = "") -> list[tuple[list[int], int]]:
        """(ids of prompt and answer, length of the prompt) for every row of this step's batch."""
        part = part or task
        pool, size = step // POOL, max(1, round(recipe.batch * self.scale))
        if part not in self._pools or self._pools[part][0] != pool:
            rng = random.Random(f"{self.seed} {self.rank} {part} pool {pool}")
            examples = [self._encode(task, rng, recipe) for _ in range(POOL * size)]
            examples.sort(key=lambda example: len(example[0]))
            batches = [examples[i * size : (i + 1) * size] for i in range(POOL)]
            random.Random(f"{self.seed} {part} pool {pool}").shuffle(batches)
            self._pools[part] = pool, batches
        return self._pools[part][1][step % POOL]

    def _encode(self, task: str, rng: random.Random, recipe: Recipe) -> tuple[list[int], int]:
        level = rng.choice(recipe.levels) if recipe.levels else None
        problem = draw(task, rng, "train", level, int(rng.random() < recipe.reworded))
        prompt, answer = (self.tokenizer.encode(t).ids for t in (problem.prompt, problem.answer))
        return prompt + answer, len(prompt)

    def _signs(self, words: tuple[str, ...]) -> Tensor:
        return torch.tensor([tokens.token_id(self.tokenizer, word) for word in words])

    def _results(self, targets: Tensor, task: str) -> Tensor:
        """What was computed: what follows an announcement, in traces the values and the verdicts, [B, T] bool."""
        if task in ANNOUNCES:
            return (targets == tokens.token_id(self.tokenizer, ANNOUNCES[task])).roll(1, 1)
        numbers = self._signs(tuple(f" {number}" for number in range(MAX_NUMBER + 1)))
        named = torch.isin(targets.roll(1, 1), self._signs((" a", " k", " n")))
        return (torch.isin(targets, numbers) & named) | torch.isin(targets, self._signs(VERDICTS))

    def _mask(
        self,
        targets: Tensor,
        prompts: Tensor,
        task: str,
        recipe: Recipe,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Masked positions, their weights, where rows are cut, and whether the model shows what is surest behind it.

        Weights are 1/t for random masks, the like for suffixes. A row of random masks is cut at its end.
        """
        rows, width = targets.shape
        positions = torch.arange(width)
        region = positions >= prompts[:, None]

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator)

        # random masks, the ratio t spread evenly over the batch
        ratio = (torch.randperm(rows, generator=generator) + uniform(1)) / rows
        ratio = ratio.clamp(0.03, 1.0)[:, None]
        masked = (uniform(rows, width) < ratio) & region
        weights = (1 / ratio).clamp(max=WEIGHT_CAP).expand(rows, width).clone()

        # suffix masks: everything from the cut on
        lengths = ((targets != self.eos_id) & region).sum(1)
        cut = prompts + (uniform(rows) * (lengths + 1)).long()
        if recipe.result_cut:
            results = self._results(targets, task) & region
            picked = torch.multinomial(results.float(), 1, generator=generator)[:, 0]
            cut = torch.where(uniform(rows) < recipe.result_cut, picked, cut)
        if recipe.name_cut:
            cut = torch.where(uniform(rows) < recipe.name_cut, prompts + 1, cut)
        if recipe.step_cut:
            ends = torch.isin(targets, self._signs(LINE_ENDS[task])) & region
            ends[torch.arange(rows), prompts - 1] = True
            picked = torch.multinomial(ends.float(), 1, generator=generator)[:, 0] + 1
            cut = torch.where(uniform(rows) < recipe.step_cut, picked, cut)
        in_blocks = torch.zeros(rows, dtype=torch.bool)
        if recipe.blocks:
            in_blocks = uniform(rows) < recipe.blocks
            cut = torch.where(in_blocks, cut - (cut - prompts) % BLOCK, cut)
        suffix = uniform(rows) < recipe.suffix
        masked = torch.where(suffix[:, None], (positions >= cut[:, None]) & region, masked)
        share = (lengths + 1) / (prompts + lengths + 1 - cut)
        weights[suffix] = share.clamp(max=WEIGHT_CAP)[suffix, None]
        if recipe.horizon:
            weights[suffix] *= fade(positions - cut[suffix, None], recipe.horizon)
        if recipe.islands:
            behind = positions - cut[:, None]
            density = islands(rows, recipe.islands, generator).masked_fill(in_blocks, 0)[:, None]
            masked &= ~(suffix[:, None] & shown(behind, density, generator))
        # the first masked token is what such a decoder commits next
        weights[suffix, cut[suffix]] = WEIGHT_CAP

        empty = ~masked.any(1)
        masked[empty, prompts[empty]] = True
        tail = (targets == self.eos_id) & region
        weights = torch.where(tail, weights * (3 * rows / tail.sum().clamp(min=3 * rows)), weights)
        return masked, weights, torch.where(suffix, cut, width), in_blocks

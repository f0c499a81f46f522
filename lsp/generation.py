"""From prompts to text: `generate`, and `stream` for text as soon as it is committed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple

import numpy as np

from lsp.decoding import Chosen, DecodingError, Options, Progress, Scheduler, Step, decode
from lsp.decoding.canvas import Canvas
from lsp.decoding.writer import Writer
from lsp.extras import needed_by
from lsp.models import adapt
from lsp.prompts import Prompt, as_batch, encode, tokenizer_of
from lsp.schedulers import scheduler_of
from lsp.tokens import Delimiters
from lsp.tokens import vocabulary as vocabulary_of
from lsp_kernels import Vocabulary
from lsp_kernels.errors import as_integer, deprecated


class Fill(NamedTuple):
    """What a hole was filled with: its text, without special tokens (None without a tokenizer), and its tokens."""

    text: str | None
    tokens: list[int]


@dataclass(frozen=True)
class Generation:
    """What came after one prompt, or from its first mask on.

    Attributes
    ----------
    text : str or None
        Without special tokens and from a stop string on; None without a tokenizer. If the prompt has masks, it begins
        at the first one and holds what was given after that.
    tokens : list of int
        All committed tokens, a stop included, and given ones that follow a mask.
    finished : bool
        Whether it ended by a stop token or a stop string, and not by its length.
    committed_in : list of int
        Which pass, from 0, committed each token; -1 for given ones.
    passes : int
        Passes of the model, which the field calls NFE (number of function evaluations).
    positions : int
        How many token positions went through the model in all these passes.
    seconds : dict
        Time of the whole call, of all prompts together, by part: ``model``, ``head`` (LM head and commit), ``host``
        (all else).
    scheduler, options
        What decoded it.
    logprobs : float32 array or None
        Log-probability of each token in the pass that committed it, under the logits without noise, if asked for. NaN
        for given tokens, and where a scheduler of your own wrote another token than the step gave it.
    fills : list of Fill
        What each hole of the prompt was filled with, in their order. Neighbouring masks are one hole.
    """

    text: str | None
    tokens: list[int]
    finished: bool
    committed_in: list[int]
    passes: int
    positions: int
    seconds: dict[str, float]
    scheduler: Scheduler
    options: Options
    logprobs: np.ndarray | None = field(default=None, compare=False)  # arrays have no single answer to ==
    fills: list[Fill] = field(default_factory=list)

    @property
    def commits(self) -> list[int]:
        """How many of the tokens each pass committed."""
        counts = [0] * self.passes
        for number in self.committed_in:
            if number >= 0:
                counts[number] += 1
        return counts

    @property
    def steps(self) -> list[int]:
        """The old name of `committed_in`."""
        deprecated("Generation.steps", "Generation.committed_in")
        return self.committed_in

    @property
    def tokens_per_pass(self) -> float:
        return sum(self.commits) / max(self.passes, 1)


def generate(
    model: Any, prompts: Prompt | Sequence[Prompt], *, streamer: Any = None, progress: bool = False, **arguments: Any
) -> list[Generation]:
    """Continues prompts with a diffusion language model.

    Parameters
    ----------
    model
        From `lsp.load`, or anything that `lsp.adapt` takes.
    prompts : str, chat, list of int, or a list of these
        They may have different lengths. A chat is a list of ``{"role": ..., "content": ...}`` and goes through the
        tokenizer's template. Mask ids in a prompt are filled, and so are markers in a text: ``<mask:12>`` is 12 masks.
    max_new_tokens : int, optional
        How many masks follow each prompt; by default 128, and none if the prompts have masks of their own.
    scheduler : Scheduler, function or str
        By default `lsp.LongestStablePrefix()`; a name of `lsp.schedulers.NAMES`, a scheduler with its own parameters,
        or a function of a `lsp.decoding.Step`.
    tokenizer : optional
        By default the one of the model's folder. Prompts of ids need none.
    vocabulary : Vocabulary, optional
        By default made from the tokenizer, with the delimiters that `delimiters` names. The mask is always suppressed.
    delimiters
        What a prefix may end with, as in `lsp.tokens.delimiter_ids`; ``"text"`` by default.
    stop : str or sequence of str
        Texts that end the continuation; they are not part of it.
    seed : int or sequence of int
        Seed of the noise, 64 bits, for a temperature above 0. Prompt i has seed + i, so that a result does not depend
        on the batch.
    batch_size : int, optional
        How many prompts are decoded at a time, by default all. The next prompt takes the place of a finished one, so
        that the batch stays full while prompts wait; the cache has room for this many. A result does not depend on it.
    logprobs : bool
        Whether the log-probability of every committed token is kept.
    n : int
        How many samples of each prompt, which needs a temperature. Each has a seed that is derived from the prompt's;
        the first has that itself. Results are in the order of the prompts, the samples of one side by side.
    negative_prompt : optional
        What guidance (`cfg_scale`) leads away from, instead of a prompt of masks: one for all prompts, or one for each.
    streamer : optional
        A streamer of transformers, such as `TextStreamer`, for a single prompt.
    progress : bool
        Shows a bar on stderr (needs rich).
    **options
        Options of the loop, as in `lsp.Options`: block_length, blocks, delimiter_confidence, lookahead, cache,
        recompute, refresh_every, refresh_scattered, stop_early, temperature, top_p, top_k, cfg_scale, graph. Each
        replaces the one that the scheduler brings along.

    Returns
    -------
    list of Generation
        One per prompt, or `n`.

    Examples
    --------
    >>> import lsp
    >>> model = lsp.load("tiny")
    >>> (answer,) = lsp.generate(model, "Use 3, 5 and 7 to make 15.\\n", max_new_tokens=32)
    >>> answer.text
    'First 7 + 5 = 12, then 12 + 3 = 15.'
    """
    run = Run(model, prompts, **arguments)
    if streamer is not None:
        run.attach(streamer)
    run.to_the_end(progress)
    return run.generations()


def stream(model: Any, prompt: Prompt, **arguments: Any) -> Iterator[str]:
    """The continuation of one prompt, piece by piece as it is committed. A committed prefix is final, so text is too.

    Takes the arguments of `generate`. Bytes of an unfinished character, and what may become a stop string, are held
    back until they are complete.

    Examples
    --------
    >>> import lsp
    >>> "".join(lsp.stream(lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\\n", max_new_tokens=32))
    'First 7 + 5 = 12, then 12 + 3 = 15.'
    """
    run = Run(model, prompt, **arguments)
    if len(run.prompts) != 1 or run.tokenizer is None:
        raise ValueError(f"Invalid prompt: expected a single one and a tokenizer, got {len(run.prompts)} prompts")
    for _ in run:
        if piece := run.writers[0].piece():
            yield piece


class Run:
    """One call of `generate`: checked arguments, the loop, and the text that comes out of it."""

    def __init__(
        self,
        model: Any,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int | None = None,
        scheduler: Scheduler | Callable[[Step], list[Chosen]] | str | None = None,
        tokenizer: Any = None,
        vocabulary: Vocabulary | None = None,
        delimiters: Delimiters = "text",
        stop: str | Sequence[str] = (),
        seed: int | Sequence[int] = 0,
        batch_size: int | None = None,
        logprobs: bool = False,
        negative_prompt: Prompt | Sequence[Prompt] | None = None,
        n: int = 1,
        **options: Any,
    ) -> None:
        self.scheduler = scheduler_of(scheduler)
        self.options: Options = self.scheduler.options.replaced_by(options)
        self.model = adapt(model)
        self.tokenizer = tokenizer_of(self.model) if tokenizer is None else tokenizer
        mask = self.model.config.mask_id
        encoded = [encode(prompt, self.tokenizer, mask) for prompt in as_batch(prompts)]
        self.samples = as_integer("n", n, 1)
        if self.samples > 1 and self.options.temperature == 0:
            raise ValueError(f"Invalid n: expected 1 without a temperature, as all samples would be the same, got {n}")
        self.prompts = [prompt for prompt in encoded for _ in range(self.samples)]
        self.max_new_tokens = new_tokens(max_new_tokens, [mask in prompt for prompt in self.prompts])
        self.vocabulary = self._vocabulary(vocabulary, delimiters)
        stops = [stop] if isinstance(stop, str) else list(stop)
        if stops and self.tokenizer is None:
            raise ValueError("Invalid stop: expected none without a tokenizer, got stop strings")
        self.seeds = self._seeds(seed)
        self._passes = decode(
            self.model,
            self.prompts,
            self.max_new_tokens,
            self.scheduler,
            self.vocabulary,
            self.options,
            self.seeds,
            batch_size,
            logprobs,
            self._negatives(negative_prompt),
        )
        self.state: Progress = next(self._passes)  # checks the prompts
        self.writers = [Writer(canvas, self.tokenizer, stops) for canvas in self.state.canvases]
        self.total = sum(canvas.masks_at_start for canvas in self.state.canvases)
        self._streamer: Any = None

    def __iter__(self) -> Iterator[Progress]:
        for state in self._passes:
            for number in state.in_pass:
                self.writers[number].update()
            if self._streamer is not None:
                self._feed()
            yield state
        if self._streamer is not None:
            self._streamer.end()

    def to_the_end(self, progress: bool = False, finished: Callable[[int], None] | None = None) -> None:
        """Runs all passes; tells `finished` the number of every prompt as soon as its continuation is complete."""
        with bar(self.total) if progress else nullcontext() as show:
            for state in self:
                if show is not None:
                    show(self.total - sum(canvas.masks_left for canvas in state.canvases))
                for number in state.in_pass:
                    if finished is not None and not state.canvases[number].active:
                        finished(number)

    def attach(self, streamer: Any) -> None:
        """Gives the tokens to a streamer of transformers."""
        if len(self.prompts) != 1:
            raise ValueError(f"Invalid streamer: expected a single prompt, got {len(self.prompts)}")
        import torch

        self._streamer, self._fed = streamer, 0
        before = self.prompts[0][
            : self.writers[0].canvas.start
        ]  # what follows the first mask comes when that is filled
        streamer.put(torch.tensor([before], dtype=torch.int64))

    def _feed(self) -> None:
        import torch

        writer = self.writers[0]
        tokens = writer.canvas.run[: writer.final_tokens]
        if len(tokens) > self._fed:
            self._streamer.put(torch.from_numpy(tokens[self._fed :].copy()))
            self._fed = len(tokens)

    def generations(self) -> list[Generation]:
        seconds = self.state.clock.seconds
        return [self._generation(writer.canvas, writer, seconds) for writer in self.writers]

    def _generation(self, canvas: Canvas, writer: Writer, seconds: dict[str, float]) -> Generation:
        tokens = canvas.run.tolist()
        new = slice(canvas.start, canvas.first_mask)
        dropped, last = canvas.end < len(canvas.tokens), canvas.end - 1
        by_a_stop = bool(tokens) and canvas.committed_in[last] >= 0 and tokens[-1] in self.vocabulary.stop_ids
        stopped = self.options.stop_early and (dropped or by_a_stop)
        return Generation(
            text=writer.text if self.tokenizer is not None else None,
            tokens=tokens,
            finished=stopped or writer.stopped,
            committed_in=canvas.committed_in[new].tolist(),
            passes=canvas.passes,
            positions=canvas.positions,
            seconds=seconds,
            scheduler=self.scheduler,
            options=self.options,
            logprobs=None if canvas.logprobs is None else canvas.logprobs[new].copy(),
            fills=[self._fill(canvas.tokens[hole].tolist()) for hole in canvas.holes],
        )

    def _fill(self, tokens: list[int]) -> Fill:
        text = None if self.tokenizer is None else self.tokenizer.decode(tokens, skip_special_tokens=True)
        return Fill(text, tokens)

    def _seeds(self, seed: int | Sequence[int]) -> Sequence[int]:
        prompts = len(self.prompts) // self.samples
        seeds = seed if isinstance(seed, Sequence) else [index(seed) + i for i in range(prompts)]
        if len(seeds) != prompts:
            raise ValueError(f"Invalid seed: expected a number or {prompts} of them, got {len(seeds)}")
        return seeds if self.samples == 1 else [derived(own, j) for own in seeds for j in range(self.samples)]

    def _negatives(self, given: Prompt | Sequence[Prompt] | None) -> list[list[int]] | None:
        """One negative prompt for each prompt; a single one is for all."""
        if given is None:
            return None
        found = [encode(prompt, self.tokenizer, self.model.config.mask_id) for prompt in as_batch(given)]
        if len(found) == 1:
            return found * len(self.prompts)
        return [negative for negative in found for _ in range(self.samples)]

    def _vocabulary(self, given: Vocabulary | None, delimiters: Delimiters) -> Vocabulary:
        config, device = self.model.config, self.model.device
        if given is None and self.tokenizer is not None:
            given = vocabulary_of(self.tokenizer, config, delimiters=delimiters, device=device)
        if given is None:
            given = Vocabulary(config.vocab_size, stops=config.stop_ids, device=device)
        if given.size != config.vocab_size:
            raise ValueError(f"Invalid vocabulary: expected the model's {config.vocab_size} ids, got {given.size}")
        return given


def derived(seed: int, sample: int) -> int:
    """The seed of a sample of a prompt: the first has the prompt's own, the others 64 bits that are mixed from it."""
    if sample == 0:
        return seed
    mixed = (index(seed) + sample * 0x9E3779B97F4A7C15) % 2**64  # the steps and the mixing of SplitMix64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return mixed ^ (mixed >> 31)


def new_tokens(given: int | None, have_masks: Sequence[bool]) -> int:
    """How many masks follow each prompt: as many as asked for, else 128, or none if the prompts have masks."""
    if given is not None:
        return as_integer("max_new_tokens", given, 0)
    if any(have_masks) and not all(have_masks):
        raise ValueError("Invalid max_new_tokens: expected a number, as only some of the prompts have masks, got None")
    return 0 if any(have_masks) else 128


@contextmanager
def bar(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr over committed tokens; gives the function that moves it."""
    with needed_by("a progress bar"):
        from rich.console import Console
        from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("decoding", total=total)
        yield lambda done: bars.update(task, completed=done)


def _show_arguments_of_a_run() -> None:
    """Gives `generate` and `stream` the arguments of `Run` in `help` and in editors; they are written down once."""
    given = inspect.signature(Run).parameters
    functions: tuple[Any, ...] = (generate, stream)
    for function in functions:
        own = inspect.signature(function)
        named = {name: each for name, each in own.parameters.items() if each.kind is not each.VAR_KEYWORD}
        joined = [*named.values(), *(each for name, each in given.items() if name not in ("model", "prompts"))]
        function.__signature__ = own.replace(parameters=joined)


_show_arguments_of_a_run()

__all__ = ["DecodingError", "Fill", "Generation", "Run", "generate", "stream"]

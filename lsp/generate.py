"""From prompts to text: `generate`, and `stream` for text as soon as it is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from operator import index
from typing import Any, NoReturn

import numpy as np

from lsp.adapt import adapt
from lsp.canvas import Canvas
from lsp.decode import DecodingError, Options, Progress, Scheduler, decode
from lsp.delimiters import Delimiters
from lsp.delimiters import vocabulary as vocabulary_of
from lsp.models import Transformer, load_tokenizer
from lsp.schedulers import LongestStablePrefix, scheduler_of
from lsp.text import Writer
from lsp_kernels import Vocabulary
from lsp_kernels.errors import as_integer

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
OPTIONS = tuple(f.name for f in fields(Options))
PRESET = Options(lookahead=64, refresh_scattered=True)
"""The options of the loop for the default scheduler, tuned with it (docs/results.md), and for others with islands."""


@dataclass(frozen=True)
class Generation:
    """What came after one prompt.

    Attributes
    ----------
    text : str or None
        Without special tokens and from a stop string on; None without a tokenizer.
    tokens : list of int
        All committed tokens, a stop included.
    finished : bool
        Whether it ended by a stop token or a stop string, and not by its length.
    steps : list of int
        Which pass, from 0, committed each token.
    passes, positions : int
        Passes of the model, and the token positions that went through it in all of them.
    seconds : dict
        Of the whole batch, by part: ``model``, ``head`` (LM head and commit), ``host`` (all else).
    scheduler, options
        What decoded it.
    """

    text: str | None
    tokens: list[int]
    finished: bool
    steps: list[int]
    passes: int
    positions: int
    seconds: dict[str, float]
    scheduler: Scheduler
    options: Options

    @property
    def commits(self) -> list[int]:
        """How many of the tokens each pass committed."""
        return np.bincount(self.steps, minlength=self.passes).tolist() if self.steps else [0] * self.passes

    @property
    def tokens_per_pass(self) -> float:
        return len(self.tokens) / max(self.passes, 1)


def generate(
    model: Any,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_new_tokens: int = 128,
    scheduler: Scheduler | str | None = None,
    tokenizer: Any = None,
    vocabulary: Vocabulary | None = None,
    delimiters: Delimiters = "text",
    stop: str | Sequence[str] = (),
    seed: int | Sequence[int] = 0,
    streamer: Any = None,
    progress: bool = False,
    **options: Any,
) -> list[Generation]:
    """Continues prompts with a diffusion language model.

    Parameters
    ----------
    model
        From `lsp.load`, or anything that `lsp.adapt` takes.
    prompts : str, chat, list of int, or a list of these
        Of any lengths. A chat is a list of ``{"role": ..., "content": ...}`` and goes through the tokenizer's template.
    max_new_tokens : int
        How many masks follow each prompt.
    scheduler : Scheduler or str
        By default ``"lsp"``, which is `lsp.LongestStablePrefix.guarded()`; a name of `lsp.schedulers.NAMES`, or a
        scheduler with its own parameters.
    tokenizer : optional
        By default the one of the model's folder. Prompts of ids need none.
    vocabulary : Vocabulary, optional
        By default made from the tokenizer, with the delimiters that `delimiters` names. The mask is always suppressed.
    stop : str or sequence of str
        Texts that end the continuation; they are not part of it.
    seed : int or sequence of int
        Of the noise, for a temperature above 0. Prompt i has seed + i, so that a result does not depend on the batch.
    streamer : optional
        Of transformers, such as `TextStreamer`, for a single prompt.
    progress : bool
        Shows a bar on stderr (needs rich).
    **options
        Of the loop, as in `lsp.Options`: block_length, lookahead, cache, refresh_every, refresh_scattered, stop_early,
        temperature. With islands, as the default scheduler has, lookahead is 64 and refresh_scattered True.

    Returns
    -------
    list of Generation
        One per prompt.

    Examples
    --------
    >>> import lsp
    >>> model = lsp.load("tiny")
    >>> (answer,) = lsp.generate(model, "Use 3, 5 and 7 to make 15.\\n", max_new_tokens=32)
    >>> answer.text
    'First 7 + 5 = 12, then 12 + 3 = 15.'
    """
    run = Run(model, prompts, max_new_tokens, scheduler, tokenizer, vocabulary, delimiters, stop, seed, options)
    if streamer is not None:
        run.attach(streamer)
    with bar(run.total) if progress else nullcontext(lambda _: None) as show:
        for state in run:
            show(run.total - sum(canvas.masks_left for canvas in state.canvases))
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
        prompts: Any,
        max_new_tokens: int = 128,
        scheduler: Scheduler | str | None = None,
        tokenizer: Any = None,
        vocabulary: Vocabulary | None = None,
        delimiters: Delimiters = "text",
        stop: str | Sequence[str] = (),
        seed: int | Sequence[int] = 0,
        options: dict[str, Any] | None = None,
        watch: Callable[[Scheduler], Scheduler] | None = None,
        **more: Any,
    ) -> None:
        self.scheduler = scheduler_of(scheduler)
        self.options = options_of({**(options or {}), **more}, self.scheduler)
        self.model = adapt(model)
        self.tokenizer = tokenizer_of(self.model) if tokenizer is None else tokenizer
        self.prompts = [self._encode(prompt) for prompt in as_batch(prompts)]
        self.total = len(self.prompts) * as_integer("max_new_tokens", max_new_tokens, 0)
        self.vocabulary = self._vocabulary(vocabulary, delimiters)
        stops = [stop] if isinstance(stop, str) else list(stop)
        if stops and self.tokenizer is None:
            raise ValueError("Invalid stop: expected none without a tokenizer, got stop strings")
        seeds = seed if isinstance(seed, Sequence) else [index(seed) + i for i in range(len(self.prompts))]
        if len(seeds) != len(self.prompts):
            raise ValueError(f"Invalid seed: expected a number or {len(self.prompts)} of them, got {len(seeds)}")
        self.loop_scheduler = self.scheduler if watch is None else watch(self.scheduler)
        self._loop = decode(
            self.model, self.prompts, max_new_tokens, self.loop_scheduler, self.vocabulary, self.options, seeds
        )
        self.state: Progress = next(self._loop)  # checks the prompts
        self.writers = [Writer(canvas, self.tokenizer, stops) for canvas in self.state.canvases]
        self._streamer: Any = None

    def __iter__(self) -> Iterator[Progress]:
        for state in self._loop:
            for writer in self.writers:
                writer.update()
            if self._streamer is not None:
                self._feed()
            yield state
        if self._streamer is not None:
            self._streamer.end()

    def attach(self, streamer: Any) -> None:
        """Gives the tokens to a streamer of transformers."""
        if len(self.prompts) != 1:
            raise ValueError(f"Invalid streamer: expected a single prompt, got {len(self.prompts)}")
        import torch

        self._streamer, self._fed = streamer, 0
        streamer.put(torch.tensor([self.prompts[0]], dtype=torch.int64))

    def _feed(self) -> None:
        import torch

        tokens = self.state.canvases[0].run
        if len(tokens) > self._fed:
            self._streamer.put(torch.from_numpy(tokens[self._fed :].copy()))
            self._fed = len(tokens)

    def generations(self) -> list[Generation]:
        seconds = self.state.clock.seconds
        return [self._generation(writer.canvas, writer, seconds) for writer in self.writers]

    def _generation(self, canvas: Canvas, writer: Writer, seconds: dict[str, float]) -> Generation:
        tokens = canvas.run.tolist()
        stopped = bool(tokens) and self.options.stop_early and tokens[-1] in self.vocabulary.stop_ids
        return Generation(
            writer.text if self.tokenizer is not None else None,
            tokens,
            stopped or writer.stopped,
            canvas.steps[canvas.prompt : canvas.first_mask].tolist(),
            canvas.passes,
            canvas.positions,
            seconds,
            self.scheduler,
            self.options,
        )

    def _encode(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], dict)):
            if self.tokenizer is None:
                raise ValueError("Invalid prompts: expected token ids without a tokenizer, got text; pass tokenizer=")
            if isinstance(prompt, str):
                return list(self.tokenizer(prompt)["input_ids"])
            text = self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return [as_integer("prompts", token, 0) for token in prompt]

    def _vocabulary(self, given: Vocabulary | None, delimiters: Delimiters) -> Vocabulary:
        config, device = self.model.config, self.model.device
        if given is None and self.tokenizer is not None:
            given = vocabulary_of(self.tokenizer, config, delimiters=delimiters, device=device)
        if given is None:
            given = Vocabulary(config.vocab_size, stops=config.stop_ids, device=device)
        if given.size != config.vocab_size:
            raise ValueError(f"Invalid vocabulary: expected the model's {config.vocab_size} ids, got {given.size}")
        return given


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of the folder that a model was loaded from, if there is one."""
    if not isinstance(model, Transformer) or model.source is None:
        return None
    if not any(model.source.glob("tokenizer*")) and not (model.source / "vocab.json").is_file():
        return None
    return load_tokenizer(model)


def as_batch(prompts: Any) -> list[Any]:
    """Prompts as a list of prompts; a single one may come alone. Arrays of ids are lists of ids."""
    if isinstance(prompts, str):
        return [prompts]
    prompts = [prompt.tolist() if hasattr(prompt, "tolist") else prompt for prompt in prompts]
    one = bool(prompts) and (isinstance(prompts[0], dict) or hasattr(prompts[0], "__index__"))
    return [prompts] if one else prompts


def options_of(given: dict[str, Any], scheduler: Scheduler) -> Options:
    """The options given; for others the preset, if the scheduler has islands, or the usual ones."""
    if unknown := [name for name in given if name not in OPTIONS]:
        fail_unknown(unknown[0])
    if isinstance(scheduler, LongestStablePrefix) and scheduler.islands is not None:
        given = {"lookahead": PRESET.lookahead, "refresh_scattered": given.get("cache") != "block", **given}
    return Options(**given)


def fail_unknown(name: str) -> NoReturn:
    raise TypeError(f"Invalid {name}: not supported; expected options among {', '.join(OPTIONS)}")


def bar(total: int) -> Any:
    """A progress bar on stderr over committed tokens, as a context manager that gives the function to move it."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import Progress as Bar

    @contextmanager
    def shown() -> Iterator[Any]:
        with Bar(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("decoding", total=total)
            yield lambda done: bars.update(task, completed=done)

    return shown()


__all__ = ["DecodingError", "Generation", "generate", "stream"]

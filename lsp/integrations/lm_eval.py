"""The model "lsp" of lm-evaluation-harness: importing this module registers it. Needs the extra ``eval``.

`lsp eval` is lm-eval's command line with this model; in Python it is ``lm_eval.simple_evaluate(model="lsp", ...)``.
Processes that torchrun has started share the documents. What decoding cost is in the results, under ``config``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lsp
from lsp.cli import settings
from lsp.decoding.options import NAMES as LOOP_OPTIONS
from lsp.evaluation.counts import Cost, Counts
from lsp.evaluation.likelihood import MC_NUM, decode_exactly, log_likelihoods, seed_of
from lsp.extras import needed_by
from lsp.generation import Generation, Run
from lsp.integrations._ranks import Ranks
from lsp.integrations._requests import How, as_batch_size, how_asked, in_text, with_padding, without_padding
from lsp.integrations._words import Words
from lsp.models import adapt
from lsp.models.templates import render
from lsp.prompts import tokenizer_of
from lsp_kernels.errors import as_integer

with needed_by("an evaluation"):
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from tqdm import tqdm

log = logging.getLogger("lm_eval.models.lsp")  # lm-eval shows what its own loggers say

AT_ONCE = 64
"""How many likelihoods are computed before they are put into lm-eval's cache."""


@register_model("lsp")
class Harness(LM):
    """A model for lm-eval, decoded by any scheduler.

    Parameters
    ----------
    pretrained : str, path or model
        What `lsp.load` takes, or a model that is loaded already.
    scheduler : str
        A name of `lsp.schedulers.NAMES`.
    max_new_tokens : int, optional
        How many masks follow each prompt. By default what the task says (``max_gen_toks``), else 256.
    batch_size : int
        How many documents are decoded at a time; the next one takes the place of a finished one. Also how many draws
        of likelihoods go through the model in one pass.
    mc_num : int
        Draws for a likelihood.
    check_greedy : bool
        Whether a likelihood comes with the answer to "is it what decoding token by token gives?". If not, with False.
    seed : int
        Of the draws, and of the noise where a task asks for a temperature. Every document has its own.
    dtype, revision, mask_id, shifted
        As in `lsp.load`.
    device : str, optional
        ``"cuda"`` is the GPU of this process. By default it, and without a GPU always the CPU.
    stop : str or sequence of str
        Texts that end an answer, besides those of the task.
    delimiters
        As in `lsp.tokens.delimiter_ids`.
    tokenizer : optional
        By default the one of the model's folder.
    **others
        Options of the loop such as block_length, and parameters of the scheduler and of its rule.
    """

    def __init__(
        self,
        pretrained: Any = "tiny",
        *,
        scheduler: str = "lsp",
        max_new_tokens: int | None = None,
        batch_size: int | str = 1,
        mc_num: int = MC_NUM,
        check_greedy: bool = True,
        seed: int = 0,
        dtype: str | None = None,
        revision: str | None = None,
        mask_id: int | None = None,
        shifted: bool | None = None,
        stop: str | Sequence[str] = (),
        device: str | None = None,
        delimiters: Any = "text",
        tokenizer: Any = None,
        **others: Any,
    ) -> None:
        super().__init__()
        self.max_new_tokens = None if max_new_tokens is None else as_integer("max_new_tokens", max_new_tokens, 1)
        self.batch_size, self.mc_num = as_batch_size(batch_size), as_integer("mc_num", mc_num, 1)
        self.seed, self.check_greedy = as_integer("seed", seed, 0), check_greedy
        if not isinstance(check_greedy, bool):
            raise TypeError(f"Invalid check_greedy: expected True or False, got {check_greedy!r}")
        if "temperature" in others:
            raise ValueError("Invalid temperature: expected it in gen_kwargs, beside do_sample, got it for the model")
        self.loop = {name: others.pop(name) for name in LOOP_OPTIONS if name in others}
        self.scheduler = settings.scheduler(scheduler, [f"{name}={in_text(value)}" for name, value in others.items()])
        self.options = self.scheduler.options.replaced_by(self.loop)
        self.ranks, self.counts = Ranks(), Counts()
        self._rank, self._world_size = self.ranks.rank, self.ranks.size
        if isinstance(pretrained, str | os.PathLike):
            how: dict[str, Any] = {"dtype": dtype, "revision": revision, "mask_id": mask_id, "shifted": shifted}
            pretrained = lsp.load(pretrained, device=self.ranks.device(device), **how)
        elif mask_id is not None or shifted is not None:
            raise ValueError("Invalid mask_id or shifted: expected neither with a model that is loaded, got one")
        self.model = adapt(pretrained)
        self.tokenizer = tokenizer_of(self.model) if tokenizer is None else tokenizer
        if self.tokenizer is None:
            raise ValueError("Invalid pretrained: expected a folder with a tokenizer, got none")
        self.stop = [stop] if isinstance(stop, str) else list(stop)
        self.words = Words(self.tokenizer, self.model, delimiters)

    # What lm-eval asks

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text after each context, up to a stop string."""
        self.counts.begin("generate_until")
        sources = without_padding(requests)
        calls: dict[How, list[tuple[int, list[int], int]]] = defaultdict(list)
        for place, copy in sources.items():
            context, arguments = requests[place].args
            how, ids = how_asked(arguments, self.tokenizer, self.max_new_tokens, self.stop), self.words.encode(context)
            self._check_length(requests[place], len(ids) + how.max_new_tokens)
            calls[how].append((place, ids, seed_of(self.seed, ids, copy) % 2**31))
        texts: dict[int, str] = {}
        for how, members in calls.items():
            asked = [requests[place].args for place, _, _ in members]
            _, prompts, seeds = zip(*members, strict=True)
            answers = self._decode(how, prompts, seeds, asked, disable_tqdm)
            for (place, _, _), answer in zip(members, answers, strict=True):
                texts[place] = answer.text or ""
                self._count(requests[place], sources[place], len(answer.tokens), answer)
        return with_padding(requests, texts)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """LLaDA's estimate for each continuation, and whether decoding token by token gives it."""
        self.counts.begin("loglikelihood")
        sources = without_padding(requests)
        pairs = [self.words.encode_pair(*requests[place].args) for place in sources]
        for place, (context, continuation) in zip(sources, pairs, strict=True):
            self._check_length(requests[place], len(context) + len(continuation))
        answers: dict[int, tuple[float, bool]] = {}
        show = self._bar(len(pairs), disable_tqdm)
        for begin in range(0, len(pairs), AT_ONCE):
            chunk = pairs[begin : begin + AT_ONCE]
            judged = self._judge(chunk, partial(show, begin))
            places = list(sources.items())[begin : begin + AT_ONCE]
            for (place, copy), (_, continuation), (estimate, *checks) in zip(places, chunk, judged, strict=True):
                answers[place] = estimate.value, any(check.tokens == continuation for check in checks)
                self.cache_hook.add_partial("loglikelihood", requests[place].args, answers[place])
                self._count(requests[place], copy, len(continuation), estimate, *checks)
        return with_padding(requests, answers)

    def _judge(self, pairs: Sequence[Any], show: Callable[[int], None]) -> list[tuple[Any, ...]]:
        """The estimate of each continuation and, if it is checked, what decoding token by token gives."""
        how: dict[str, Any] = {"mc_num": self.mc_num, "seed": self.seed, "batch_size": self.batch_size}
        estimates = log_likelihoods(self.model, pairs, progress=show, **how)
        if not self.check_greedy:
            return [(estimate,) for estimate in estimates]
        words = {"tokenizer": self.tokenizer, "vocabulary": self.words.vocabulary()}
        greedy = decode_exactly(self.model, pairs, batch_size=self.batch_size, **words)
        return list(zip(estimates, greedy, strict=True))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Raises: a masked diffusion model has no such thing."""
        raise NotImplementedError(
            "A rolling log-likelihood is not defined for a masked diffusion model: it estimates that of a whole "
            "continuation, not that of each token after those before it"
        )

    # Chats

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as text; without `add_generation_prompt` the last message is the beginning of the answer."""
        return render(self.tokenizer, chat_history, continued=not add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        template: str | None = self.tokenizer.get_chat_template() if chat_template else None
        return template

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    # Decoding

    def _decode(
        self, how: How, prompts: Sequence[list[int]], seeds: Sequence[int], asked: Sequence[Any], quiet: bool
    ) -> list[Generation]:
        """Decodes prompts. Every answer is in lm-eval's cache (`asked` are its keys) as soon as it is complete."""
        run = Run(
            self.model,
            prompts,
            tokenizer=self.tokenizer,
            vocabulary=self.words.vocabulary(how.stop_ids),
            scheduler=self.scheduler,
            max_new_tokens=how.max_new_tokens,
            stop=how.stops,
            seed=seeds,
            batch_size=self.batch_size,
            **{**self.loop, "temperature": how.temperature},
        )

        def keep(number: int) -> None:
            if how.temperature == 0:  # lm-eval caches nothing that is drawn
                self.cache_hook.add_partial("generate_until", asked[number], run.writers[number].text)

        run.to_the_end(self._may_show(quiet), keep)
        return run.generations()

    def _check_length(self, request: Instance, length: int) -> None:
        most = self.model.config.max_length
        if most is not None and length > most:
            what = f"document {request.doc_id} of {request.task_name}"
            raise ValueError(f"Invalid length of {what}: expected at most {most} tokens with its answer, got {length}")

    def _count(self, request: Instance, copy: int, length: int, *parts: Any) -> None:
        """Counts a request: its tokens, and the passes and positions of all that was computed for it."""
        cost = Cost(length, sum(part.passes for part in parts), sum(part.positions for part in parts))
        part = request.idx, copy
        self.counts.add(request.request_type, str(request.task_name), request.doc_id or 0, part, cost)

    # Progress and results

    def _may_show(self, quiet: bool) -> bool:
        return self.rank == 0 and not quiet and sys.stderr.isatty()

    def _bar(self, total: int, quiet: bool) -> Callable[[int, int], None]:
        """A progress bar over likelihoods: is told the first of those at hand, and which of them is being computed."""
        bar = tqdm(total=total, desc="likelihoods", disable=not self._may_show(quiet))
        return lambda first, number: bar.update(first + number + 1 - bar.n) and None

    def get_model_info(self) -> dict[str, Any]:
        """What the results say of this model under ``config``: how it decoded, and what every document cost."""
        counts = self.counts.summary()
        for task, each in counts.items():
            costs = ", ".join(f"{value:.1f} {name}" for name, value in each["mean"].items())
            log.info("%s: %s on average over %d documents", task, costs, each["documents"])
        return {
            "lsp": {
                "scheduler": repr(self.scheduler),
                "options": asdict(self.options),
                "max_new_tokens": self.max_new_tokens,
                "mc_num": self.mc_num,
                "seed": self.seed,
                "processes": self.world_size,
                "counts": counts,
            }
        }

    # Several processes

    @property
    def device(self) -> torch.device:
        return self.model.device

    def all_gather(self, tensor: Tensor) -> Tensor:
        return self.ranks.all_gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """The objects of all processes. The counts travel with them: every process calls this at the end of a run."""
        gathered = self.ranks.gather_object((obj, self.counts), dst)
        if gathered is None:
            return None
        for _, counts in gathered:
            self.counts.merge(counts)
        return [one for one, _ in gathered]

    def barrier(self) -> None:
        self.ranks.barrier()


__all__ = ["Harness"]

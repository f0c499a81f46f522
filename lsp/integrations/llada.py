"""`generate` of LLaDA, which commits the longest stable prefix instead of a fixed number of tokens in each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lsp.decoding import Chosen, Options, Scheduler, Step
from lsp.decoding.step import Prefix, Stats
from lsp.integrations._common import (
    check_padding,
    continuation,
    decoded,
    refuse_remasking,
    rule_for,
    vocabulary_for,
)
from lsp.models.adapted import adapt, logits_of
from lsp.models.protocol import Model
from lsp.schedulers import LongestStablePrefix, scheduler_of
from lsp_kernels import PrefixRule, Vocabulary, select_prefix
from lsp_kernels.errors import as_integer

__all__ = ["generate"]


def generate(
    model: Any,
    prompt: Tensor,
    attention_mask: Tensor | None = None,
    steps: int = 128,
    gen_length: int = 128,
    block_length: int = 128,
    temperature: float = 0.0,
    cfg_scale: float = 0.0,
    remasking: str = "low_confidence",
    mask_id: int = 126336,
    logits_eos_inf: bool = False,
    confidence_eos_eot_inf: bool = False,
    *,
    scheduler: Scheduler | str | None = None,
    vocabulary: Vocabulary | None = None,
    eos_id: int = 126081,
    eot_id: int = 126348,
) -> Tensor:
    """Continues prompts by `gen_length` tokens.

    Parameters
    ----------
    model
        From ids [1, L] to logits [1, L, V], in an output with ``.logits``: any model that `lsp.adapt` takes. One of
        `lsp.load` decodes on its cache.
    prompt : Tensor, integers [B, P]
        Prompts of one length, or padded on the left.
    attention_mask : Tensor [B, P], optional
        0 on the padding, which is decoded without and is in the result as it came.
    steps : int
        Plays no part: a pass commits as much as is stable, so their number is not known before.
    gen_length, block_length : int
        The first must be a multiple of the second. Only masks of the first block that has any are committed.
    temperature : float
        Scale of the Gumbel noise on the logits; margins are those of the noisy logits. Seeded by torch's global
        generator. The draws are not those of LLaDA's float64 noise, their distribution is the same.
    cfg_scale : float
        Scale s of guidance: logits are u + (s + 1) (c - u), with u from a prompt of masks.
    remasking : str
        ``"low_confidence"``; anything else is refused.
    mask_id : int
    logits_eos_inf : bool
        Whether `eos_id` is never chosen.
    confidence_eos_eot_inf : bool
        Whether `eos_id` and `eot_id` are chosen last: where one of them is predicted, the margin and the confidence are
        the lowest that there are; elsewhere the confidence is p / (1 - p_eos - p_eot).
    scheduler : Scheduler or str, optional
        By default the longest stable prefix by `PrefixRule.guarded()`. ``lsp.TopK(k)`` is what LLaDA does with
        ``steps = gen_length / k``.
    vocabulary : Vocabulary, optional
        Delimiters to end a commit at, and stops. What follows a committed stop is filled up with it; without stops
        every position is decoded, as LLaDA does.
    eos_id, eot_id : int
        The ends of a text and of a turn, for the two options above.

    Returns
    -------
    Tensor, int64 [B, P + gen_length]
        On the device of the model.

    Examples
    --------
    >>> import torch
    >>> from lsp.integrations.llada import generate
    >>> x = generate(torch.nn.Embedding(50, 50), torch.tensor([[3, 1]]), gen_length=4, block_length=4, mask_id=49)
    >>> x.shape, bool((x == 49).any())
    (torch.Size([1, 6]), False)
    """
    check_padding("prompt", prompt, attention_mask)
    _check_lengths(gen_length, block_length)
    refuse_remasking(remasking)
    rule = rule_for(None, vocabulary)
    runner = _adapted(model, mask_id, vocabulary)
    known = vocabulary_for(vocabulary, runner.config.vocab_size, mask_id, runner.device)
    chosen = LongestStablePrefix(rule, islands=None, fade=0.0) if scheduler is None else scheduler_of(scheduler)
    if logits_eos_inf:
        known = known.suppressing(*_ids("logits_eos_inf", known.size, eos_id=eos_id))
    if confidence_eos_eot_inf:
        chosen = ChosenLast(chosen, _ids("confidence_eos_eot_inf", known.size, eos_id=eos_id, eot_id=eot_id))
    options = Options(block_length=block_length, temperature=temperature, cfg_scale=cfg_scale)
    canvases = decoded(runner, prompt, attention_mask, gen_length, chosen, known, options)
    return continuation(prompt, canvases, gen_length).to(runner.device)


class ChosenLast(Scheduler):
    """Another scheduler, to which some tokens look as unsure as can be wherever they are predicted."""

    def __init__(self, scheduler: Scheduler, ids: tuple[int, ...]) -> None:
        self.scheduler, self.ids = scheduler, ids

    def __call__(self, step: Step) -> list[Chosen]:
        seen: Any = Lowered(step, self.ids)
        return self.scheduler(seen)

    @property
    def name(self) -> str:
        return self.scheduler.name

    def check(self, options: Options) -> None:
        self.scheduler.check(options)

    def check_vocabulary(self, size: int) -> None:
        self.scheduler.check_vocabulary(size)


class Lowered:
    """A step whose log-odds and entropies are those of the logits with these ids at -inf, as LLaDA has them.

    Where one of them is predicted, margin and log-odds are the lowest and the entropy is the highest.
    """

    def __init__(self, step: Step, ids: tuple[int, ...]) -> None:
        self.step, self.ids = step, ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)

    def stats(self, where: Sequence[np.ndarray], **options: Any) -> list[Stats]:
        found = self.step.stats(where, **options)
        return [self._lowered(*each) for each in zip(found, self.step.distributions(where), strict=True)]

    def _lowered(self, stats: Stats, log_probs: np.ndarray) -> Stats:
        last = np.isin(stats.tokens, self.ids)
        log_odds, entropy = without(log_probs, stats.tokens, self.ids)
        highest = np.log(self.step.vocabulary.size)
        return stats._replace(
            margins=np.where(last, np.float32(0), stats.margins),
            log_odds=np.where(last, -np.inf, log_odds).astype(np.float32),
            entropy=None if stats.entropy is None else np.where(last, highest, entropy).astype(np.float32),
        )

    def commit(self, rule: PrefixRule) -> list[Prefix]:
        """The rule on the lowered margins."""
        counts = [len(canvas.masks) for canvas in self.step.canvases]
        where = [c.masks[: rule.scored_rows(n)] for c, n in zip(self.step.canvases, counts, strict=True)]
        return [self._prefix(rule, stats, n) for stats, n in zip(self.stats(where), counts, strict=True)]

    def _prefix(self, rule: PrefixRule, stats: Stats, count: int) -> Prefix:
        rows = torch.from_numpy(stats.margins), torch.from_numpy(stats.tokens)
        borders = torch.tensor([0, len(stats.tokens)], dtype=torch.int32)
        number = torch.tensor([count], dtype=torch.int32)
        lengths, _ = select_prefix(*rows, borders, number, rule=rule, vocabulary=self.step.vocabulary_on_host)
        return Prefix(int(lengths), stats.tokens, stats.margins)


def without(log_probs: np.ndarray, tokens: np.ndarray, ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of each row's token, and each row's entropy, if these ids could not be chosen."""
    rows = [_row_without(row, int(token), ids) for row, token in zip(log_probs, tokens, strict=True)]
    log_odds, entropy = np.array(rows).reshape(-1, 2).T
    return log_odds, entropy


def _row_without(row: np.ndarray, token: int, ids: tuple[int, ...]) -> tuple[float, float]:
    others, own = np.delete(row, [*ids, token]).astype(np.float64), float(row[token])
    p, p_own = np.exp(others), np.exp(own)
    whole = p.sum() + p_own
    with np.errstate(divide="ignore", invalid="ignore"):  # no other token is possible; logits that the loop refuses
        spread = np.where(p > 0, p * others, 0).sum() + p_own * own
        return own - np.log(p.sum()), np.log(whole) - spread / whole


def _ids(name: str, size: int, **ids: int) -> tuple[int, ...]:
    for which, token in ids.items():
        if as_integer(which, token, 0) >= size:
            raise ValueError(f"Invalid {which}: expected an id from 0 to {size - 1} with {name}, got {token}")
    return tuple(ids.values())


def _check_lengths(gen_length: int, block_length: int) -> None:
    as_integer("gen_length", gen_length, 1)
    if gen_length % as_integer("block_length", block_length, 1):
        raise ValueError(
            f"Invalid block_length: expected a divisor of gen_length = {gen_length}, as in LLaDA, got {block_length}"
        )


def _adapted(model: Any, mask_id: int, vocabulary: Vocabulary | None) -> Model:
    """The model in the protocol of the loop. One without a config says in a pass how large its vocabulary is."""
    size = None if vocabulary is None else vocabulary.size
    device = getattr(model, "device", None)
    if size is None and callable(model) and getattr(getattr(model, "config", None), "vocab_size", None) is None:
        with torch.no_grad():
            size = logits_of(model(torch.zeros(1, 1, dtype=torch.int64, device=device))).size(-1)
    runner = adapt(model, vocab_size=size, mask_id=mask_id, device=device)
    if runner.config.mask_id != mask_id:
        raise ValueError(f"Invalid mask_id: expected {runner.config.mask_id} of the model's config, got {mask_id}")
    return runner

"""`generate` of LLaDA, which commits the longest stable prefix instead of a fixed number of tokens in each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lsp.decoding import Options, Scheduler
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
from lsp_kernels import Vocabulary
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
    cfg_scale, remasking, logits_eos_inf, confidence_eos_eot_inf
        0, ``"low_confidence"``, False and False; anything else is refused. To keep the end of text from being chosen
        pass a vocabulary that suppresses it.
    mask_id : int
    scheduler : Scheduler or str, optional
        By default ``LongestStablePrefix(islands=None)``. ``lsp.TopK(k)`` is what LLaDA does with
        ``steps = gen_length / k``.
    vocabulary : Vocabulary, optional
        Delimiters to end a commit at, and stops. What follows a committed stop is filled up with it; without stops
        every position is decoded, as LLaDA does.

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
    _refuse(gen_length, block_length, cfg_scale, logits_eos_inf, confidence_eos_eot_inf)
    refuse_remasking(remasking)
    rule = rule_for(None, vocabulary)
    runner = _adapted(model, mask_id, vocabulary)
    known = vocabulary_for(vocabulary, runner.config.vocab_size, mask_id, runner.device)
    chosen = LongestStablePrefix(rule, islands=None) if scheduler is None else scheduler_of(scheduler)
    options = Options(block_length=block_length, temperature=temperature)
    canvases = decoded(runner, prompt, attention_mask, gen_length, chosen, known, options)
    return continuation(prompt, canvases, gen_length).to(runner.device)


def _refuse(
    gen_length: int,
    block_length: int,
    cfg_scale: float,
    logits_eos_inf: bool,
    confidence_eos_eot_inf: bool,
) -> None:
    as_integer("gen_length", gen_length, 1)
    if gen_length % as_integer("block_length", block_length, 1):
        raise ValueError(
            f"Invalid block_length: expected a divisor of gen_length = {gen_length}, as in LLaDA, got {block_length}"
        )
    if cfg_scale != 0:
        raise ValueError(f"Invalid cfg_scale: expected 0, as there is no guidance here, got {cfg_scale!r}")
    for name, value in (("logits_eos_inf", logits_eos_inf), ("confidence_eos_eot_inf", confidence_eos_eot_inf)):
        if value:
            raise ValueError(f"Invalid {name}: expected False, got {value!r}; pass a vocabulary that suppresses the id")


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

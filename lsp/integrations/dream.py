"""`diffusion_generate` of Dream in the loop of `lsp`, and Dream's two generation hooks, for its own loop.

With the hooks Dream's loop commits the longest stable prefix. Dream calls the tokens hook with step None before the
first pass. In each step it runs the model, shifts the logits so that row p predicts position p, calls the logits hook,
writes tokens of its own choice, and calls the tokens hook, whose result is what the next pass sees. Here the logits
hook commits, and gives Dream two columns to choose from, so that its softmax over the vocabulary costs nothing; the
tokens hook drops Dream's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lsp.decoding import Options, Scheduler
from lsp.integrations._common import MaskedPrefix, check_padding, continuation, decoded, vocabulary_for
from lsp.models.adapted import adapt
from lsp.schedulers import DreamOrder, scheduler_of
from lsp_kernels import PrefixRule, Vocabulary
from lsp_kernels.errors import as_integer

__all__ = ["Finished", "diffusion_generate", "generation_hooks"]

SURE = 30.0  # the logit of the one token that Dream may choose: a probability of 1, which reaches any threshold
TokensHook = Callable[[int | None, Tensor, Tensor | None], Tensor]
LogitsHook = Callable[[int, Tensor, Tensor], Tensor]


class Finished(Exception):
    """No mask is left. Raised by the tokens hook if it was asked to, since Dream's loop always makes all its passes.

    Attributes
    ----------
    sequences : Tensor, int64 [B, L]
        What `diffusion_generate` would have returned.
    steps : int
        How many passes it took.
    """

    def __init__(self, sequences: Tensor, steps: int) -> None:
        super().__init__(f"no mask is left after {steps} steps")
        self.sequences, self.steps = sequences, steps


def generation_hooks(
    *,
    steps: int,
    mask_id: int = 151666,
    rule: PrefixRule | None = None,
    vocabulary: Vocabulary | None = None,
    leave_when_finished: bool = False,
) -> dict[str, TokensHook | LogitsHook]:
    """Both hooks under the names that ``model.diffusion_generate`` knows, for ``**generation_hooks(...)``.

    Parameters
    ----------
    steps : int
        As given to `diffusion_generate`. The last step commits all that is left, as Dream does, and so do steps that
        Fast-dLLM's ``alg="confidence_threshold"`` adds after it.
    mask_id : int
    rule : PrefixRule, optional
        By default `PrefixRule.guarded`.
    vocabulary : Vocabulary, optional
        Delimiters and stops. What follows a committed stop is filled up with it.
    leave_when_finished : bool
        Raise `Finished` when no mask is left, instead of letting Dream make the rest of its passes.

    Notes
    -----
    Decoding is greedy: the hooks see logits only, so Dream's ``temperature``, ``top_p``, ``top_k`` and ``alg`` play no
    part. ``alg_temp`` must be 0 or None, or Dream itself may fail to draw positions in a batch. One pair serves one
    generation at a time, and any number of them one after the other.

    Examples
    --------
    >>> from lsp.integrations.dream import generation_hooks
    >>> sorted(generation_hooks(steps=64))
    ['generation_logits_hook_func', 'generation_tokens_hook_func']
    """
    commit, last = MaskedPrefix(mask_id, rule, vocabulary), as_integer("steps", steps, 1) - 1
    committed: dict[int, Tensor] = {}  # the ids after the step that is under way

    def generation_logits_hook_func(step: int, x: Tensor, logits: Tensor) -> Tensor:
        committed.clear()
        # Fast-dLLM's alg="confidence_threshold" may add steps of its own: from the last one on everything is committed.
        committed[step] = commit(logits, x, everything=as_integer("step", step, 0) >= last)
        return logits.new_tensor([SURE, 0.0]).expand(*x.shape, 2)

    def generation_tokens_hook_func(step: int | None, x: Tensor, logits: Tensor | None) -> Tensor:
        if step is None:
            committed.clear()
            return x
        if step not in committed:
            raise ValueError(f"Invalid step: expected the logits hook to have been called for it, got {step}")
        out = committed.pop(step)
        if leave_when_finished and not bool((out == commit.mask_id).any()):
            raise Finished(out, step + 1)
        return out

    return {
        "generation_tokens_hook_func": generation_tokens_hook_func,
        "generation_logits_hook_func": generation_logits_hook_func,
    }


def diffusion_generate(
    model: Any,
    inputs: Tensor,
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int = 128,
    steps: int = 512,
    eps: float = 1e-3,
    temperature: float = 0.0,
    top_p: float | None = None,
    top_k: int | None = None,
    alg: str = "origin",
    alg_temp: float | None = None,
    mask_token_id: int = 151666,
    scheduler: Scheduler | str | None = None,
    vocabulary: Vocabulary | None = None,
) -> Tensor:
    """Continues prompts as ``model.diffusion_generate`` does, with Dream's names and orders.

    Parameters
    ----------
    model
        One of `lsp.load`, which decodes on its cache, or any that `lsp.adapt` takes; its logits are shifted as Dream's.
    inputs : Tensor, integers [B, P]
        Prompts of one length, or padded on the left. Masks in them are filled.
    attention_mask : Tensor [B, P], optional
        0 on the padding, which is decoded without and is in the result as it came.
    max_new_tokens, steps, eps, alg, alg_temp
        As in Dream; the order is `lsp.schedulers.DreamOrder`. With a `scheduler` only the first plays a part.
    temperature, top_p, top_k
        As in Dream. Filters change nothing without a temperature. Noise is seeded by torch's global generator.
    mask_token_id : int
    scheduler : Scheduler or str, optional
        Another one than Dream's order, such as ``"lsp"``, with its own options of the loop.
    vocabulary : Vocabulary, optional
        Delimiters and stops. What follows a committed stop is filled up with it; without stops every position is
        decoded, as Dream does.

    Returns
    -------
    Tensor, int64 [B, P + max_new_tokens]

    Examples
    --------
    >>> import torch
    >>> from lsp.integrations.dream import diffusion_generate
    >>> model = torch.nn.Embedding(50, 50)
    >>> model.config = type("Config", (), {"vocab_size": 50})
    >>> how = {"max_new_tokens": 4, "steps": 2, "alg": "entropy", "mask_token_id": 49}
    >>> x = diffusion_generate(model, torch.tensor([[3, 1]]), **how)
    >>> x.shape, bool((x == 49).any())
    (torch.Size([1, 6]), False)
    """
    check_padding("inputs", inputs, attention_mask)
    new = as_integer("max_new_tokens", max_new_tokens, 0)
    order: Any = alg
    chosen = DreamOrder(order, steps, alg_temp or 0.0, eps) if scheduler is None else scheduler_of(scheduler)
    runner = adapt(model, mask_id=mask_token_id, shifted=True)
    if runner.config.mask_id != mask_token_id:
        expected = f"{runner.config.mask_id} of the model's config"
        raise ValueError(f"Invalid mask_token_id: expected {expected}, got {mask_token_id}")
    known = vocabulary_for(vocabulary, runner.config.vocab_size, mask_token_id, runner.device)
    filters = {"top_p": top_p, "top_k": top_k} if temperature else {}
    options: Options = chosen.options.replaced_by({"temperature": temperature, **filters})
    canvases = decoded(runner, inputs, attention_mask, new, chosen, known, options)
    return continuation(inputs, canvases, new).to(inputs.device)

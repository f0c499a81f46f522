"""The loop of d2Cache and of its fork DLLM-AccelEval: frames, deltas and caches are theirs, what is committed is ours.

Both are run from their own folder, where their package is called ``src``. It is imported by the first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lsp.integrations._common import chosen_prefix, rule_of
from lsp_kernels import PrefixRule, Vocabulary, token_stats
from lsp_kernels.errors import as_integer
from lsp_kernels.vocabulary import check_rule


def id_of(given: int | None, variable: str) -> int:
    """A token id, from the argument or from the environment variable in which these suites keep it."""
    if given is None and variable not in os.environ:
        name = variable.lower()
        raise ValueError(f"Invalid {name}: expected an id, here or in the environment variable {variable}, got None")
    return as_integer(variable.lower(), int(os.environ[variable]) if given is None else given, 0)


class Frames:
    """One generation of a suite.

    Parameters
    ----------
    model
        The suite's own, which takes its caches.
    mask_id : int
    stop : int, optional
        The id that ends a sequence; masks after it stay masks. Without it every position is decoded.
    rule : PrefixRule or mapping, optional
        `PrefixRule.guarded`, with these fields replaced.
    delimiters : iterable of int
        Ids that a commit ends at, for a rule that snaps.
    """

    def __init__(
        self,
        model: Any,
        mask_id: int,
        stop: int | None,
        rule: PrefixRule | Mapping[str, Any] | None,
        delimiters: Iterable[int],
    ) -> None:
        self.model, self.mask_id, self.stop = model, mask_id, stop
        self.rule = rule_of(rule)
        stops = [] if stop is None else [stop]
        size = model.config.vocab_size
        self.vocabulary = Vocabulary(size, delimiters, stops, suppress=[mask_id], device=model.device)
        check_rule(self.rule, self.vocabulary)
        self.frame = import_module("src.frame")
        self.prepare: Callable[[Any, Tensor], Tensor] = import_module(
            "src.generation.utils"
        ).prepare_logits_for_generation

    @torch.no_grad()
    def decode(
        self, prompts: Tensor, attention_mask: Tensor | None, gen_length: int, block_length: int, cache: Any
    ) -> Any:
        """A `DecodeRecord`: the first frame, and what each pass changed."""
        if gen_length % as_integer("block_length", block_length, 1):
            raise ValueError(f"Invalid block_length: expected a divisor of {gen_length = }, got {block_length}")
        create = self.frame.Frame.create_initial_frame
        first = create(prompts, gen_length=gen_length, mask_token_id=self.mask_id)
        first = frame = first.to(device=self.model.device, dtype=self.model.dtype)
        if attention_mask is not None and attention_mask.shape == prompts.shape:
            attention_mask = torch.nn.functional.pad(attention_mask, (0, gen_length), value=1).to(self.model.device)
        deltas: list[Any] = []
        for start in range(0, gen_length, block_length):
            block = torch.zeros(len(prompts), gen_length, dtype=torch.bool, device=self.model.device)
            block[:, start : start + block_length] = True
            frame, of_block = self._decode_block(frame, block, attention_mask, cache)
            deltas += of_block
        return self.frame.DecodeRecord(initial_frame=first.to("cpu"), deltas=deltas, block_length=block_length)

    def _decode_block(
        self, frame: Any, block: Tensor, attention_mask: Tensor | None, cache: Any
    ) -> tuple[Any, list[Any]]:
        """The frame after a block, and the deltas in between; the cache hears of each pass, as the suites tell it."""
        before, deltas = frame.clone(), []
        if cache is not None:
            cache.on_block_start(block, frame)
        while True:
            if cache is not None:
                cache.on_step_start(block, frame)
            delta = self._pass(frame, block, attention_mask, cache)
            if delta is None:
                break
            if cache is not None:
                cache.on_step_end(block, frame, delta)
            deltas.append(delta.to("cpu"))
            frame = frame.apply_delta(delta, self.mask_id)
        if cache is not None:
            cache.on_block_end(block, before, deltas)
        return frame, deltas

    def _pass(self, frame: Any, block: Tensor, attention_mask: Tensor | None, cache: Any) -> Any:
        """One pass over the sequences that have masks in the block; None if there are none."""
        masked = self._open(frame.generated_tokens)
        active = (masked & block).any(1)
        if not bool(active.any()):
            return None
        if cache is not None:
            cache.active_seq_mask = active
        ids = torch.cat([frame.prompts, frame.generated_tokens], dim=1)[active]
        seen = None if attention_mask is None else attention_mask[active]
        out = self.model(ids, attention_mask=seen, past_key_values=cache, use_cache=cache is not None)
        first = frame.prompts.size(1)
        logits = self.prepare(self.model, out.logits)[:, first:]
        masked = masked[active] & self._fresh(cache, masked[active], first)
        stats = token_stats(logits, vocabulary=self.vocabulary)
        candidates = masked & block[active]
        if bool((~candidates.any(1)).any()):
            raise ValueError("Invalid cache: expected logits for a mask of each sequence's block, got none in a pass")
        chosen = chosen_prefix(stats, candidates, self.rule, self.vocabulary)
        return self.frame.FrameDelta(
            transfer_index=_by_sequence(chosen, active),
            decoded_tokens=torch.where(masked, stats.tokens, self.frame.INVALID_TOKEN_ID),
            confidence=torch.where(masked, stats.confidence, -torch.inf).to(self.model.dtype),
        )

    def _open(self, tokens: Tensor) -> Tensor:
        """The masks, up to the first stop."""
        masked = tokens == self.mask_id
        return masked if self.stop is None else masked & ((tokens == self.stop).cumsum(1) == 0)

    def _fresh(self, cache: Any, masked: Tensor, first: int) -> Tensor:
        """Where the pass computed logits: a cache may leave positions out, whose logits are then zeros."""
        if cache is None or cache.active_q_mask is None:
            return torch.ones_like(masked)
        # as a tensor of logits, so that it is shifted if those of the model are
        return self.prepare(self.model, cache.active_q_mask[..., None])[:, first:, 0]


def _by_sequence(chosen: Tensor, active: Tensor) -> tuple[Tensor, ...]:
    """The positions that each sequence commits; none for those that were not in the pass."""
    rows = iter(chosen)
    nothing = torch.empty(0, dtype=torch.int64, device=chosen.device)
    return tuple(next(rows).nonzero().flatten() if there else nothing for there in active.tolist())

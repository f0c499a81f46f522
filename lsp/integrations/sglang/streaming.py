"""Sends what is committed before its block is complete.

SGLang gives a block to a request whole: until then the ids of the block lie beside the request, and nothing of them is
sent. What a longest stable prefix has committed is final, so the hook lends the request the run of committed tokens at
the left end of the block, which SGLang then sends as it sends any output. When the block is complete, the hook takes
them back just before SGLang adds the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["committed", "install", "lend"]

LENT = "lsp_lent_tokens"  # the attribute of a request that counts them


def install() -> None:
    """Registers the hook with SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.dllm.mixin.scheduler.SchedulerDllmMixin.process_batch_result_dllm"
    HookRegistry.register(target, around_result, HookType.AROUND)


def around_result(original: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:
    """Around the scheduler's processing of a pass."""
    config, lengths = scheduler.dllm_config, result.accept_length_per_req_cpu
    if (
        config.algorithm.startswith("LongestStablePrefix")
        and config.algorithm_config.get("stream")
        and lengths is not None
    ):
        for request, ids, accepted in zip(batch.reqs, result.next_token_ids, lengths, strict=True):
            lend(request, ids, config.mask_id, complete=bool(accepted))
    return original(scheduler, batch, result)


def lend(request: Any, ids: Sequence[int], mask_id: int, *, complete: bool) -> None:
    """Brings the tokens lent to a request up to date with the ids of its block, or takes them back."""
    lent = getattr(request, LENT, 0)
    if complete:
        run: Sequence[int] = ()
    elif not request.stream or request.sampling_params.stop_strs or request.sampling_params.stop_regex_strs:
        return  # nobody waits for it, or its end is known to whole blocks alone
    else:
        own = len(request.output_ids) - lent
        prompt = max(0, len(request.origin_input_ids) + own - request.dllm_block_offset)
        room = request.sampling_params.max_new_tokens - own
        run = committed(ids[prompt:], mask_id, ends_of(request))[: max(0, room)]
    if lent and len(run) < lent:
        del request.output_ids[-lent:]
        lent = 0
    request.output_ids.extend(run[lent:])
    setattr(request, LENT, len(run))


def committed(ids: Sequence[int], mask_id: int, ends: Iterable[int]) -> Sequence[int]:
    """The run of ids before the first mask, and before what may end the text.

    Examples
    --------
    >>> committed([5, 6, 9, 7], mask_id=9, ends={2})
    [5, 6]
    """
    last = {mask_id, *ends}
    return ids[: next((i for i, token in enumerate(ids) if token in last), len(ids))]


def ends_of(request: Any) -> set[int]:
    """The ids at which SGLang may end this request."""
    if request.sampling_params.ignore_eos:
        return set()
    tokenizer = request.tokenizer
    found = {*(request.sampling_params.stop_token_ids or ()), *(request.eos_token_ids or ())}
    if tokenizer is not None:
        found |= {tokenizer.eos_token_id, *(getattr(tokenizer, "additional_stop_token_ids", None) or ())}
    return found
